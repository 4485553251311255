"""Pass arrange-factors: factors that tensor cores would gather are stored in their order before."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.costmodel import CpuHardware, load_hardware
from tilewright.ir import (
    Block,
    Builder,
    Expr,
    Func,
    InputError,
    Level,
    Module,
    Op,
    Pairs,
    Ref,
    Sym,
    TensorType,
    Value,
    structured,
)
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import coefficients, simplify
from tilewright.ir.tensor.ops import dims, fills, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.constant_params import WEIGHTS, constant_positions
from tilewright.passes.analysis.copies import copied
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import decision_of
from tilewright.passes.kernels.kernel_problem import contract_roles
from tilewright.passes.kernels.matrix.view import NARROW, on_tensor_cores
from tilewright.passes.rewriting.inlined import with_bodies
from tilewright.passes.rewriting.values import needed
from tilewright.passes.tensor.fusion.outline_kernel import kernel_name

#: kernels with stored factors, the copies included, must be estimated to take at most this share of what they
#: take without
GAIN = 0.9
#: bytes that a row of a stored factor should be a multiple of: the width of an asynchronous copy
ROW_BYTES = 16


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def arrange_factors(module: Module, ctx: PassContext, *, when: Literal["auto", "always"] = "auto") -> Module:
    """Store factors of products on tensor cores in the order and the dtype in which blocks copy them.

    rewrite:  call(%w, %x, callee = @conv), which casts %w: f32[k, c, r, s] and reads it at [k, c, r, s]
        -->   %v = call(%w, callee = @conv_factor): f16[k, r, s, c]; call(%v, %x, callee = @conv), which reads
              %v at [k, r, s, c]

    Weights that are constants are packed at compile time. Those of a training step are state: every block of
    every product would gather them element by element, and round them. One copy serves all products that read
    the same array, those of the backward pass too: tensor cores take 16-bit factors along rows or columns.
    A factor that a map puts together of parts of weights, as for gradients of convolutions with strides, is
    stored as the map yields it. With `auto` factors are stored where the cost model says that this takes less
    time, on GPUs.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if isinstance(hardware, CpuHardware):
        return module
    for operand in (1, 0):
        for group in _groups(module, operand):
            stored = _stored(module, group)
            if when == "always" or _worth(module, stored, group, ctx):
                module = stored
    return module


@dataclass(frozen=True)
class _Factor:
    """A factor of a product that is to be stored.

    kernel: name of the product's kernel; positions: which of its parameters the factor is made of. made: the
    map that yields the factor, if there is one. by_element: the factor is one array in another order or
    dtype, and the whole array is stored, else what the map yields. at: the index at which the product reads
    what is stored; order: the axes of that as they are to be stored.
    """

    kernel: str
    operand: int
    positions: tuple[int, ...]
    made: Op | None
    by_element: bool
    at: tuple[Expr, ...]
    order: tuple[int, ...]


#: factors that are stored as one array
_Group = tuple[_Factor, ...]


def _groups(module: Module, operand: int) -> Iterator[_Group]:
    """The factors at one place of all products; those together that are the same array once stored."""
    main = module.main
    calls: dict[str, list[Op]] = {}
    for op in main.body.ops:
        if isinstance(ref := op.get("callee"), Ref):
            calls.setdefault(ref.name, []).append(op)
    constants = constant_positions(module)
    groups: dict[Hashable, list[_Factor]] = {}
    for kernel in module.funcs:
        if len(calls.get(kernel.name, ())) != 1:
            continue
        factor = _factor(kernel, operand)
        if factor is None or set(factor.positions) & {*constants.get(kernel.name, ())}:
            continue
        arrays = tuple(calls[kernel.name][0].operands[i] for i in factor.positions)
        key = (arrays, factor.order, kernel_text(_maker(kernel, factor, "factor")))
        groups.setdefault(key, []).append(factor)
    yield from map(tuple, groups.values())


def _factor(kernel: Func, operand: int) -> _Factor | None:
    """The factor of a kernel's one product, if another order or dtype of the array may serve it better."""
    products = [op for op in kernel.body.ops if op.name == "tensor.contract"]
    if kernel.name == "main" or len(products) != 1 or len(products[0].operands) != 2:
        return None
    (product,) = products
    if not on_tensor_cores(product) or fills(product)[operand] is not None:
        return None
    value, at = product.operands[operand], reads(product)[operand]
    made = _made(kernel, value)
    arrays = (value,) if made is None else tuple(dict.fromkeys(made.operands))
    if not set(arrays) <= set(kernel.params) or product.operands[0] is product.operands[1]:
        return None
    by_element = made is None or _moves_each(made)
    if made is not None and by_element:
        env = dict(zip(dims(made, "par"), at, strict=True))
        at = tuple(simplify(substitute(e, env), ranges_of(product)) for e in reads(made)[0])
    elif not by_element and (operand == 0 or not _maps(made)):
        return None
    order = _order(product, operand, at, value.tensor.dtype)
    if order is None or (made is None and order == tuple(range(len(at)))):
        return None
    positions = tuple(kernel.params.index(v) for v in arrays)
    return _Factor(kernel.name, operand, positions, made, by_element, at, order)


def _made(kernel: Func, value: Value) -> Op | None:
    """The op of a kernel that yields a value, maps that a map reads written into it; None of parameters.

    Quantised data is such a row of maps: scaled, rounded, saturated, cast.
    """
    producers = {r: op for op in kernel.body.ops for r in op.results}
    made = producers.get(value)
    while made is not None and _maps(made):
        before = {v: op for v in made.operands if (op := producers.get(v)) is not None and _maps(op)}
        whole = with_bodies(made, before)
        if whole is made:
            break
        made = whole
    return made


def _maps(op: Op | None) -> bool:
    """Return whether an op is a map of one result whose body does not depend on where it is."""
    if op is None or op.name != "tensor.map" or len(op.results) != 1 or op.body is None:
        return False
    return all(inner.name != "scalar.index" for inner in op.body.ops)


def _moves_each(op: Op) -> bool:
    """Return whether a map computes each element of one array once, by itself: a cast, a transpose."""
    if not _maps(op) or len(op.operands) != 1 or fills(op)[0] is not None:
        return False
    par, seen = dims(op, "par"), set[str]()
    for e, extent in zip(reads(op)[0], op.operands[0].tensor.shape, strict=True):
        form = coefficients(e, list(par), {d: (0, n - 1) for d, n in par.items() if n > 1})
        used = [d for d, c in form[0].items() if c] if form is not None else []
        if extent == 1 and not used:
            continue
        if form is None or len(used) != 1 or abs(form[0][used[0]]) != 1 or par[used[0]] != extent:
            return False
        if used[0] in seen:
            return False
        seen |= set(used)
    return all(n == 1 or d in seen for d, n in par.items())


def _order(product: Op, operand: int, at: tuple[Expr, ...], dtype: str) -> tuple[int, ...] | None:
    """The axes of an array with one last along which tiles have rows; None where there is none such.

    Tiles have rows along the reduced channels, of 16 bits also along the rows or columns of the result. Of
    several axes the last one is taken, so that products in both directions agree.
    """
    roles, sizes = contract_roles(product), {**dims(product, "par"), **dims(product, "red")}
    wanted = {d for d in dims(product, "red") if d in roles.channels}
    if dtype in NARROW:
        wanted |= {*(roles.columns if operand else roles.rows)}
    lanes = ROW_BYTES // itemsize(dtype)
    axes = [
        axis
        for axis, e in enumerate(at)
        if isinstance(e, Sym)
        and e.name in wanted
        and sizes[e.name] % lanes == 0
        and sum(e.name in symbols(other) for other in at) == 1
    ]
    if not axes:
        return None
    return (*(axis for axis in range(len(at)) if axis != axes[-1]), axes[-1])


def _maker(kernel: Func, factor: _Factor, name: str) -> Func:
    """The kernel that stores a factor; it takes the arrays that this is made of."""
    product = next(op for op in kernel.body.ops if op.name == "tensor.contract")
    t = product.operands[factor.operand].tensor
    if factor.made is not None and not factor.by_element:
        return _reordered_maker(kernel, factor, factor.made, name)
    array = kernel.params[factor.positions[0]]
    param = Value(array.type, array.hint)
    names = [f"p{place}" for place in range(len(factor.order))]
    shape = tuple(array.tensor.shape[axis] for axis in factor.order)
    where = tuple(Sym(names[factor.order.index(axis)]) for axis in range(len(factor.order)))
    b = Builder(product.loc)
    if factor.made is None:
        stored = copied(b, param, dict(zip(names, shape, strict=True)), where)
    else:
        assert factor.made.body is not None
        (stored,) = structured(
            b, "tensor.map", [param], par=dict(zip(names, shape, strict=True)), reads=[where],
            body=factor.made.body, types=[TensorType(t.dtype, shape)], hint=array.hint,
        )  # fmt: skip
    b.do("tensor.return", stored)
    return Func(Level.TENSOR, name, b.block((param,)), (stored.tensor,))


def _reordered_maker(kernel: Func, factor: _Factor, made: Op, name: str) -> Func:
    """The kernel that stores what a map yields, with its dimensions in another order."""
    params = {kernel.params[i]: Value(kernel.params[i].type, kernel.params[i].hint) for i in factor.positions}
    par = tuple(dims(made, "par").items())
    shape = tuple(made.result.tensor.shape[axis] for axis in factor.order)
    result = Value(TensorType(made.result.tensor.dtype, shape), made.result.hint)
    turned = made.with_attrs(par=Pairs(tuple(par[axis] for axis in factor.order)))
    turned = replace(turned.with_operands(tuple(params[v] for v in made.operands)), results=(result,))
    b = Builder(made.loc)
    b.append(turned)
    b.do("tensor.return", result)
    return Func(Level.TENSOR, name, b.block(tuple(params.values())), (result.tensor,))


def _reader(kernel: Func, factor: _Factor, stored: TensorType) -> tuple[Func, tuple[int, ...]]:
    """The kernel with a stored factor as its last parameter, and which of its parameters it keeps."""
    product = next(op for op in kernel.body.ops if op.name == "tensor.contract")
    param = Value(stored, product.operands[factor.operand].hint)
    operands, places = list(product.operands), list(reads(product))
    operands[factor.operand] = param
    places[factor.operand] = tuple(factor.at[axis] for axis in factor.order)
    reading = product.with_operands(tuple(operands)).with_attrs(reads=tuple(places))
    ops = needed([reading if op is product else op for op in kernel.body.ops])
    used = {v for op in ops for v in op.operands}
    kept = tuple(i for i, p in enumerate(kernel.params) if p in used)
    params = (*(kernel.params[i] for i in kept), param)
    return replace(kernel, body=Block(params, tuple(ops))), kept


def _stored(module: Module, group: _Group) -> Module:
    """The module with the factors of a group stored once, before the first product that reads them."""
    main, kernels = module.main, {f.name: f for f in module.funcs}
    taken = set(kernels)
    first = kernels[group[0].kernel]
    product = next(op for op in first.body.ops if op.name == "tensor.contract")
    maker = _maker(first, group[0], kernel_name([product], taken))
    (stored,) = maker.result_types
    assert isinstance(stored, TensorType)
    readers = {factor.kernel: _reader(kernels[factor.kernel], factor, stored) for factor in group}
    positions = {factor.kernel: factor.positions for factor in group}
    b = Builder()
    copy: Value | None = None
    for op in main.body.ops:
        ref = op.get("callee")
        if not isinstance(ref, Ref) or ref.name not in readers:
            b.append(op)
            continue
        if copy is None:
            arrays = [op.operands[i] for i in positions[ref.name]]
            (copy,) = b.emit("tensor.call", arrays, {"callee": Ref(maker.name)}, types=[stored], loc=op.loc)
        kept = readers[ref.name][1]
        b.append(op.with_operands((*(op.operands[i] for i in kept), copy)))
    funcs: list[Func] = []
    for f in module.funcs:
        if f is main:
            funcs.append(f.with_body(f.body.with_ops(tuple(b.ops))))
            continue
        funcs += [maker] if f is first else []
        funcs.append(readers[f.name][0] if f.name in readers else f)
    return module.with_funcs(tuple(funcs))


def _worth(module: Module, stored: Module, group: _Group, ctx: PassContext) -> bool:
    """Return whether kernels that read the stored factors, and the one that stores them, take less time."""
    names = {factor.kernel for factor in group}
    before = {f.name for f in module.funcs}
    try:
        now, then = constant_positions(module), constant_positions(stored)
        least = GAIN * sum(_seconds(f, now.get(f.name, ()), ctx) for f in module.funcs if f.name in names)
        after = [f for f in stored.funcs if f.name in names or f.name not in before]
        return sum(_seconds(f, then.get(f.name, ()), ctx) for f in after) < least
    except (InputError, UnsupportedError):
        return False


def _seconds(kernel: Func, constants: tuple[int, ...], ctx: PassContext) -> float:
    """Seconds of a kernel by the model; constants: the parameters that are such, and so may be packed."""
    cores = any(op.name == "tensor.contract" for op in kernel.body.ops)
    asked = kernel.with_attrs(**{WEIGHTS: constants}) if cores else kernel
    key = ("arranged", kernel_text(asked), ctx.hardware, ctx.target)

    def answer() -> float:
        decision = decision_of(ctx.estimator.kernel(asked, ctx))
        if decision is None or decision.cost is None:
            raise InputError("expected a kernel with an estimate", where=f"@{kernel.name}")
        return decision.cost.estimate_s

    return ctx.estimator.remembered(key, answer)
