"""Pass pass-parts: kernels that differ in which part of an array they read are given that part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir import Attr, Builder, Expr, Func, Level, Module, Op, TensorType, Value
from tilewright.ir.simplify import interval, simplify
from tilewright.ir.tensor.ops import STRUCTURED, callee_of, fills, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.analysis.memory_headroom import joined_arrays
from tilewright.passes.rewriting.values import with_types
from tilewright.passes.tensor.memory.place_concats import SLOT_ALIGNMENT


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def pass_parts(module: Module, ctx: PassContext) -> Module:
    """Pass a kernel the part of an array that it reads, where that makes it equal to another one.

    rewrite:  %a = call(%x, callee = @a); %b = call(%x, callee = @b)
              with @a reading %x[i + 64, j] and @b reading %x[i + 128, j], i < 64
        -->   %p = tensor.part(%x, start = 64 * n, shape = [64, n]); %a = call(%p, callee = @a)
              %q = tensor.part(%x, start = 128 * n, shape = [64, n]); %b = call(%q, callee = @b)
              with both reading [i, j]

    As the steps of a recurrence, which each read their rows of a product of all inputs: `share-kernels`
    leaves one kernel of them, to be compiled and measured once, and on a GPU a launch finds its instructions
    in the caches. A part is a run of the first dimension, or of a later one behind single indices, of what
    another kernel makes, and begins where memory may begin.
    """
    main = module.main
    kernels = {f.name: f for f in module.funcs if f is not main}
    calls = [op for op in main.body.ops if op.name == "tensor.call"]
    made = {r for op in calls for r in op.results} - joined_arrays(main).keys()
    calls_of: dict[str, list[Op]] = {}
    for op in calls:
        calls_of.setdefault(callee_of(op), []).append(op)
    alike: dict[str, list[_Narrowed]] = {}
    for name, own in calls_of.items():
        narrowed = _narrowed(kernels[name], own, made)
        if narrowed is not None:
            alike.setdefault(kernel_text(narrowed.kernel), []).append(narrowed)
    taken = {n.kernel.name: n for same in alike.values() if len(same) > 1 for n in same}
    if not taken:
        return module
    others = tuple(taken[f.name].kernel if f.name in taken else f for f in module.funcs if f is not main)
    return module.with_funcs((*others, _with_parts(main, taken)))


@dataclass(frozen=True)
class _Part:
    """A part of a parameter: elements before it, its extents, and the first index of each dimension."""

    start: int
    shape: tuple[int, ...]
    first: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class _Narrowed:
    """A kernel that is given parts of arrays, by the position of the operand."""

    kernel: Func
    parts: Mapping[int, _Part]


def _narrowed(kernel: Func, calls: Sequence[Op], made: set[Value]) -> _Narrowed | None:
    """The kernel with parts of what kernels make for all its calls; None where it reads all of that."""
    parts = {
        i: part
        for i, p in enumerate(kernel.params)
        if all(op.operands[i] in made and op.operands[i].tensor.dense for op in calls)
        and (part := _part(kernel, p)) is not None
    }
    if not parts:
        return None
    first = {kernel.params[i]: part.first for i, part in parts.items()}
    fresh = {
        p: Value(TensorType(p.tensor.dtype, part.shape, p.tensor.space), p.hint)
        for i, part in parts.items()
        for p in (kernel.params[i],)
    }
    ops = [_read_from(op, first) for op in kernel.body.ops]
    return _Narrowed(with_types(kernel, ops, fresh), parts)


def _part(kernel: Func, param: Value) -> _Part | None:
    """The part of a parameter that a kernel reads, where it is one run of memory and not all of it."""
    t = param.tensor
    if not t.dense or param in kernel.body.ops[-1].operands:
        return None
    bounds = list(_bounds(kernel, param))
    if not bounds or None in bounds:
        return None
    begins = [min(b[d][0] for b in bounds if b is not None) for d in range(t.rank)]
    ends = [max(b[d][1] for b in bounds if b is not None) for d in range(t.rank)]
    shape, first = list(t.shape), [0] * t.rank
    for d in range(t.rank):
        shape[d], first[d] = ends[d] - begins[d] + 1, begins[d]
        if shape[d] > 1:
            break
    start = sum(a * s for a, s in zip(first, t.strides, strict=True))
    if prod(shape) == t.size or start * itemsize(t.dtype) % SLOT_ALIGNMENT:
        return None
    return _Part(start, tuple(shape), tuple(first))


def _bounds(kernel: Func, param: Value) -> Iterator[list[tuple[int, int]] | None]:
    """Per reading of a parameter the least and the largest index of each dimension; None where unknown."""
    for op in kernel.body.ops:
        if param not in op.operands:
            continue
        if op.name not in STRUCTURED:
            yield None
            return
        ranges = ranges_of(op)
        for v, at, fill in zip(op.operands, reads(op), fills(op), strict=True):
            if v is param:
                yield None if fill is not None else [_interval(e, ranges) for e in at]


def _interval(e: Expr, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    low, high = interval(e, ranges)
    return int(low), int(high)


def _read_from(op: Op, first: Mapping[Value, Sequence[int]]) -> Op:
    """The op with the indices of its readings of these parameters counted from the first ones."""
    if op.name not in STRUCTURED or not any(v in first for v in op.operands):
        return op
    ranges = ranges_of(op)
    moved = tuple(
        tuple(simplify(e - n, ranges) if n else e for e, n in zip(at, first[v], strict=True))
        if v in first
        else at
        for v, at in zip(op.operands, reads(op), strict=True)
    )
    return op.with_attrs(reads=moved)


def _with_parts(main: Func, taken: Mapping[str, _Narrowed]) -> Func:
    """@main with the parts that calls are given, each named once."""
    b = Builder()
    named: dict[tuple[Value, _Part], Value] = {}
    for op in main.body.ops:
        narrowed = taken.get(callee_of(op)) if op.name == "tensor.call" else None
        if narrowed is None:
            b.append(op)
            continue
        operands = list(op.operands)
        for i, part in narrowed.parts.items():
            whole = operands[i]
            if (whole, part) not in named:
                attrs: dict[str, Attr] = {"start": part.start, "shape": part.shape}
                (named[whole, part],) = b.emit("tensor.part", [whole], attrs, hint=whole.hint)
            operands[i] = named[whole, part]
        b.append(replace(op, operands=tuple(operands)))
    return main.with_body(b.block(main.params))
