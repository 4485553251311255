"""Factors that a CPU's contractions would pad or compute for every tile become arrays of their own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from tilewright.costmodel import CpuHardware, load_hardware
from tilewright.ir import (
    Block,
    Builder,
    Expr,
    Func,
    Level,
    Module,
    Op,
    Ref,
    Sym,
    TensorType,
    Value,
    backward_slice,
)
from tilewright.ir.hardware_facts import CPU_LINE_BYTES
from tilewright.ir.simplify import interval, simplify
from tilewright.ir.tensor.ops import dims, domain, fills, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.copies import copied
from tilewright.passes.analysis.index_sets import POINTWISE, index_step
from tilewright.passes.kernels.kernel_problem import contract_roles
from tilewright.passes.rewriting.values import copied_ops, needed
from tilewright.passes.tensor.fusion.outline_kernel import kernel_name

#: columns of the tile that one work-item computes at most, for which it would make its factor again
TILE_COLUMNS = 64
#: rows that lie a multiple of this many bytes apart share a few sets of the first-level cache (64 sets of
#: lines on x86-64), which then holds fewer of them than a window needs: on Zen 4, 3x3 convolutions of 512
#: channels ran at 30 GFLOP/s a core, and with one line more between rows at 85
SAME_SET_BYTES = 1024


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def store_factors(
    module: Module, ctx: PassContext, *, when: Literal["auto", "always", "never"] = "auto"
) -> Module:
    """Let a kernel before it pad and compute the factors of a contraction, where its tiles would do so anew.

    rewrite:  call(%x, callee = @conv), whose tensor.contract reads %x at [c, y + r - 1] with fill = 0
        -->   %p = call(%x, callee = @conv_factor): the padded copy of %x; call(%p, callee = @conv),
              whose tensor.contract reads %p at [c, y + r]

    Of state, which no pass can store in another order beforehand, what a product reads with its columns apart
    becomes a copy with its columns side by side: rows of it are vectors then.

    Of a factor that is read in steps, as of a 1x1 convolution with strides, what is read becomes dense.

    A work-item of a CPU has no others to share such a tile with, and bounds checks leave its vectors empty.
    With `auto` factors stay where making them for all tiles takes less time than one more launch, and GPUs
    keep all of theirs.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or (when == "auto" and not isinstance(hardware, CpuHardware)):
        return module
    judge = hardware if when == "auto" and isinstance(hardware, CpuHardware) else None
    taken = {f.name for f in module.funcs}
    splits: dict[str, _Split] = {}
    for kernel in module.funcs:
        state = _given_state(module.main, kernel.name) if kernel.name != "main" else frozenset()
        if kernel.name != "main" and (split := _split(kernel, judge, taken, state)) is not None:
            splits[kernel.name] = split
    if not splits:
        return module
    main = _redirected(module.main, splits)
    funcs: list[Func] = []
    for f in module.funcs:
        split = splits.get(f.name)
        funcs += [f if f is not module.main else main] if split is None else [*split.makers, split.kernel]
    return module.with_funcs(tuple(funcs))


@dataclass(frozen=True)
class _Split:
    """Kernels that make factors, one result each; the kernel that reads them: its parameters are those of the
    old kernel at `kept`, then the factors. arguments: the old kernel's parameters that each maker takes."""

    makers: tuple[Func, ...]
    arguments: tuple[tuple[int, ...], ...]
    kernel: Func
    kept: tuple[int, ...]


@dataclass(frozen=True)
class _Span:
    """The part of one axis of a factor that is stored: every `step`-th of indices from `first` on, `count`
    of them."""

    first: int
    count: int
    step: int


def _given_state(main: Func, kernel: str) -> frozenset[int]:
    """The parameters of a kernel for which every call in @main gives state."""
    state = {main.params[p] for p, _ in main.updates}
    calls = [op for op in main.body.ops if isinstance(ref := op.get("callee"), Ref) and ref.name == kernel]
    given = [{i for i, v in enumerate(op.operands) if v in state} for op in calls]
    return frozenset(set.intersection(*given)) if given else frozenset()


def _split(
    kernel: Func, hardware: CpuHardware | None, taken: set[str], state: frozenset[int] = frozenset()
) -> _Split | None:
    """A kernel's factors as kernels of their own; None where it keeps them.

    hardware: what judges whether that is worth a launch; None takes it for granted. state: parameters that
    are state.
    """
    products = [op for op in kernel.body.ops if op.name == "tensor.contract"]
    if len(products) != 1:
        return None
    (product,) = products
    makers: list[Func] = []
    arguments: list[tuple[int, ...]] = []
    factors: list[Value] = []
    for index in (0, 1):
        before = _made_before(kernel, product.operands[index])
        at, shape = _whole(product, index)
        order = _columns_last(kernel, product, index, state)
        if order is not None and (hardware is None or _worth(product, index, hardware)):
            maker, position = _turned(kernel, product, index, order, taken)
            makers.append(maker)
            arguments.append(position)
            factors.append(Value(maker.result_types[0], product.operands[index].hint))
            turned = tuple(reads(product)[index][axis] for axis in order)
            product = _reading(product, index, factors[-1], turned)
            continue
        if before is None or not (before or at is not None):
            continue
        if hardware is not None and not _worth(product, index, hardware):
            continue
        maker, position = _maker(kernel, product, index, before, shape, taken)
        makers.append(maker)
        arguments.append(position)
        factors.append(Value(maker.result_types[0], product.operands[index].hint))
        product = _reading(product, index, factors[-1], at)
    if not makers:
        return None
    ops = [product if op.name == "tensor.contract" else op for op in kernel.body.ops]
    ops = needed(ops)
    used = {v for op in ops for v in op.operands}
    positions = tuple(i for i, p in enumerate(kernel.params) if p in used)
    params = (*(kernel.params[i] for i in positions), *factors)
    reader = replace(kernel, body=Block(params, tuple(ops)))
    return _Split(tuple(makers), tuple(arguments), reader, positions)


def _columns_last(kernel: Func, product: Op, index: int, state: frozenset[int]) -> tuple[int, ...] | None:
    """The axes of a factor that is state, those of columns last; None where they are, or it is none."""
    factor, at = product.operands[index], reads(product)[index]
    if index != 1 or not any(kernel.params[i] is factor for i in state) or fills(product)[index] is not None:
        return None
    if not all(isinstance(e, Sym) for e in at) or len(set(at)) < len(at):
        return None
    columns = contract_roles(product).columns
    beside = [axis for axis, e in enumerate(at) if isinstance(e, Sym) and e.name in columns]
    order = (*(axis for axis in range(len(at)) if axis not in beside), *beside)
    return order if beside and beside[-1] != len(at) - 1 else None


def _turned(
    kernel: Func, product: Op, index: int, order: tuple[int, ...], taken: set[str]
) -> tuple[Func, tuple[int, ...]]:
    """The kernel that stores a factor with its axes in another order, and the parameter that it takes."""
    factor = product.operands[index]
    param = Value(factor.type, factor.hint)
    b = Builder(product.loc)
    par = {f"p{place}": factor.tensor.shape[axis] for place, axis in enumerate(order)}
    result = copied(b, param, par, tuple(Sym(f"p{order.index(axis)}") for axis in range(len(order))))
    b.emit("tensor.return", (result,), types=())
    name = kernel_name(b.ops[:1], taken)
    position = next(i for i, p in enumerate(kernel.params) if p is factor)
    return Func(Level.TENSOR, name, b.block((param,)), (result.tensor,)), (position,)


def _made_before(kernel: Func, factor: Value) -> list[Op] | None:
    """The ops that compute a factor, in their order; None where they are not computed point by point."""
    ops = backward_slice(kernel.body.ops, [factor])
    return ops if all(op.name in POINTWISE for op in ops) else None


def _whole(product: Op, index: int) -> tuple[tuple[Expr, ...] | None, tuple[_Span, ...]]:
    """The index at which the product reads its factor once that is stored as it is read, and the stored axes.

    None where it reads a factor without padding and in steps of one: what is stored is the factor as it is.
    """
    v, ranges = product.operands[index], ranges_of(product)
    whole = tuple(_Span(0, n, 1) for n in v.tensor.shape)
    spans = []
    for e, extent in zip(reads(product)[index], v.tensor.shape, strict=True):
        low, high = interval(simplify(e, ranges), ranges)
        step = index_step(e, ranges)
        first, last = (int(low), int(high)) if step > 1 else (min(0, int(low)), max(extent - 1, int(high)))
        spans.append(_Span(first, (last - first) // step + 1, step))
    padded = fills(product)[index] is not None
    if tuple(spans) == whole or not (padded or any(s.step > 1 for s in spans)):
        return None, whole
    at = tuple(
        simplify((e - s.first) // s.step, ranges) for e, s in zip(reads(product)[index], spans, strict=True)
    )
    size = itemsize(v.tensor.dtype)
    if spans[-1].count * size % SAME_SET_BYTES == 0 and spans[-1].step == 1:
        spans[-1] = replace(spans[-1], count=spans[-1].count + CPU_LINE_BYTES // size)
    return at, tuple(spans)


def _worth(product: Op, index: int, hardware: CpuHardware) -> bool:
    """Return whether making the factor for all tiles keeps a core busy for longer than a launch and moving
    it.
    """
    roles, sizes = contract_roles(product), domain(product)
    across = roles.columns if index == 0 else [d for d in dims(product, "par") if d not in roles.columns]
    others = 1
    for d in across:
        others *= sizes[d]
    elements = product.operands[index].tensor.size
    clk = elements * -(-others // TILE_COLUMNS) * hardware.layout.factor_element_clk
    moved = 2 * product.operands[index].tensor.nbytes / hardware.estimate_l2_bytes_per_core_per_clk
    return (clk - moved) / hardware.estimate_clock_hz > hardware.estimate_launch_s


def _maker(
    kernel: Func,
    product: Op,
    index: int,
    before: list[Op],
    spans: tuple[_Span, ...],
    taken: set[str],
) -> tuple[Func, tuple[int, ...]]:
    """The kernel that stores one factor, and the parameters of the old kernel that it takes."""
    factor, (fill, shape) = product.operands[index], (fills(product)[index], product.operands[index].tensor)
    b = Builder(product.loc)
    for op in before:
        b.append(op)
    result = factor
    if not before or spans != tuple(_Span(0, n, 1) for n in shape.shape):
        names = [f"p{axis}" for axis in range(len(spans))]
        par = dict(zip(names, (s.count for s in spans), strict=True))
        at = tuple(Sym(d) * s.step + s.first for d, s in zip(names, spans, strict=True))
        longer = any(s.first + (s.count - 1) * s.step >= n for s, n in zip(spans, shape.shape, strict=True))
        result = copied(b, factor, par, at, fill=0.0 if fill is None and longer else fill)
    ops = list(b.ops)
    used = {v for op in ops for v in op.operands}
    position = tuple(i for i, p in enumerate(kernel.params) if p in used)
    fresh = {kernel.params[i]: Value(kernel.params[i].type, kernel.params[i].hint) for i in position}
    renamed = dict(fresh)
    body = copied_ops(ops, renamed)
    body.append(Op("tensor.return", (renamed[result],)))
    name = kernel_name([*before, product], taken)
    stored = TensorType(result.tensor.dtype, result.tensor.shape)
    return Func(Level.TENSOR, name, Block(tuple(fresh.values()), tuple(body)), (stored,)), position


def _reading(product: Op, index: int, factor: Value, at: tuple[Expr, ...] | None) -> Op:
    """The product with a stored factor."""
    operands = list(product.operands)
    operands[index] = factor
    if at is None:
        return product.with_operands(tuple(operands))
    places, values_outside = list(reads(product)), list(fills(product))
    places[index], values_outside[index] = at, None
    return product.with_attrs(reads=tuple(places), fill=tuple(values_outside)).with_operands(tuple(operands))


def _redirected(main: Func, splits: dict[str, _Split]) -> Func:
    """@main with the makers called before their readers."""
    b = Builder()
    for op in main.body.ops:
        ref = op.get("callee")
        split = splits.get(ref.name) if isinstance(ref, Ref) else None
        if split is None:
            b.append(op)
            continue
        factors: list[Value] = []
        for maker, position in zip(split.makers, split.arguments, strict=True):
            arguments = [op.operands[i] for i in position]
            types = maker.result_types
            factors += b.emit("tensor.call", arguments, {"callee": Ref(maker.name)}, types=types, loc=op.loc)
        b.append(op.with_operands((*(op.operands[i] for i in split.kept), *factors)))
    return replace(main, body=b.block(main.params))
