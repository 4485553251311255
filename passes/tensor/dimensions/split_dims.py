"""Dimensions that a contraction reads by quotient and remainder become two: which group, and where in it.

Buffers are dense, so a kernel may see its parameters in another shape than the caller: splitting k of a
grouped convolution turns `f32[1, 64, 56, 56]` into `f32[1, 4, 16, 56, 56]`, and its reads become affine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tilewright.ir import BinOp, Expr, Func, Level, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import Linear, Ranges, coefficients, linear, simplify, within
from tilewright.ir.tensor.join_ops import placed
from tilewright.ir.tensor.ops import STRUCTURED, dims, ranges_of, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.rewriting.values import with_indices, with_types


@register_pass(Level.TENSOR)
def split_dims(func: Func, ctx: PassContext) -> Func:
    """Split the parallel dimensions of a contraction kernel that its reads divide.

    rewrite:  par = (k: 64, y: 56, x: 56), reads = [[k // 16 * 32 + c, y, x], [k, c]]
        -->   par = (k_hi: 4, k_lo: 16, y: 56, x: 56), reads = [[k_hi, c, y, x], [k_hi, k_lo, c]]
    """
    contractions = [op for op in func.body.ops if op.name == "tensor.contract"]
    if func.name == "main" or len(contractions) != 1:
        return func
    if any(op.name not in STRUCTURED for op in func.body.ops[:-1]):
        return func
    for dim, size in _divided(contractions[0]):
        smaller = _split_domain(func, contractions[0], dim, size)
        if smaller is not None:
            return split_dims.run(smaller, ctx)
    return func


@dataclass(frozen=True)
class _Split:
    """One dimension of a domain or of a tensor, by name or by position, becomes (extent / size, size)."""

    dim: str
    position: int
    size: int

    def shape(self, t: TensorType) -> TensorType:
        """The type of a tensor so split."""
        i, n, s = self.position, t.shape[self.position], t.strides
        shape = (*t.shape[:i], n // self.size, self.size, *t.shape[i + 1 :])
        steps = (*s[:i], s[i] * self.size, s[i], *s[i + 1 :])
        return placed(TensorType(t.dtype, shape, t.space), steps, t.start)

    @property
    def names(self) -> tuple[str, str]:
        return f"{self.dim}_hi", f"{self.dim}_lo"

    @property
    def env(self) -> dict[str, Expr]:
        """The split dimension in terms of both parts."""
        hi, lo = map(Sym, self.names)
        return {self.dim: hi * self.size + lo}


def _divided(op: Op) -> Iterator[tuple[str, int]]:
    """Parallel dimensions whose quotient or remainder the op reads, with the divisor."""
    par = dims(op, "par")
    todo: list[Expr] = [e for at in reads(op) for e in at]
    while todo:
        e = todo.pop()
        if not isinstance(e, BinOp):
            continue
        todo += (e.lhs, e.rhs)
        if e.op in ("//", "%") and isinstance(e.lhs, Sym) and isinstance(e.rhs, int):
            extent = par.get(e.lhs.name, 1)
            if 1 < e.rhs < extent and extent % e.rhs == 0:
                yield e.lhs.name, e.rhs


def _split_domain(func: Func, anchor: Op, dim: str, size: int) -> Func | None:
    """Split a dimension of the contraction and of all that follows it; then operands, where possible."""
    split = _Split(dim, list(dims(anchor, "par")).index(dim), size)
    domains: dict[Value, _Split] = dict.fromkeys(anchor.results, split)
    for op in func.body.ops[:-1]:
        if any(v in domains for v in op.operands):
            if dims(op, "par") != dims(anchor, "par"):
                return None
            domains.update(dict.fromkeys(op.results, split))
    if set(split.names) & {d for op in func.body.ops[:-1] for d in (*dims(op, "par"), *dims(op, "red"))}:
        return None
    rebuilt = _rebuilt(func, domains)
    while rebuilt is not None:
        func = rebuilt
        attempts = (_rebuilt(func, s) for s in _operand_splits(func, split.names[0]))
        rebuilt = next((f for f in attempts if f is not None), None)
    return func if split.names[0] in dims(_contraction(func), "par") else None


def _contraction(func: Func) -> Op:
    return next(op for op in func.body.ops if op.name == "tensor.contract")


def _operand_splits(func: Func, hi: str) -> Iterator[dict[Value, _Split]]:
    """Operands read at `hi * size + rest` in one dimension, which could be split by that size."""
    producers = {r: op for op in func.body.ops for r in op.results}
    for op in func.body.ops[:-1]:
        for v, at in zip(op.operands, reads(op), strict=True):
            for i, e in enumerate(at):
                form = coefficients(e, [hi], ranges_of(op))
                size = form[0].get(hi, 0) if form is not None and len(set(symbols(e))) > 1 else 0
                if size > 1 and v.tensor.shape[i] % size == 0 and v.tensor.shape[i] > size:
                    name = list(dims(producers[v], "par"))[i] if v in producers else ""
                    yield {v: _Split(name, i, size)}


def _rebuilt(func: Func, splits: Mapping[Value, _Split]) -> Func | None:
    """The kernel with these values and their producers' domains split; None where a read cannot be."""
    fresh = {v: Value(s.shape(v.tensor), v.hint) for v, s in splits.items()}
    ops: list[Op] = []
    for op in func.body.ops:
        if op.name != "tensor.return":
            split = next((splits[r] for r in op.results if r in splits), None)
            edited = _split_op(op, split, splits)
            if edited is None:
                return None
            op = edited
        ops.append(op)
    return with_types(func, ops, fresh)


def _split_op(op: Op, split: _Split | None, values: Mapping[Value, _Split]) -> Op | None:
    if split is not None:
        op = _with_domain(op, split)
    ranges, indices = ranges_of(op), []
    for v, at in zip(op.operands, reads(op), strict=True):
        if v in values:
            parts = _quotient(at[values[v].position], values[v].size, ranges)
            if parts is None:
                return None
            i = values[v].position
            at = (*at[:i], *parts, *at[i + 1 :])
        indices.append(at)
    return op.with_attrs(reads=tuple(indices))


def _with_domain(op: Op, split: _Split) -> Op:
    """The op over the split domain; reads and index values follow."""
    par: list[tuple[str, int]] = []
    for d, n in dims(op, "par").items():
        hi, lo = split.names
        par += [(hi, n // split.size), (lo, split.size)] if d == split.dim else [(d, n)]
    op = op.with_attrs(par=Pairs(tuple(par)))
    ranges = ranges_of(op)
    places = tuple(tuple(simplify(substitute(e, split.env), ranges) for e in at) for at in reads(op))
    return with_indices(op.with_attrs(reads=places), lambda e: simplify(substitute(e, split.env), ranges))


def _quotient(e: Expr, size: int, ranges: Ranges) -> tuple[Expr, Expr] | None:
    """`e // size` and `e % size` where the linear form of `e` shows them; None otherwise."""
    form = linear(e, ranges)
    whole = Linear.of({t: c // size for t, c in form.terms if c % size == 0}, form.constant // size).expr()
    rest = Linear.of({t: c for t, c in form.terms if c % size}, form.constant % size).expr()
    return (whole, rest) if within(rest, size, ranges) else None
