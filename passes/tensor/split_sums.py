"""Pass split-sums: sums of few results over many samples are cut into parts for more blocks."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import Builder, Func, Level, Op, Value
from tilewright.ir.hardware_facts import SECTOR_BYTES
from tilewright.ir.tensor.ops import dims
from tilewright.passes import PassContext, register_pass
from tilewright.passes.framework.context import Estimator
from tilewright.passes.kernels.matrix.reduction_parts import split_along

#: dtypes of sums, and so of parts: nothing is rounded to 16 bits before all parts are added
EXACT = frozenset({"f32", "f64"})
#: elements from which a sum is long: over the samples and the pixels of images, and over other dimensions
LONG_OVER_SAMPLES, LONG = 1 << 11, 1 << 14
#: numbers of parts to compare, or the next smaller ones that divide a dimension
PARTS = (4, 16, 64)
#: cut sums must be estimated to take at most this share of the whole ones
GAIN = 0.8

#: a reduced dimension, and into how many parts it is cut
Cut = tuple[str, int]


@register_pass(Level.TENSOR)
def split_sums(func: Func, ctx: PassContext) -> Func:
    """Compute parts of long sums side by side and add them.

    rewrite:  %y = tensor.reduce(%x, par = (c), red = (n: 64, p), reads = [[n, p, c]]) {add}
        -->   %s = tensor.reduce(%x, par = (part: 16, c), red = (n: 4, p),
                                 reads = [[part * 4 + n, p, c]]) {add};
              %y = tensor.reduce(%s, par = (c), red = (part: 16), reads = [[part, c]]) {add}

    Where the cost model says that it takes less time, on GPUs: moments of batches, gradients by biases and
    losses have few results, and so few blocks, each of which reads for long.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    kernels = func.name != "main" or any(op.name == "tensor.call" for op in func.body.ops)
    if isinstance(hardware, CpuHardware) or kernels:
        return func
    b = Builder()
    env: dict[Value, Value] = {}
    for op in func.body.ops:
        cut = _best_cut(op, hardware, ctx.estimator) if _is_long_sum(op) else None
        fresh = op.with_operands(tuple(env.get(v, v) for v in op.operands))
        if cut is None:
            b.append(fresh)
        else:
            with b.at(op.loc):
                env[op.result] = split_along(fresh, b, *cut)
    return func.with_body(func.body.with_ops(tuple(b.ops))) if env else func


def _is_long_sum(op: Op) -> bool:
    """Return whether an op adds many values to each of its results, from 0 on."""
    if op.name != "tensor.reduce" or len(op.results) != 1 or op.body is None or not op.operands:
        return False
    if op.result.tensor.dtype not in EXACT or op["init"] != (0.0,):
        return False
    extents = [n for n in dims(op, "red").values() if n > 1]
    return prod(extents) >= (LONG_OVER_SAMPLES if len(extents) > 2 else LONG) and _adds(op)


def _adds(op: Op) -> bool:
    """Return whether the accumulator is read once, by the addition that is yielded."""
    assert op.body is not None
    *inner, last = op.body.ops
    acc = op.body.params[-1]
    if not inner or last.operands != inner[-1].results:
        return False
    readers = [o for o in op.body.ops for v in o.operands if v is acc]
    place = {"scalar.add": (0, 1), "scalar.fma": (2,)}.get(inner[-1].name, ())
    return readers == [inner[-1]] and any(inner[-1].operands[k] is acc for k in place)


def _cuts(op: Op) -> Iterator[Cut]:
    """Cuts of the two outer dimensions that leave parts smaller than what is read.

    Also the innermost one in as many parts as it has elements, where results are fewer than a sector holds:
    side by side, those of all its elements are read in vectors.
    """
    red, part_bytes = dims(op, "red"), op.result.tensor.nbytes
    most = max(v.tensor.nbytes for v in op.operands) // max(1, 2 * part_bytes)
    for d in [d for d, n in red.items() if n > 1][:2]:
        divisors = [p for p in range(2, min(red[d], max(PARTS), most) + 1) if red[d] % p == 0]
        best = (max((p for p in divisors if p <= count), default=1) for count in PARTS)
        yield from ((d, p) for p in dict.fromkeys(best) if p > 1)
    inner = [d for d, n in red.items() if n > 1][-1]
    if part_bytes < SECTOR_BYTES and 1 < red[inner] <= most:
        yield inner, red[inner]


def _best_cut(op: Op, hardware: Hardware, estimator: Estimator) -> Cut | None:
    """The cut that takes the least time by the model; None where none gains enough."""
    assert op.body is not None
    names = tuple(o.name for o in op.body.ops)
    key = tuple(v.type for v in op.operands), op.attrs, op.result.type, names

    def seconds(cut: Cut | None) -> float:
        def answer() -> float:
            alone = op.with_operands(tuple(Value(v.type, "x") for v in op.operands))
            b = Builder()
            if cut is None:
                b.append(alone)
            b.do("tensor.return", alone.result if cut is None else split_along(alone, b, *cut))
            return estimator.program_s(alone.operands, b.ops, hardware)

        return estimator.remembered(("split sum", key, cut, hardware), answer)

    best, least = None, GAIN * seconds(None)
    for cut in _cuts(op):
        if seconds(cut) < least:
            best, least = cut, seconds(cut)
    return best
