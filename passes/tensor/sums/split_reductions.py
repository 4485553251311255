"""Pass split-reductions: products of few results over long sums are cut into parts for more blocks."""

from __future__ import annotations

from math import inf

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import Block, Builder, Level, Module, Op, Sym, Type, Value, scalar_body
from tilewright.ir.nodes import Attr
from tilewright.ir.tensor.ops import dims, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import sums_samples
from tilewright.passes.analysis.memory_headroom import MemoryHeadroom, headroom_of_products
from tilewright.passes.framework.context import Estimator
from tilewright.passes.kernels.matrix.reduction_parts import (
    channel_of,
    innermost_channels,
    matrix_estimates,
    shares_sums,
    split,
    split_along,
    sums_products,
)

#: parts to compare
PARTS = (2, 3, 4, 6, 8)
#: dtypes of sums, and so of parts: nothing is rounded to 16 bits before all parts are added
EXACT = frozenset({"f32", "f64"})
#: the shortest sum that is left to a part
SHORTEST = 32
#: most parts of a sum over samples and windows
MAX_PARTS = 64
#: a split must be estimated to take at most this share of the whole product: what adds the parts waits for
#: all of them, which takes longer than the boundary that the estimate of a launch has
GAIN = 0.75
#: the same where the whole product's blocks share sums, which saves as much but was never measured
SHARED_GAIN = 1.1


@register_pass(Level.TENSOR)
def split_reductions(module: Module, ctx: PassContext) -> Module:
    """Compute parts of long sums side by side and add them.

    rewrite:  %y = tensor.contract(%x, %w, par = (k, y), red = (c: 512), reads = [[c, y], [k, c]])
        -->   %v = tensor.map(%w, par = (k, part: 4, c: 128), reads = [[k, part * 128 + c]]);
              %p = tensor.contract(%x, %v, par = (part: 4, k, y), red = (c: 128),
                                   reads = [[part * 128 + c, y], [k, part, c]]);
              %y = tensor.map(%p, %p, %p, %p, par = (k, y), reads = [[0, k, y], [1, k, y], ...]) {add}

    Gradients by weights, which sum over samples and windows, are cut along samples or rows of windows: the
    kernel keeps its own dimension whole.

    Where the cost model says that it takes less time, also than blocks of one kernel that share sums, on
    GPUs: there, a product of few results has few blocks, and each waits for a long chain of loads. Sums of
    16-bit factors are float32, and so are their parts: the rounding of the result, like the rest of an
    epilogue, is of the kernel that adds them. The parts' results must fit beside what other kernels hold into
    the peak that the network has without them (see `memory_headroom`).
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    main = module.main
    if isinstance(hardware, CpuHardware) or any(op.name == "tensor.call" for op in main.body.ops):
        return module
    options = {op: found for op in main.body.ops if (found := _options(op))}
    samples = {op for op in main.body.ops if sums_samples(op) and _sums_exactly(op)}
    if not options and not samples:
        return module
    headroom = headroom_of_products(main, ctx)
    b = Builder()
    env: dict[Value, Value] = {}
    for op in main.body.ops:
        fresh = op.with_operands(tuple(env.get(v, v) for v in op.operands))
        parts, cut = 1, None
        if op in samples:
            cut = _best_cut(op, headroom, hardware, ctx.estimator)
        elif op in options:
            parts = _best_parts(op, options[op], headroom, hardware, ctx.estimator)
        if cut is not None:
            with b.at(op.loc):
                env[op.result] = split_along(fresh, b, *cut)
        elif parts > 1:
            with b.at(op.loc):
                env[op.result] = split(fresh, b, parts)
        else:
            b.append(fresh)
    if not env:
        return module
    new = main.with_body(main.body.with_ops(tuple(b.ops)))
    return module.with_funcs(tuple(new if f is main else f for f in module.funcs))


def _options(op: Op) -> tuple[int, ...]:
    """Numbers of parts that a product could be cut into; none for other ops."""
    if not _sums_exactly(op) or sums_samples(op):
        return ()
    channel = channel_of(op)
    length = dims(op, "red").get(channel, 0)
    return tuple(p for p in PARTS if length % p == 0 and length // p >= SHORTEST)


def _sums_exactly(op: Op) -> bool:
    """Return whether an op sums products of two factors in a dtype that parts of the sum may be stored in."""
    if op.name != "tensor.contract" or len(op.operands) != 2 or op.body is None:
        return False
    return op.result.tensor.dtype in EXACT and sums_products(op)


#: a reduced dimension, and into how many parts it is cut
_Cut = tuple[str, int]


def _best_cut(op: Op, headroom: MemoryHeadroom, hardware: Hardware, estimator: Estimator) -> _Cut | None:
    """The cut of a sum over samples and windows that takes the least time; None where none gains enough.

    Numbers of parts that divide one of the two outer dimensions are compared, as long as all parts together
    are smaller than the factors: storing more than is read gains nothing.
    """
    signature = _signature(op)
    best: _Cut | None = None
    least = _gain(op, hardware, estimator) * _seconds(signature, None, hardware, estimator)
    red, part_bytes = dims(op, "red"), op.result.tensor.nbytes
    most = sum(v.tensor.nbytes for v in op.operands) // max(1, part_bytes)
    for d in [d for d in red if Sym(d) in reads(op)[0] and red[d] > 1][:2]:
        for parts in (p for p in range(2, min(red[d], MAX_PARTS, most) + 1) if red[d] % p == 0):
            if not headroom.fits(op, parts * part_bytes):
                break
            seconds = _seconds(signature, (d, parts), hardware, estimator)
            if seconds < least:
                best, least = (d, parts), seconds
    return best


def _best_parts(
    op: Op, options: tuple[int, ...], headroom: MemoryHeadroom, hardware: Hardware, estimator: Estimator
) -> int:
    x, y = op.operands[0].tensor, op.result.tensor
    best, least = 1, 0.0
    for parts in _likely(op, options, hardware, estimator):
        if not headroom.fits(op, x.nbytes + parts * y.nbytes):
            break
        if best == 1 and least == 0.0:
            gain = _gain(op, hardware, estimator)
            least = gain * _seconds(_signature(op), None, hardware, estimator)
        seconds = _seconds(_signature(op), ("", parts), hardware, estimator)
        if seconds < least:
            best, least = parts, seconds
    return best


def _likely(op: Op, options: tuple[int, ...], hardware: Hardware, estimator: Estimator) -> tuple[int, ...]:
    """The options that the model of the tensor cores alone leaves; all where they cannot compute it."""
    signature, gain = _signature(op), _gain(op, hardware, estimator)
    estimates = estimator.remembered(
        ("parts on tensor cores", signature, options, hardware),
        lambda: matrix_estimates(_product(*signature), (1, *options), hardware, share=gain),
    )
    return tuple(p for p in options if not estimates or estimates.get(p, inf) < gain * estimates[1])


def _gain(op: Op, hardware: Hardware, estimator: Estimator) -> float:
    """The share of the whole product's time that a split may take at most."""
    signature = _signature(op)
    shared = estimator.remembered(
        ("shared sums", signature, hardware), lambda: shares_sums(_product(*signature), hardware)
    )
    return SHARED_GAIN if shared else GAIN


#: types of the operands, attributes, type of the result
_Signature = tuple[tuple[Type, ...], tuple[tuple[str, Attr], ...], Type]


def _signature(op: Op) -> _Signature:
    """Equal for products that take the same time."""
    return tuple(v.type for v in op.operands), op.attrs, op.result.type


def _seconds(signature: _Signature, cut: _Cut | None, hardware: Hardware, estimator: Estimator) -> float:
    """Seconds of a product and, if it is cut, of adding its parts, by the model.

    cut: of the dimension named, or of the longest plain sum where none is.
    """

    def answer() -> float:
        op = _product(*signature)
        b = Builder()
        out = op.result
        if cut is None:
            b.append(op)
        else:
            out = split_along(op, b, *cut) if cut[0] else split(op, b, cut[1])
        b.do("tensor.return", out)
        return estimator.program_s(op.operands, b.ops, hardware)

    return estimator.remembered(("split product", signature, cut, hardware), answer)


def _product(types: tuple[Type, ...], attrs: tuple[tuple[str, Attr], ...], result: Type) -> Op:
    """A product of that signature, in the layout that it will have."""
    factors = tuple(Value(t, "x") for t in types)
    op = Op("tensor.contract", factors, attrs, (Value(result),), _fma(factors[0], Value(result)))
    return innermost_channels(op)


def _fma(factor: Value, total: Value) -> Block:
    narrow, wide = factor.tensor.dtype, total.tensor.dtype
    body, (x, w, s) = scalar_body([narrow, narrow, wide])
    body.do("scalar.yield", body.value("scalar.fma", body.cast(x, wide), body.cast(w, wide), s))
    return body.block((x, w, s))
