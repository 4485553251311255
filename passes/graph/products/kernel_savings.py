"""Counts the kernels that one product for several saves, in the ops around it; equal ones count once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from tilewright.ir import Block, Builder, Constants, Func, Module, Op, Value
from tilewright.passes import PassContext
from tilewright.passes.graph.products.parallel_products import ProductGroup

#: steps from the input of a group to ops that are counted with it, and from these to what computes what they
#: read; concatenations behind convolutions, biases and activations, and their other pieces, take part
AHEAD, BEHIND = 8, 1


class Savings:
    """Kernels saved by merging groups, in a function of graph ops.

    merged: a function with groups merged. Networks repeat their layers: surroundings that are equal but for
    the names and numbers of constants are lowered once.
    """

    def __init__(
        self, func: Func, merged: Callable[[Func, Sequence[ProductGroup]], Func], ctx: PassContext
    ) -> None:
        self._func, self._merged = func, merged
        self._context = replace(ctx, instruments=(), reproducer_folder=None)
        self._producer = {r: op for op in func.body.ops for r in op.results}
        self._readers: dict[Value, list[Op]] = {}
        for op in func.body.ops:
            for v in op.operands:
                self._readers.setdefault(v, []).append(op)
        self._places: dict[ProductGroup, tuple[Func, Hashable]] = {}
        self._known: dict[Hashable, int] = {}

    def of_all(self, groups: Sequence[ProductGroup]) -> int:
        """Return the number of kernels saved by one product in place of each group's."""
        distinct = {key: len(around.body.ops) for around, key in map(self._place, groups)}
        if sum(distinct.values()) > len(self._func.body.ops):  # little is repeated
            return self._difference(self._func, groups)
        return sum(map(self.of, groups))

    def of(self, group: ProductGroup) -> int:
        """Return the number of kernels saved by one product in place of this group's alone."""
        around, key = self._place(group)
        if key not in self._known:
            self._known[key] = self._difference(around, [group])
        return self._known[key]

    def _place(self, group: ProductGroup) -> tuple[Func, Hashable]:
        if group not in self._places:
            around = self._around(group)
            self._places[group] = around, _key(around, group)
        return self._places[group]

    def _difference(self, func: Func, groups: Sequence[ProductGroup]) -> int:
        return self._count(func) - self._count(self._merged(func, groups))

    def _count(self, func: Func) -> int:
        module = Module("count", (replace(func, name="main"),), constants=Constants({}))
        kernels = self._context.estimator.stored_kernels(module, self._context)
        return sum(op.name == "tensor.call" for op in kernels.main.body.ops)

    def _around(self, group: ProductGroup) -> Func:
        """The ops around a group as a function of their own."""
        x = group.members[0].op.operands[0]
        near = _spread([x], AHEAD, self._reading, lambda op: op.results)
        read = [x, *(v for op in near for v in op.operands)]
        near |= _spread(read, BEHIND, self._computing, lambda op: op.operands)
        near |= {op for v in list(_operands(near)) for op in self._computing(v) if _is_constant(op)}
        ops = [op for op in self._func.body.ops if op in near]
        made = {r for op in ops for r in op.results}
        params = dict.fromkeys(v for v in _operands(ops) if v not in made)
        results = [
            r
            for op in ops
            for r in op.results
            if not _is_constant(op) and any(u not in near for u in self._readers.get(r, ()))
        ]
        b = Builder()
        b.do("graph.return", *results)
        types = tuple(r.type for r in results)
        around = replace(self._func, body=Block(tuple(params), (*ops, *b.ops)), result_types=types)
        return around.with_attrs(updates=())  # which name parameters and results of the whole function

    def _reading(self, v: Value) -> list[Op]:
        return [op for op in self._readers.get(v, ()) if op.name != "graph.return"]

    def _computing(self, v: Value) -> list[Op]:
        return [self._producer[v]] if v in self._producer else []


def _is_constant(op: Op) -> bool:
    return op.name == "graph.constant"


def _operands(ops: Iterable[Op]) -> Iterator[Value]:
    return (v for op in ops for v in op.operands)


def _spread(
    values: Iterable[Value],
    steps: int,
    ops_at: Callable[[Value], Iterable[Op]],
    values_of: Callable[[Op], Collection[Value]],
) -> set[Op]:
    """The ops that are at most so many steps away from some values."""
    ops: set[Op] = set()
    for _ in range(steps):
        fresh = {op for v in values for op in ops_at(v)} - ops
        ops |= fresh
        values = [v for op in fresh for v in values_of(op)]
    return ops


def _key(func: Func, group: ProductGroup) -> Hashable:
    """Equal for functions and groups that are equal but for the names and numbers of constants."""
    number = {v: i for i, v in enumerate(func.body.params)}
    names: dict[object, int] = {}
    rows: list[Hashable] = [tuple(v.type for v in func.body.params)]
    place: dict[Op, int] = {}
    for op in func.body.ops:
        place[op] = len(rows)
        attrs: Hashable = op.attrs
        if _is_constant(op):
            attrs = names.setdefault(op["name"], len(names))
        operands = tuple(number[v] for v in op.operands)
        rows.append((op.name, attrs, operands, tuple(r.type for r in op.results)))
        number.update((r, len(number) + i) for i, r in enumerate(op.results))
    members = tuple(place[p.op] for p in group.members)
    join = -1 if group.join is None else place[group.join]
    return tuple(rows), members, join, group.leads, group.pieces
