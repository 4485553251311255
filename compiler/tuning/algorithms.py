"""Choice by measurement: the algorithms of every convolution are timed, equal convolutions once."""

from __future__ import annotations

import sys
from collections.abc import Hashable
from dataclasses import dataclass, replace

from tqdm import tqdm

from tilewright.ir import Block, Builder, Module, Op, Pairs
from tilewright.ir.nodes import Attr
from tilewright.libraries.choice import with_faster_libraries
from tilewright.measuring.budget import Budget
from tilewright.measuring.measurer import Measurer, RandomConstants
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.analysis.convolution_algorithms import OBSTACLES, obstacle_to
from tilewright.passes.analysis.memory_headroom import MemoryHeadroom, headroom_of
from tilewright.passes.estimation.algorithms import Alternative
from tilewright.passes.estimation.convolution_layers import Layer, layers_of
from tilewright.passes.graph.products.choose_algorithms import with_algorithms
from tilewright.passes.pipelines import compared_algorithms
from tilewright.tuning.report import check_program

#: of what is left of the budget, what comparing one convolution with libraries may take
LIBRARY_SHARE = 0.1


@dataclass(frozen=True)
class TimedAlgorithm:
    """An algorithm of a convolution, in seconds; `measured_s` is None where its bound said enough."""

    algorithm: str
    estimate_s: float
    bound_s: float
    measured_s: float | None = None


def measured_algorithms(
    module: Module,
    measurer: Measurer,
    *,
    progress: bool | None = None,
    workspace: str = "network",
    budget: Budget | None = None,
    libraries: bool = False,
    factors: str = "",
) -> Module:
    """The module with the fastest measured algorithm on every direct graph.conv2d.

    module: graph level, types inferred. Of each convolution, with the ops behind it that its kernels take
    along, the legal algorithms are timed in the order of their estimates with the parameters that the model
    chooses. An alternative is left out where its lower bound is above the best time so far, or where it would
    raise the network's peak of memory (see `memory_headroom`); direct never is. Once the budget is spent,
    what is not known is chosen by estimate.
    libraries: whether library kernels may take the place of generated ones; direct is timed with them too,
        since they compute no other algorithm's kernels.
    factors: what float32 factors of products will be allowed.
    What was measured stands in the attribute `convolutions` of @main, with the convolutions counted from 0 in
    program order.
    """
    layers = {i: x for i, x in enumerate(layers_of(module.main)) if len(_legal(x.conv)) > 1}
    if not layers:
        return module
    distinct = {layer.key: layer for layer in layers.values()}
    context = PassContext(target=str(measurer.target), hardware=measurer.target.hardware)
    limit = budget or Budget()
    headroom = headroom_of(module.main, context) if workspace == "network" else None
    hidden = not (sys.stderr.isatty() if progress is None else progress)
    timed: dict[Hashable, list[TimedAlgorithm]] = {}
    for key, layer in tqdm(
        distinct.items(), desc="measuring", unit="convolution", file=sys.stderr, disable=hidden
    ):
        timed[key] = _timed(layer, measurer, headroom, limit, libraries, factors)
    main = module.main
    chosen = {layer.conv: _fastest(timed[layer.key]) for layer in layers.values()}
    if not all(chosen.values()):
        by_model = _modelled(module, context, workspace, factors)
        chosen = {conv: name or by_model[conv] for conv, name in chosen.items()}
    at = {key: tuple(i for i, x in layers.items() if x.key == key) for key in distinct}
    record = tuple(_on_record(at[key], rows) for key, rows in timed.items())
    new = with_algorithms(main, chosen).with_attrs(convolutions=record)
    return module.with_funcs(tuple(new if f is main else f for f in module.funcs))


def _legal(conv: Op) -> list[str]:
    """Algorithms to compare, direct first; only itself where another one is named already."""
    named = str(conv["algorithm"])
    return [named, *(a for a in OBSTACLES if named == "direct" and not obstacle_to(a, conv))]


def _timed(
    layer: Layer,
    measurer: Measurer,
    headroom: MemoryHeadroom | None,
    budget: Budget,
    libraries: bool,
    factors: str,
) -> list[TimedAlgorithm]:
    hardware = measurer.target.hardware
    legal = {name: layer.by(name, hardware, factors) for name in _legal(layer.conv)}
    fitting = {
        name: a
        for name, a in legal.items()
        if name == "direct" or headroom is None or headroom.fits(layer.conv, a.working_bytes())
    }
    rows = [TimedAlgorithm(name, a.estimate_s(), a.bound_s(hardware)) for name, a in fitting.items()]
    best = float("inf")
    for i in sorted(range(len(rows)), key=lambda i: rows[i].estimate_s):
        row = rows[i]
        if row.algorithm == "direct" or row.bound_s < best:
            program = _program(fitting[row.algorithm])
            seconds = _seconds(program, measurer, budget)
            if seconds is None:  # the others alone decide nothing
                return [replace(r, measured_s=None) for r in rows]
            check_program(f"{row.algorithm} of {layer.conv.loc}", seconds, row.bound_s, measurer.target)
            if row.algorithm == "direct" and libraries:
                faster = with_faster_libraries(program, measurer, budget.share(LIBRARY_SHARE))
                with_libraries = _seconds(faster, measurer, budget)
                seconds = seconds if with_libraries is None else min(seconds, with_libraries)
            rows[i] = replace(row, measured_s=seconds)
            best = min(best, seconds)
    return rows


def _seconds(module: Module, measurer: Measurer, budget: Budget) -> float | None:
    """Seconds of a program; once the budget is spent, None where they are not known."""
    if budget.over:
        return measurer.known(measurer.program(module))
    (seconds,) = measurer.seconds([module])
    return seconds


def _fastest(rows: list[TimedAlgorithm]) -> str:
    """The algorithm of the least measured time; empty where the budget left nothing to go by."""
    if all(r.measured_s is None for r in rows):
        return ""
    return min(rows, key=lambda r: float("inf") if r.measured_s is None else r.measured_s).algorithm


def _modelled(module: Module, context: PassContext, workspace: str, factors: str) -> dict[Op, str]:
    """The algorithm that the cost model takes for every convolution."""
    new = run_pipeline(module, compared_algorithms(workspace, factors), context).main.body.ops
    pairs = zip(module.main.body.ops, new, strict=True)
    return {old: str(op["algorithm"]) for old, op in pairs if old.name == "graph.conv2d"}


def _program(a: Alternative) -> Module:
    """The kernels with random arrays for what is known at compile time."""
    main = a.module.main
    inputs = main.params[: len(main.params) - a.known]
    b = Builder("measured")
    constants = RandomConstants()
    fresh = {p: constants.constant(b, p.tensor) for p in main.params[len(inputs) :]}
    calls = tuple(op.with_operands(tuple(fresh.get(v, v) for v in op.operands)) for op in main.body.ops)
    new = main.with_body(Block(inputs, (*b.ops, *calls)))
    return constants.of(a.module.with_funcs(tuple(new if f is main else f for f in a.module.funcs)))


def _on_record(at: tuple[int, ...], rows: list[TimedAlgorithm]) -> Pairs:
    considered: list[Attr] = []
    for r in rows:
        row: dict[str, Attr] = {"algorithm": r.algorithm, "estimate_s": r.estimate_s, "bound_s": r.bound_s}
        considered.append(Pairs.of({**row, "measured_s": r.measured_s}))
    return Pairs.of({"at": at, "considered": tuple(considered)})
