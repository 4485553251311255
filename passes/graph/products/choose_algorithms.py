"""Pass choose-algorithms: how each convolution is computed, by the cost model or as told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tilewright.costmodel import Hardware, load_hardware
from tilewright.ir import Func, InputError, Level, Op
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.convolution_algorithms import obstacle_to
from tilewright.passes.analysis.memory_headroom import MemoryHeadroom, headroom_of
from tilewright.passes.framework.context import Estimator

#: algorithms beside direct sums, the most accurate first; each is preferred to more accurate ones where its
#: estimate is at most this share of theirs: that of direct sums, the least of the most points, is rather low
ALTERNATIVES = {"fft": 1.0, "winograd2": 1.0, "winograd4": 0.8}
#: dtypes the model compares in: 16-bit floats lose more in transforms than they gain
COMPARED = frozenset({"f32", "f64"})
#: taps from which the FFT is compared: estimates of the small products that fewer taps give are too low
FFT_TAPS = 25


@register_pass(Level.GRAPH, requires={"shapes-known"})
def choose_algorithms(
    func: Func,
    ctx: PassContext,
    *,
    algorithm: Literal["auto", "direct", "winograd2", "winograd4", "fft"] = "auto",
    at: str = "",
    workspace: Literal["network", "any"] = "network",
    factors: Literal["", "tf32", "split"] = "",
) -> Func:
    """Name the algorithm of every direct conv2d: by the cost model, or the given one.

    rewrite:  graph.conv2d(%x, %w, algorithm = "direct")   -->   graph.conv2d(%x, %w, algorithm = "winograd4")

    `auto` leaves a convolution direct unless the kernels of an alternative, transforms included, are
    estimated to take no longer, and takes winograd4, whose errors are ten times larger, only for 80 % of the
    time; it compares the FFT for kernels of 25 taps and more. With `workspace=network` an
    alternative must fit beside what other kernels hold into the peak that the network has without it (see
    `memory_headroom`), so that transforms do not set the peak. A given
    algorithm is used wherever it is legal; how many convolutions it is not legal for stands in the function's
    attribute `kept_direct`. `at` restricts the pass to ops of one origin (`relay:nn.conv2d#3`); there, an
    algorithm that is not legal is an InputError. factors: what float32 factors will be allowed (passes
    `allow-tf32` and `allow-split`), which the estimates are to know.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    constants = {op.result for op in func.body.ops if op.name == "graph.constant"}
    headroom = (
        headroom_of(func, ctx) if workspace == "network" and algorithm == "auto" and _any(func) else None
    )
    chosen: dict[Op, str] = {}
    kept = 0
    for op in func.body.ops:
        if op.name != "graph.conv2d" or (at and op.loc != at):
            continue
        if algorithm == "auto":
            chosen[op] = _best(
                op,
                ctx.estimator,
                hardware,
                headroom,
                constant_weight=op.operands[1] in constants,
                factors=factors,
            )
        elif reason := obstacle_to(algorithm, op):
            if at:
                raise InputError(f"{algorithm} cannot compute this convolution: {reason}", where=op.loc)
            kept += 1
        else:
            chosen[op] = algorithm
    if at and not chosen:
        raise InputError(f"expected a graph.conv2d of origin '{at}' in @{func.name}")
    out = with_algorithms(func, chosen)
    return out.with_attrs(kept_direct=kept) if kept and out.get("kept_direct") != kept else out


def _any(func: Func) -> bool:
    """Return True where any convolution has algorithms to compare."""
    return any(op.name == "graph.conv2d" and compared(op) for op in func.body.ops)


def _best(
    op: Op,
    estimator: Estimator,
    hardware: Hardware,
    headroom: MemoryHeadroom | None,
    *,
    constant_weight: bool,
    factors: str,
) -> str:
    """The most accurate algorithm that no other one is clearly faster than. What is named already stays."""
    names = compared(op)
    if not names:
        return str(op["algorithm"])
    costs = {
        name: estimator.algorithm_cost(op, name, hardware, constant_weight=constant_weight, factors=factors)
        for name in names
    }
    best = names[0]
    for name in names[1:]:
        fits = headroom is None or headroom.fits(op, costs[name].working_bytes)
        if fits and costs[name].seconds <= ALTERNATIVES[name] * costs[best].seconds:
            best = name
    return best


def compared(op: Op) -> tuple[str, ...]:
    """Algorithms whose estimates `auto` compares, the most accurate first; none where one is named."""
    if op["algorithm"] != "direct" or op.operands[0].tensor.dtype not in COMPARED:
        return ()
    names = [name for name in ALTERNATIVES if name != "fft" or _taps(op) >= FFT_TAPS]
    legal = [name for name in names if not obstacle_to(name, op)]
    return ("direct", *legal) if legal else ()


def _taps(op: Op) -> int:
    extents = dict(zip(str(op["kernel_layout"]), op.operands[1].tensor.shape, strict=True))
    return extents["H"] * extents["W"]


def with_algorithms(func: Func, chosen: Mapping[Op, str]) -> Func:
    """The function with the chosen algorithms named on its convolutions."""
    ops = tuple(
        op.with_attrs(algorithm=chosen[op]) if op in chosen and op["algorithm"] != chosen[op] else op
        for op in func.body.ops
    )
    return func.with_body(func.body.with_ops(ops))
