"""The default pipelines as data: text that is parsed, printed, hashed into cache keys and order-checked."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.choices import PARTITIONER
from tilewright.ir import Level, UnsupportedError

#: Relay-level clean-up and algebra on the graph
GRAPH = """
infer-shapes,
decompose-octave,
fold-batch-norm,
fold-scale-axis,
fold-constants,
cse,
dce
"""

#: how each convolution is computed; the option names an algorithm for all that it is legal for
ALGORITHMS = "choose-algorithms{OPTION}"

#: what follows products in their own dimensions; products with constants on one input as one product: the
#: option says what its estimates are to know
PRODUCTS = "sink-reshapes, merge-products{OPTION}"

#: graph ops to tensor ops, and what of them is known at compile time
GRAPH_TO_TENSOR = "graph-to-tensor, fold-constant-tensors"

#: tensor ops to kernels with chosen parameters
TENSOR = """
sort-scatters,
chunk-scans,
split-reductions,
fold-channels,
forward-copies,
cse,
dce,
choose-layouts,
fold-constant-tensors,
drop-unit-dims,
cse,
dce,
join-concats,
fold-constant-tensors,
inline-scalars,
fuse-kernels{FUSION},
place-concats,
chain-kernels{when=auto, only=contract-reduce+reduce-reduce},
store-factors,
split-dims,
merge-dims,
share-kernels,
mark-weights,
choose-parameters,
pack-weights,
dce,
prefetch-weights
"""

#: the pass of TENSOR that needs the final parameters
PACKING = "pack-weights"

#: kernels to what one thread does
THREAD = """
tensor-to-thread,
simplify-thread,
vectorise{VECTORISE},
simplify-thread,
excess-precision,
thread-dce,
place-barriers
{OVERLAP}
"""

#: options of `vectorise` per kernel language: a CPU vectorises arithmetic, a GPU only memory accesses
VECTORISE = {"cuda": "{max_bytes=16}", "opencl": "{max_bytes=64, registers=true}"}

#: what ends THREAD per kernel language; the pass itself leaves kernels of GPUs that cannot alone
OVERLAP = {"cuda": ", delay-stores, overlap-launches", "opencl": ""}


#: passes that carry out a precision, by stage; they run before what they let later passes fold and fuse
PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "fp32": {},
    "tf32": {"tensor": "allow-tf32"},
    "fp16": {"graph": "mixed-precision{dtype=f16}, fold-constants, cse, dce"},
    "bf16": {"graph": "mixed-precision{dtype=bf16}, fold-constants, cse, dce"},
}


def stage_texts(
    start: Level,
    language: str,
    precision: str = "fp32",
    conv_algorithm: str = "auto",
    workspace: str = "network",
    partitioner: str = PARTITIONER,
) -> dict[str, str]:
    """The pipeline of each stage (graph, tensor, thread) for a module whose @main is at level `start`.

    partitioner: what chooses which ops share a kernel (see the pass fuse-kernels).
    conv_algorithm, workspace: options of `choose-algorithms`; no algorithm leaves the pass out. Where `auto`
    would compare, TF32 keeps convolutions direct: transforms multiply the rounding of their factors.
    """
    thread = THREAD.replace("{VECTORISE}", VECTORISE[language]).replace("{OVERLAP}", OVERLAP[language])
    extra = PRECISIONS[precision]
    if start is not Level.GRAPH and "graph" in extra:
        raise UnsupportedError(
            f"precision {precision} is decided on graph ops; @main holds tensor ops already"
        )
    fusion = "" if partitioner == PARTITIONER else f"{{partitioner={partitioner}}}"
    tensor = ", ".join(filter(None, (extra.get("tensor"), TENSOR.replace("{FUSION}", fusion))))
    if start is Level.GRAPH:
        auto = "" if precision != "tf32" else "{algorithm=direct}"
        free = auto or ("" if workspace == "network" else f"{{workspace={workspace}}}")
        option = free if conv_algorithm == "auto" else f"{{algorithm={conv_algorithm}}}"
        chosen = ALGORITHMS.replace("{OPTION}", option) if conv_algorithm else ""
        products = PRODUCTS.replace("{OPTION}", "{tf32=true}" if precision == "tf32" else "")
        graph = ", ".join(filter(None, (GRAPH, extra.get("graph"), products, chosen)))
        stages = {"graph": graph, "tensor": f"{GRAPH_TO_TENSOR}, {tensor}", "thread": thread}
    else:
        stages = {"graph": "", "tensor": tensor, "thread": thread}
    return {k: " ".join(v.split()) for k, v in stages.items()}


#: what tidies up after own passes of the graph level; those of others are followed by the like anyway
OWN_GRAPH_PASSES_END = "fold-constants, cse, dce"

#: the pass before which own passes of the thread level run: barriers are placed for the code they leave
_BARRIERS = "place-barriers"


def own_point(stage: str, text: str) -> int:
    """Where in the pipeline text of a stage own passes run.

    graph: after the clean-up (batch norms and scales folded), before precision and algorithms are decided.
    tensor: right after lowering, before anything is cut into kernels. thread: after simplification and
    vectorisation, before barriers are placed.
    """
    if stage == Level.GRAPH.value:
        return len(" ".join(GRAPH.split()))
    if stage == Level.TENSOR.value:
        return len(GRAPH_TO_TENSOR) if text.startswith(GRAPH_TO_TENSOR) else 0
    return text.index(_BARRIERS)


def pipeline_text(level: str, language: str = "opencl") -> str:
    """The whole pipeline from the graph level down to `level` (graph, tensor or thread) as one line."""
    names = ("graph", "tensor", "thread")
    stages = stage_texts(Level.GRAPH, language)
    return ", ".join(stages[n] for n in names[: names.index(level) + 1])
