"""Pass split-viewed-dims: maps and reductions on both sides of a reshape have the same dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from tilewright.ir import Builder, Expr, Func, Level, Op, Pairs, Sym, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import dims, domain, ranges_of, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import is_scaling, is_view, row_major_offset
from tilewright.passes.lower.rules.shaping import reshaped
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.values import with_indices

#: ops whose dimensions may be split
_SPLIT = frozenset({"tensor.map", "tensor.reduce"})

#: steps of memory between which the dimensions of an array lie, the innermost one first: an array of [8, 4]
#: has 1, 4 and 32
_Steps = frozenset[int]


@register_pass(Level.TENSOR)
def split_viewed_dims(func: Func, ctx: PassContext) -> Func:
    """Split dimensions of maps and reductions where what they read or make is reshaped to more of them.

    rewrite:  %y = tensor.map(%x, par = (m: 32, k: 4), reads = [[m, k]]) {relu}
              %v = tensor.map(%y, par = (b: 8, j: 4, k: 4), reads = [[b * 4 + j, k]]) {yield}
              %s = tensor.reduce(%v, par = (k: 4), red = (b: 8, j: 4), reads = [[b, j, k]]) {add}
        -->   %w = tensor.map(%x, par = (b: 8, j: 4, k: 4), reads = [[b * 4 + j, k]]) {yield}
              %y = tensor.map(%w, par = (b: 8, j: 4, k: 4), reads = [[b, j, k]]) {relu}
              %s = tensor.reduce(%y, par = (k: 4), red = (b: 8, j: 4), reads = [[b, j, k]]) {add}

    The reshape then stands before all of them, at a result of a product or at an input, where it costs
    nothing, and not between two ops that might share a kernel: gradients of products are written with samples
    and tokens as one dimension, sums over both with two. What only scales or rounds the result of a product
    keeps its dimensions, for it belongs to the product. Where two reshapes of an array divide it at places
    that no common shape has, it stays as it is.
    """
    if any(op.name == "tensor.call" for op in func.body.ops):
        return func
    frozen: set[Value] = set()
    while True:
        steps = _Arrays(func, frozen)
        conflict = steps.settle()
        if conflict is None:
            return _split(func, steps)
        frozen.add(conflict)


class _Arrays:
    """The arrays that maps and reductions make, and the steps at which their dimensions must be divided."""

    def __init__(self, func: Func, frozen: set[Value]) -> None:
        self.func = func
        self.root: dict[Value, Value] = {}
        self.steps: dict[Value, _Steps] = {}
        for op in func.body.ops:
            if is_view(op):
                self.root[op.result] = self.root.get(op.operands[0], op.operands[0])
        made: list[Value] = []
        products: set[Value] = set()  # results of other ops, scaled or not
        for op in func.body.ops:
            if op.name not in _SPLIT or (is_scaling(op) and op.operands[0] in products):
                products.update(op.results)
            elif not is_view(op):
                made += [r for r in op.results if r.tensor.size and r not in frozen]
        self.known = dict.fromkeys(made)  # in the order of the program
        #: maps and reductions that may be divided: not those whose result keeps its shape
        self.divided = [
            op
            for op in func.body.ops
            if op.name in _SPLIT and not is_view(op) and frozen.isdisjoint(op.results)
        ]
        for v in self.known:
            self.steps[v] = steps_of(v.tensor.shape)
        for op in func.body.ops:
            if is_view(op) or op.name not in (*_SPLIT, "tensor.return"):
                continue
            for v in op.operands:
                if self.source(v) in self.known:
                    self.steps[self.source(v)] |= steps_of(v.tensor.shape)
        self.places = {op: self._places(op) for op in self.divided}

    def source(self, v: Value) -> Value:
        """The array that a value is a reshape of."""
        return self.root.get(v, v)

    def settle(self) -> Value | None:
        """Carry the divisions of each array over to those that are read or made at the same indices.

        Returns an array whose steps no shape has, or None.
        """
        changed = True
        while changed:
            changed = False
            for op in self.divided:
                places = self.places[op]
                for dim, extent in domain(op).items():
                    inner = self.inner(op, dim, extent)
                    for v, step in places.get(dim, ()):
                        wanted = self.steps[v] | {step * n for n in inner}
                        changed = changed or wanted != self.steps[v]
                        self.steps[v] = wanted
        returned = set(self.func.body.ops[-1].operands)
        for v in self.steps:
            if v in returned and self.steps[v] != steps_of(v.tensor.shape):
                return v  # it would have to be copied to have its own shape again
            if not all(b % a == 0 for a, b in pairwise(sorted(self.steps[v]))):
                return v
        for op in self.divided:
            for dim, extent in domain(op).items():
                chain = (*self.inner(op, dim, extent), extent)
                if not all(b % a == 0 for a, b in pairwise(chain)):
                    return self.places[op][dim][0][0]
        return None

    def inner(self, op: Op, dim: str, extent: int) -> tuple[int, ...]:
        """The products of the last extents that a dimension of an op is divided into, ascending."""
        found: set[int] = set()
        for v, step in self.places[op].get(dim, ()):
            found.update(s // step for s in self.steps[v] if step < s < step * extent and not s % step)
        return tuple(sorted(found))

    def _places(self, op: Op) -> Mapping[str, list[tuple[Value, int]]]:
        """Per dimension the known arrays that it alone indexes, and the step of memory that it has there."""
        out: dict[str, list[tuple[Value, int]]] = {}
        whole = domain(op)
        given = [*zip(op.operands, reads(op), strict=True)]
        given += [(r, tuple(map(Sym, dims(op, "par")))) for r in op.results]
        for v, at in given:
            if self.source(v) not in self.known:
                continue
            for i, (e, n) in enumerate(zip(at, v.tensor.shape, strict=True)):
                if isinstance(e, Sym) and whole[e.name] == n > 1:
                    out.setdefault(e.name, []).append((self.source(v), prod(v.tensor.shape[i + 1 :])))
        return out


def steps_of(shape: Sequence[int]) -> _Steps:
    """The steps of memory between which the dimensions of a dense array lie, and its size."""
    return frozenset(prod(shape[i:]) for i in range(len(shape) + 1))


def _split(func: Func, arrays: _Arrays) -> Func:
    """The function with the dimensions of its ops divided, and reshapes where readers need them."""
    writer = _Divider(func)
    divided = set(arrays.divided)
    for op in func.body.ops:
        inner = {d: arrays.inner(op, d, n) for d, n in domain(op).items()} if op in divided else {}
        writer.append(op, {d: _extents(found, domain(op)[d]) for d, found in inner.items() if found})
    return writer.function() if writer.changed else func


def _extents(inner: Sequence[int], extent: int) -> tuple[int, ...]:
    """The extents of the parts of a dimension, the outermost one first."""
    return tuple(large // small for small, large in pairwise((1, *inner, extent)))[::-1]


class _Divider:
    """Writes the ops of a function again, some over the parts of their dimensions."""

    def __init__(self, func: Func) -> None:
        self.func, self.changed = func, False
        self.b = Builder()
        self.new: dict[Value, Value] = {}
        self.source: dict[Value, Value] = {}  # what a written reshape is a reshape of

    def function(self) -> Func:
        """Return what was written, without reshapes that nothing reads."""
        block = self.func.body.with_ops(tuple(self.b.ops))
        return self.func.with_body(block.with_ops(live_ops(block)))

    def append(self, op: Op, parts: Mapping[str, tuple[int, ...]]) -> None:
        """Write an op; parts: the extents of the parts of the dimensions that are divided."""
        if is_view(op):
            self._reshape(op)
        elif parts:
            self.changed = True
            with self.b.at(op.loc):
                self._divide(op, parts)
        else:
            self.b.append(op.with_operands(tuple(self.new.get(v, v) for v in op.operands)))

    def _reshape(self, op: Op) -> None:
        before = self.new.get(op.operands[0], op.operands[0])
        if before is op.operands[0]:
            self.b.append(op)
            self.source[op.result] = before
        else:
            with self.b.at(op.loc):
                self.new[op.result] = self._as(before, op.result.tensor.shape)

    def _as(self, v: Value, shape: Sequence[int]) -> Value:
        """A value under another shape: what it is a reshape of, or a new one."""
        while v.tensor.shape != tuple(shape):
            if v not in self.source:
                result = reshaped(self.b, v, replace(v.tensor, shape=tuple(shape)))
                self.source[result] = v
                return result
            v = self.source[v]
        return v

    def _divide(self, op: Op, parts: Mapping[str, tuple[int, ...]]) -> None:
        names = {d: tuple(f"{d}_{k}" for k in range(len(p))) for d, p in parts.items()}
        env = {d: row_major_offset([Sym(x) for x in names[d]], p) for d, p in parts.items()}
        attrs = {
            which: Pairs(
                tuple(
                    item
                    for d, n in dims(op, which).items()
                    for item in (zip(names[d], parts[d], strict=True) if d in parts else [(d, n)])
                )
            )
            for which in ("par", "red")
            if op.get(which) is not None
        }
        out = op.with_attrs(**attrs)
        ranges = ranges_of(out)

        def placed(e: Expr) -> Expr:
            return simplify(substitute(e, env), ranges) if set(symbols(e)) & set(env) else e

        operands, places = [], []
        for v, at in zip(op.operands, reads(op), strict=True):
            shape: list[int] = []
            index: list[Expr] = []
            for e, n in zip(at, v.tensor.shape, strict=True):
                if isinstance(e, Sym) and e.name in parts and domain(op)[e.name] == n:
                    shape += parts[e.name]
                    index += map(Sym, names[e.name])
                else:
                    shape.append(n)
                    index.append(placed(e))
            operands.append(self._as(self.new.get(v, v), shape))
            places.append(tuple(index))
        out = with_indices(out.with_attrs(reads=tuple(places)).with_operands(tuple(operands)), placed)
        extents = tuple(dims(out, "par").values())
        results = tuple(Value(replace(r.tensor, shape=extents), r.hint) for r in op.results)
        self.b.append(replace(out, results=results))
        for old, r in zip(op.results, results, strict=True):
            self.new[old] = self._as(r, old.tensor.shape)
