"""The official pipelines as values: stages of configured passes from which all others are derived."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from tilewright.ir import Level, UnsupportedError
from tilewright.passes.framework.pipeline import Pipeline

#: no passes
NOTHING = Pipeline()

#: Relay-level clean-up and algebra on the graph
GRAPH = Pipeline.parse("""
infer-shapes,
integer-products,
decompose-octave,
form-group-norm,
multiply-by-reciprocals,
fold-batch-norm,
fold-scale-axis,
fold-constants,
cse,
dce
""")

#: products of what was quantised to 8-bit floats, before their constants are folded to float32
FLOAT8 = Pipeline.parse("infer-shapes, float8-products")

#: attention as products and a softmax where the device has no kernel for the whole
EXPANDED = Pipeline.parse("expand-attention")

#: masks of a backward pass follow from what is stored; products of many inputs with one constant become one,
#: so that steps of a recurrence multiply their state alone; reshapes sink below what follows products; those
#: with constants on one input become one product, and so do sums of products of a backward pass and products
#: with one common factor of a training step; small groups of convolutions become larger ones
PRODUCTS = Pipeline.parse(
    "signs-of-results, stack-rows, sink-reshapes, merge-products, "
    "sum-of-products, stack-products, join-groups"
)

#: the choice of an algorithm for each convolution
ALGORITHMS = Pipeline.parse("choose-algorithms")

#: the first ops of a network on a part of the batch after the other, where that lowers the peak of memory
SLICED = Pipeline.parse("slice-batches")

#: what the backward pass of a training step reads stored, and what it computes again
SAVED = Pipeline.parse("choose-saved")

#: graph ops to tensor ops, and what of them is known at compile time
GRAPH_TO_TENSOR = Pipeline.parse("graph-to-tensor, fold-constant-tensors, regular-gathers")

#: tensor ops to kernels with chosen parameters
TENSOR = Pipeline.parse("""
compute-what-is-read,
update-rows,
look-up-sums,
sort-scatters,
chunk-scans,
split-reductions,
fold-channels,
forward-copies,
cse,
dce,
raise-views,
crop-sums,
choose-layouts,
fold-constant-tensors,
drop-unit-dims,
cse,
dce,
split-sums,
join-concats,
fold-constant-tensors,
inline-scalars,
inline-maps,
move-rows-first,
read-moved-rows,
fuse-kernels,
place-concats,
join-recurrences, join-gates,
fuse-attention-backward,
join-column-sums,
chain-kernels{when=auto, only=contract-reduce+reduce-reduce},
chain-tiles{when=auto},
interleave-columns,
chain-products,
store-factors,
arrange-factors,
store-pieces,
pack-masks,
join-product-sums,
join-row-maps,
split-dims,
merge-dims,
pass-parts,
share-kernels,
write-state-apart,
order-kernels,
join-maps,
mark-weights,
choose-parameters,
pack-weights,
dce,
preload-weights,
prefetch-weights
""")

#: passes that decide in ways of their own what is stored and what shares a kernel, by stage: the partitioner
#: `maximal` leaves them out
_OTHER_KERNELS = {
    "graph": ("signs-of-results", "stack-rows"),
    "tensor": (
        "split-reductions",
        "split-sums",
        "inline-maps",
        "move-rows-first",
        "read-moved-rows",
        "join-recurrences",
        "join-gates",
        "fuse-attention-backward",
        "join-column-sums",
        "join-product-sums",
        "join-row-maps",
        "chain-kernels",
        "chain-tiles",
        "interleave-columns",
        "chain-products",
        "join-maps",
    ),
}

#: the first pass of TENSOR that needs the final parameters: before it they may be chosen by measurement
PACKING = "pack-weights"

_THREAD = Pipeline.parse("""
tensor-to-thread,
simplify-thread,
vectorise,
simplify-thread,
excess-precision,
form-erfc,
form-gelu,
thread-dce,
place-barriers
""")

#: kernels to what one thread does, per kernel language: a CPU vectorises arithmetic, a GPU only memory
#: accesses; only launches on a GPU overlap, and the passes for that leave kernels of GPUs that cannot alone
THREAD: Mapping[str, Pipeline] = {
    "cuda": _THREAD.replace("vectorise", "vectorise{max_bytes=16}")
    + Pipeline.parse("load-ahead, delay-stores, overlap-launches, relay-launches"),
    "opencl": _THREAD.replace("vectorise", "vectorise{max_bytes=64, registers=true}"),
}

#: passes that carry out a precision, by stage; they run before what they let later passes fold and fuse, and
#: those of `first` before everything else
PRECISIONS: Mapping[str, Mapping[str, Pipeline]] = {
    "fp32": {"tensor": Pipeline.parse("allow-split")},
    "fp32-strict": {},
    "tf32": {"first": FLOAT8, "tensor": Pipeline.parse("allow-tf32")},
    "fp16": {
        "first": FLOAT8,
        "graph": Pipeline.parse("mixed-precision{dtype=f16}, fold-constants, cse, dce"),
    },
    "bf16": {
        "first": FLOAT8,
        "graph": Pipeline.parse("mixed-precision{dtype=bf16}, fold-constants, cse, dce"),
    },
}

#: how kernels hand on what they make 16-bit numbers of, by precision
_HANDED_ON = {p: Pipeline.parse(f"store-narrow{{dtype={t}}}") for p, t in (("fp16", "f16"), ("bf16", "bf16"))}

#: what a training step passes before all others in precisions whose range needs no loss scale
LOSS_SCALE = Pipeline.parse("fix-loss-scale")

#: passes that tidy up after own passes of the graph level; those of others are followed by the like anyway
OWN_GRAPH_PASSES_END = Pipeline.parse("fold-constants, cse, dce")

#: copies are read through and equal ops are one, before layouts are chosen
_CLEAN = TENSOR.until("choose-layouts").only("forward-copies", "cse", "dce")
_LOWERED = GRAPH_TO_TENSOR.only("graph-to-tensor")
_KERNELS = _CLEAN + TENSOR.only(
    "fuse-kernels", "store-factors", "split-dims", "merge-dims", "choose-parameters"
)
_STORED = _CLEAN + TENSOR.only(
    "join-concats",
    "inline-maps",
    "move-rows-first",
    "read-moved-rows",
    "fuse-kernels",
    "write-state-apart",
    "order-kernels",
)
_PRODUCT = TENSOR.only("split-reductions") + _KERNELS.without("store-factors")

#: kernels of a flat program whose maps are inlined already, cut as those of a network; chains of them apart
_INLINED = TENSOR.only("inline-scalars", "inline-maps", "move-rows-first", "read-moved-rows")
_FUSED = TENSOR.only("drop-unit-dims", "split-sums", "join-concats", "fuse-kernels")
_CHAINED = TENSOR.only("fuse-attention-backward", "chain-kernels")
_LAID_OUT = TENSOR.only("store-factors", "arrange-factors", "split-dims", "merge-dims", "choose-parameters")

#: pipelines for pieces of a network (see `tilewright.passes.estimation`), cut out of the pipelines
#: above: passes that decide whole networks (layouts, chains, weights) are left out.
#: program: tensor ops as kernels with parameters; parts: with long sums cut into parts before.
#: product: a product of graph ops, by precision. stored: kernels without parameters, which say what is
#: stored.
#: kernel: one outlined kernel with parameters. canonical: its dimensions, from which they are chosen.
#: inlined: a flat program without the maps that are computed where they are read. grouped: that as kernels
#: and chains. laid out: with parameters.
ESTIMATES: Mapping[str, Pipeline] = {
    "program": _KERNELS,
    "parts": TENSOR.only("split-reductions") + _KERNELS,
    "product": _LOWERED + _PRODUCT,
    "stored": _STORED,
    "stored of a graph": _LOWERED + _STORED,
    "kernel": TENSOR.only("split-dims", "merge-dims", "choose-parameters"),
    "canonical": TENSOR.only("split-dims", "merge-dims"),
    "inlined": _INLINED,
    "grouped": _FUSED + _CHAINED,
    "laid out": _FUSED + _LAID_OUT,
    "laid out in chains": _FUSED + _CHAINED + _LAID_OUT,
}

#: what float32 factors of products are allowed (the attribute of tensor.contract) in a precision
FACTORS: Mapping[str, str] = {"fp32": "split", "tf32": "tf32"}


def partitioned(pipeline: Pipeline, partitioner: str) -> Pipeline:
    """A pipeline of tensor ops, or part of one, in which this chooses which ops share a kernel."""
    if partitioner == "maximal":
        pipeline = pipeline.without(*(n for n in _OTHER_KERNELS["tensor"] if n in pipeline.names))
    if partitioner == "rules" or "fuse-kernels" not in pipeline.names:
        return pipeline
    widened = "split-viewed-dims, widen-where-read, " if partitioner == "maximal" else ""
    return pipeline.replace("fuse-kernels", f"{widened}fuse-kernels{{partitioner={partitioner}}}")


def estimates(name: str, factors: str = "") -> Pipeline:
    """One of `ESTIMATES` where float32 factors of products are allowed what the attribute says."""
    pipeline = ESTIMATES[name]
    if not factors:
        return pipeline
    allowed = PRECISIONS[next(p for p, known in FACTORS.items() if known == factors)]["tensor"]
    lowered = len(_LOWERED) if pipeline.first(len(_LOWERED)) == _LOWERED else 0
    return pipeline.first(lowered) + allowed + Pipeline(pipeline.passes[lowered:])


@dataclass(frozen=True)
class Stages:
    """The pipeline of each level in turn; that of a level which a module is past, or never reaches, is empty.

    A pass that is named must occur once in all stages together (`until`, `since`, `replace`).
    """

    graph: Pipeline = NOTHING
    tensor: Pipeline = NOTHING
    thread: Pipeline = NOTHING

    def __iter__(self) -> Iterator[tuple[Level, Pipeline]]:
        """The stages that hold passes, by the level of their modules at the end."""
        stages = zip((Level.GRAPH, Level.TENSOR, Level.THREAD), self._each(), strict=True)
        return ((level, pipeline) for level, pipeline in stages if pipeline.passes)

    @property
    def whole(self) -> Pipeline:
        """All passes in order."""
        return self.graph + self.tensor + self.thread

    def down_to(self, level: Level) -> Stages:
        """The stages that end at `level` or above it."""
        levels = list(Level)
        stages = {x.value: p for x, p in self if levels.index(x) <= levels.index(level)}
        return Stages(**stages)

    def until(self, name: str) -> Stages:
        """The passes before the one of this name."""
        return self._cut(name, Pipeline.until, 1)

    def since(self, name: str) -> Stages:
        """The pass of this name and what comes after it."""
        return self._cut(name, Pipeline.since, -1)

    def without(self, *names: str) -> Stages:
        """The stages without the passes of these names, each of which occurs."""
        for name in names:
            self.whole.without(name)  # the sentence on a name that does not occur tells all that do
        return Stages(*(p.without(*(n for n in names if n in p.names)) for p in self._each()))

    def replace(self, name: str, new: Pipeline | str) -> Stages:
        """The stages with `new` in place of the pass of this name."""
        level = self._stage_of(name).value
        return replace(self, **{level: getattr(self, level).replace(name, new)})

    def _each(self) -> tuple[Pipeline, Pipeline, Pipeline]:
        return self.graph, self.tensor, self.thread

    def _cut(self, name: str, cut: Callable[[Pipeline, str], Pipeline], side: int) -> Stages:
        """The stages up to (side 1) or from (side -1) the one with the pass, which itself is cut."""
        place = self._stage_of(name)
        levels = list(Level)
        stages = {
            level.value: cut(pipeline, name) if level is place else pipeline
            for level, pipeline in self
            if side * (levels.index(place) - levels.index(level)) >= 0
        }
        return Stages(**stages)

    def _stage_of(self, name: str) -> Level:
        self.whole.place_of(name)
        return next(level for level, pipeline in self if name in pipeline.names)


def official_stages(
    start: Level,
    language: str,
    precision: str = "fp32",
    conv_algorithm: str = "auto",
    workspace: str = "network",
    partitioner: str = "rules",
    layouts: str = "cut",
    relays: str = "auto",
) -> Stages:
    """The stages for a module whose @main is at level `start`, in a kernel language (`cuda` or `opencl`).

    partitioner: what chooses which ops share a kernel (see the pass fuse-kernels); `maximal` leaves out what
    else decides that (attention as one kernel, sums in parts, values computed again).
    layouts: what chooses the order of dimensions of values (see the pass choose-layouts).
    relays: which launches may start while those before them run (see the pass relay-launches).
    conv_algorithm, workspace: options of `choose-algorithms`; no algorithm leaves the pass out. Where `auto`
    would compare, TF32 keeps convolutions direct: transforms multiply the rounding of their factors.
    Raises UnsupportedError for a precision that is decided on graph ops where there are none any more.
    """
    extra, thread = PRECISIONS[precision], THREAD[language]
    if relays != "auto" and "relay-launches" in thread.names:
        thread = thread.replace("relay-launches", f"relay-launches{{when={relays}}}")
    if start is not Level.GRAPH and "graph" in extra:
        raise UnsupportedError(
            f"precision {precision} is decided on graph ops; @main holds tensor ops already"
        )
    tensor = extra.get("tensor", NOTHING) + TENSOR
    if precision in _HANDED_ON:
        tensor = tensor.until("place-concats") + _HANDED_ON[precision] + tensor.since("place-concats")
    tensor = partitioned(tensor, partitioner)
    if layouts != "cut":
        by = ", partitioner=maximal" if partitioner == "maximal" else ""
        tensor = tensor.replace("choose-layouts", f"choose-layouts{{method={layouts}{by}}}")
    if start is not Level.GRAPH:
        return Stages(tensor=tensor, thread=thread)
    expanded, products, sliced, saved = EXPANDED, PRODUCTS, SLICED, SAVED
    if factors := FACTORS.get(precision, ""):
        expanded = expanded.replace("expand-attention", f"expand-attention{{factors={factors}}}")
        products = products.replace("stack-rows", f"stack-rows{{factors={factors}}}")
        products = products.replace("merge-products", f"merge-products{{factors={factors}}}")
        products = products.replace("join-groups", f"join-groups{{factors={factors}}}")
        sliced = sliced.replace("slice-batches", f"slice-batches{{factors={factors}}}")
        saved = saved.replace("choose-saved", f"choose-saved{{factors={factors}}}")
    if partitioner == "maximal":
        expanded = Pipeline.parse("expand-attention{always=true}, expand-norms, fold-constants, cse, dce")
        products = products.without(*_OTHER_KERNELS["graph"])
        sliced, saved = NOTHING, NOTHING
    graph = extra.get("first", NOTHING) + GRAPH + extra.get("graph", NOTHING) + expanded + products
    if conv_algorithm:
        graph += _algorithms(precision, conv_algorithm, workspace)
    graph += sliced + saved
    return Stages(graph, GRAPH_TO_TENSOR + tensor, thread)


def _algorithms(precision: str, conv_algorithm: str, workspace: str) -> Pipeline:
    if conv_algorithm == "auto" and precision == "tf32":
        conv_algorithm = "direct"
    if conv_algorithm != "auto":
        return ALGORITHMS.replace("choose-algorithms", f"choose-algorithms{{algorithm={conv_algorithm}}}")
    return compared_algorithms(workspace, FACTORS.get(precision, ""))


def compared_algorithms(workspace: str, factors: str) -> Pipeline:
    """The choice of algorithms by estimates; what the pass does by itself is not said.

    workspace: as of `choose-algorithms`; factors: what float32 factors of products will be allowed.
    """
    options = [f"workspace={workspace}"] if workspace != "network" else []
    options += [f"factors={factors}"] if factors else []
    text = f"choose-algorithms{{{', '.join(options)}}}" if options else "choose-algorithms"
    return ALGORITHMS.replace("choose-algorithms", text)


def around_own_passes(level: Level, pipeline: Pipeline) -> tuple[Pipeline, Pipeline]:
    """The parts of a stage's pipeline before and after the own passes of its level.

    graph: after the clean-up (batch norms and scales folded), before precision and algorithms are decided.
    tensor: right after lowering, before anything is cut into kernels. thread: after simplification and
    vectorisation, before barriers are placed for the code they leave.
    """
    if level is Level.THREAD:
        return pipeline.until("place-barriers"), pipeline.since("place-barriers")
    ways = (GRAPH, FLOAT8 + GRAPH) if level is Level.GRAPH else (GRAPH_TO_TENSOR,)
    # of none the module is past it
    first = next((way for way in ways if pipeline.first(len(way)) == way), NOTHING)
    return first, Pipeline(pipeline.passes[len(first) :])
