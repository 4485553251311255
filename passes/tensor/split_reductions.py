"""Pass split-reductions: products of few results over long sums are cut into parts for more blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import (
    Block,
    Builder,
    Expr,
    Level,
    Module,
    Op,
    Pairs,
    Sym,
    TensorType,
    Type,
    Value,
    scalar_body,
    structured,
)
from tilewright.ir.expr import binary, substitute, symbols
from tilewright.ir.nodes import Attr
from tilewright.ir.tensor_ops import dims, domain, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.lower.algorithm_cost import kernels_of
from tilewright.passes.lower.memory_room import Room, room_of_products
from tilewright.passes.lower.skeletons.matrix_plan import NARROW, multiplies
from tilewright.passes.tensor.copies import copied

#: parts to compare
PARTS = (2, 3, 4, 6, 8)
#: dtypes of sums, and so of parts: nothing is rounded to 16 bits before all parts are added
EXACT = frozenset({"f32", "f64"})
#: the shortest sum that is left to a part
SHORTEST = 32
#: a split must be estimated to take at most this share of the whole product
GAIN = 0.8


@register_pass(Level.TENSOR)
def split_reductions(module: Module, ctx: PassContext) -> Module:
    """Compute parts of long sums side by side and add them.

    rewrite:  %y = tensor.contract(%x, %w, par = (k, y), red = (c: 512), reads = [[c, y], [k, c]])
        -->   %v = tensor.map(%w, par = (k, part: 4, c: 128), reads = [[k, part * 128 + c]]);
              %p = tensor.contract(%x, %v, par = (part: 4, k, y), red = (c: 128),
                                   reads = [[part * 128 + c, y], [k, part, c]]);
              %y = tensor.map(%p, %p, %p, %p, par = (k, y), reads = [[0, k, y], [1, k, y], ...]) {add}

    Where the cost model says that it takes less time, on GPUs: there, a product of few results has few
    blocks, and each waits for a long chain of loads. Sums of 16-bit factors are float32, and so are their
    parts: the rounding of the result, like the rest of an epilogue, is of the kernel that adds them. The
    parts' results must fit beside what other kernels hold into the peak that the network has without them
    (see `memory_room`).
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    main = module.main
    if isinstance(hardware, CpuHardware) or any(op.name == "tensor.call" for op in main.body.ops):
        return module
    options = {op: found for op in main.body.ops if (found := _options(op))}
    if not options:
        return module
    room = room_of_products(main, ctx)
    b = Builder()
    env: dict[Value, Value] = {}
    for op in main.body.ops:
        parts = _best_parts(op, options[op], room, hardware) if op in options else 1
        fresh = op.with_operands(tuple(env.get(v, v) for v in op.operands))
        if parts > 1:
            with b.at(op.loc):
                env[op.result] = split(fresh, b, parts)
        else:
            b.append(fresh)
    if not env:
        return module
    new = main.with_body(main.body.with_ops(tuple(b.ops)))
    return module.with_funcs(tuple(new if f is main else f for f in module.funcs))


def split(op: Op, b: Builder, parts: int) -> Value:
    """The same product by parts of its longest plain sum."""
    channel = _channel(op)
    length = dims(op, "red")[channel] // parts
    part = _fresh("part", domain(op))
    whole = binary("+", binary("*", Sym(part), length), Sym(channel))
    first, second = reads(op)[:2]
    at = second.index(Sym(channel))
    w = op.operands[1]
    names = [f"i{i}" for i in range(w.tensor.rank)]
    shape: dict[str, int] = {}
    for name, extent in zip(names, w.tensor.shape, strict=True):
        shape |= {part: parts, name: length} if name == names[at] else {name: extent}
    where: list[Expr] = [Sym(d) for d in names]
    where[at] = binary("+", binary("*", Sym(part), length), Sym(names[at]))
    view = copied(b, w, shape, where)
    par = {part: parts, **dims(op, "par")}
    attrs: dict[str, Attr] = {
        **dict(op.attrs),
        "par": Pairs.of(dict(par)),
        "red": Pairs.of({**dims(op, "red"), channel: length}),
        "reads": (
            tuple(substitute(e, {channel: whole}) for e in first),
            (*second[:at], Sym(part), *second[at:]),
        ),
    }
    t = op.result.tensor
    partial = TensorType(t.dtype, (parts, *t.shape))
    (sums,) = b.emit("tensor.contract", [op.operands[0], view], attrs, types=[partial], body=op.body)
    body, values = scalar_body([t.dtype] * parts)
    total = values[0]
    for v in values[1:]:
        total = body.value("scalar.add", total, v)
    body.do("scalar.yield", total)
    rest = tuple(map(Sym, dims(op, "par")))
    (out,) = structured(
        b, "tensor.map", [sums] * parts, par=dims(op, "par"), reads=[(i, *rest) for i in range(parts)],
        body=body.block(values), types=[t],
    )  # fmt: skip
    return out


def _fresh(name: str, taken: dict[str, int]) -> str:
    while name in taken:
        name += "_"
    return name


def _channel(op: Op) -> str:
    """The longest reduced dimension that both operands read by itself; '' where there is none."""
    found = ""
    red = dims(op, "red")
    for d in red:
        plain = all(
            at.count(Sym(d)) == 1 and all(d not in symbols(e) or e == Sym(d) for e in at) for at in reads(op)
        )
        if plain and red[d] > red.get(found, 0):
            found = d
    return found


def _options(op: Op) -> tuple[int, ...]:
    """Numbers of parts that a product could be cut into; none for other ops."""
    if op.name != "tensor.contract" or len(op.operands) != 2 or op.body is None:
        return ()
    if op.result.tensor.dtype not in EXACT or not _sums_products(op):
        return ()
    channel = _channel(op)
    length = dims(op, "red").get(channel, 0)
    return tuple(p for p in PARTS if length % p == 0 and length // p >= SHORTEST)


def _sums_products(op: Op) -> bool:
    """Whether the body adds the product of both factors to a sum from 0, 16-bit factors widened before."""
    assert op.body is not None
    if op["init"] != (0.0,):  # every part would start from it
        return False
    dtypes = {v.tensor.dtype for v in op.operands}
    if dtypes == {op.result.tensor.dtype}:
        return [o.name for o in op.body.ops] == ["scalar.fma", "scalar.yield"]
    return len(dtypes) == 1 and dtypes <= set(NARROW) and multiplies(op)


def _best_parts(op: Op, options: Sequence[int], room: Room, hardware: Hardware) -> int:
    x, y = op.operands[0].tensor, op.result.tensor
    best, least = 1, 0.0
    for parts in options:
        if not room.fits(op, x.nbytes + parts * y.nbytes):
            break
        if best == 1 and least == 0.0:
            least = GAIN * _seconds_of(op, 1, hardware)
        seconds = _seconds_of(op, parts, hardware)
        if seconds < least:
            best, least = parts, seconds
    return best


def _seconds_of(op: Op, parts: int, hardware: Hardware) -> float:
    types = tuple(v.type for v in op.operands)
    return _seconds(types, op.attrs, op.result.type, parts, hardware)


@lru_cache(maxsize=8192)
def _seconds(
    types: tuple[Type, ...],
    attrs: tuple[tuple[str, Attr], ...],
    result: Type,
    parts: int,
    hardware: Hardware,
) -> float:
    """Seconds of a product and, if it is split, of adding its parts, by the model."""
    given = tuple(Value(t, "x") for t in types)
    op = Op("tensor.contract", given, attrs, (Value(result),), _fma(given[0], result))
    return min(_alone_s(form, parts, hardware) for form in _forms(op))


def _alone_s(op: Op, parts: int, hardware: Hardware) -> float:
    b = Builder()
    if parts == 1:
        b.append(op)
    out = op.result if parts == 1 else split(op, b, parts)
    b.do("tensor.return", out)
    return kernels_of(op.operands, b.ops, 0, hardware).estimate_s()


def _forms(op: Op) -> tuple[Op, ...]:
    """The product as it is and, where tensor cores may take it, with channels innermost.

    Layouts are chosen later, and tensor cores then get images with channels innermost: in any other order
    their copies are no asynchronous ones, and a product seems slower and worth splitting.
    """
    x = op.operands[0].tensor
    if x.dtype not in NARROW and op["factors"] != "tf32":
        return (op,)
    first, second = reads(op)[:2]
    channel = Sym(_channel(op))
    axes = sorted(range(x.rank), key=lambda axis: first[axis] == channel)
    par, columns = dims(op, "par"), {d for e in second for d in symbols(e)}
    order = sorted(range(len(par)), key=lambda axis: list(par)[axis] in columns)
    if axes == sorted(axes):
        return (op,)
    image = Value(replace(x, shape=tuple(x.shape[axis] for axis in axes)), "x")
    y = op.result.tensor
    turned = op.with_attrs(
        par=Pairs(tuple(list(par.items())[axis] for axis in order)),
        reads=(tuple(first[axis] for axis in axes), second),
    )
    result = Value(replace(y, shape=tuple(y.shape[axis] for axis in order)))
    return op, replace(turned, operands=(image, *op.operands[1:]), results=(result,))


def _fma(factor: Value, result: Type) -> Block:
    wide = result.dtype
    body, (x, w, total) = scalar_body([factor.tensor.dtype, factor.tensor.dtype, wide])
    body.do("scalar.yield", body.value("scalar.fma", body.cast(x, wide), body.cast(w, wide), total))
    return body.block((x, w, total))
