"""The problem of choosing an order for every value of a flat tensor program, and its solution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Literal

import numpy as np

from tilewright.costmodel import Hardware
from tilewright.costmodel.selection import Problem, Selection, Table, exact, settled, shortest_path
from tilewright.ir import Attr, Constants, Func, Module, Value
from tilewright.passes import PassContext
from tilewright.passes.tensor.layouts.axes import Order
from tilewright.passes.tensor.layouts.candidates import usable_orders
from tilewright.passes.tensor.layouts.pieces import (
    Piece,
    PieceCosts,
    inner_orders,
    pieces_of,
    touched,
)

#: combinations of orders up to which a kernel is estimated for each of them; beyond, its operands are priced
#: one by one for each order of its first result
MOST_JOINT = 32

Method = Literal["exact", "sssp"]


@dataclass(frozen=True)
class OrderProblem:
    """The problem of selection of a program: a variable per value, whose labels are its orders as text.

    separated: kernels of so many operands that these were priced one by one. inside: values that only one
    kernel makes and reads, which are no variables.
    """

    problem: Problem
    values: Mapping[str, Value]
    orders: Mapping[str, tuple[Order, ...]]
    separated: tuple[str, ...]
    pieces: tuple[Piece, ...]
    inside: frozenset[Value]

    def solved(self, method: Method) -> Selection:
        """A choice by this method."""
        return settled(
            self.problem, exact(self.problem) if method == "exact" else shortest_path(self.problem)
        )

    def chosen(self, selection: Selection) -> dict[Value, Order]:
        """The orders that change, from the labels of a choice; values inside kernels follow their results."""
        orders: dict[Value, Order] = {}
        for name, v in self.values.items():
            orders[v] = self.orders[name][self.problem.domains[name].index(selection.labels[name])]
        for piece in self.pieces:
            for v, order in inner_orders(piece, orders).items():
                if v in self.inside:
                    orders.setdefault(v, order)
        return {v: order for v, order in orders.items() if order != tuple(range(len(order)))}

    def labels(self, orders: Mapping[Value, Order]) -> dict[str, str]:
        """The labels of given orders of values, the present one where none is given.

        Raises KeyError where an order is none of those compared.
        """
        out = {}
        for name, domain in self.problem.domains.items():
            if name in self.values:
                v = self.values[name]
                wide = _wide(v, orders.get(v, tuple(range(v.tensor.rank))))
                at = {_wide(v, order): i for i, order in enumerate(self.orders[name])}
                out[name] = domain[at[wide]]
        return out


def order_problem(
    func: Func,
    constants: Constants,
    hardware: Hardware,
    ctx: PassContext,
    *,
    every: bool = False,
    boundary: bool = False,
    partitioner: str = "rules",
) -> OrderProblem:
    """The problem of a flat tensor function: kernels as far as they are known, priced by their estimates.

    every, boundary: as of `usable_orders`; a program whose boundary moves is priced, never rewritten.
    partitioner: what chooses which ops share a kernel.
    """
    module = Module("flat", (func,), constants=constants)
    flat = ctx.estimator.inlined(module, ctx, partitioner=partitioner).main
    known = {*func.params, *(r for op in func.body.ops for r in op.results)}
    compared = usable_orders(flat, every=every, boundary=boundary)
    usable = {v: orders for v, orders in compared.items() if v in known}
    pieces = pieces_of(flat, constants, ctx, partitioner)
    costs = PieceCosts(hardware, ctx, partitioner)
    shared = {v for piece in pieces for v in (*piece.inputs, *piece.results)}
    values = {f"v{i}": v for i, v in enumerate(v for v, o in usable.items() if v in shared and len(o) > 1)}
    orders = {name: usable[v] for name, v in values.items()}
    name_of = {v: name for name, v in values.items()}
    domains = {name: tuple(map(order_text, orders[name])) for name in values}
    tables: list[Table] = []
    separated: list[str] = []
    for piece in pieces:
        names = [name_of[v] for v in touched(piece) if v in name_of]
        table = _PieceTables(piece, costs, values, orders, names)
        if prod(len(orders[n]) for n in names) <= MOST_JOINT:
            tables.append(table.joint())
        else:
            separated.append(piece.name)
            tables += table.separate()
    inside = frozenset(usable) - shared
    return OrderProblem(
        Problem(domains, tuple(tables)), values, orders, tuple(separated), tuple(pieces), inside
    )


def selection_facts(orders: OrderProblem, selection: Selection, method: Method) -> dict[str, Attr]:
    """What reports say of a choice: by which method, what it costs, what proves it, and what did not go as
    asked.

    Seconds are of all kernels of the program by the model. unchanged_s: in the orders of the network;
    free_s: with every kernel in the orders that are best for it alone, which no choice can beat.
    """
    problem = orders.problem
    facts: dict[str, Attr] = {
        "method": method,
        "by": selection.method,
        "seconds": selection.seconds,
        "bound_s": selection.bound_s,
        "unchanged_s": problem.seconds(orders.labels({})),
        "free_s": problem.free_s,
        "variables": len(orders.values),
        "kernels": len({t.kernel for t in problem.tables}),
        "entries": sum(t.seconds.size for t in problem.tables),
        "separated": len(orders.separated),
    }
    if selection.width is not None and selection.largest is not None:
        facts |= {"width": selection.width, "largest_table": selection.largest}
    if selection.note:
        facts["note"] = selection.note
    return facts


def order_text(order: Sequence[int]) -> str:
    """An order as a label: the old axes, outermost first."""
    return ",".join(map(str, order))


def _wide(v: Value, order: Order) -> Order:
    return tuple(axis for axis in order if v.tensor.shape[axis] > 1)


@dataclass(frozen=True)
class _PieceTables:
    """Tables of one piece over the variables it touches."""

    piece: Piece
    costs: PieceCosts
    values: Mapping[str, Value]
    orders: Mapping[str, tuple[Order, ...]]
    names: Sequence[str]

    def joint(self) -> Table:
        """Every combination of orders."""
        shape = [len(self.orders[n]) for n in self.names]
        seconds = np.empty(shape)
        for places in product(*map(range, shape)):
            seconds[places] = self._seconds(dict(zip(self.names, places, strict=True)))
        return self._table(self.names, seconds)

    def separate(self) -> list[Table]:
        """One table for the present orders of all but the first result, and one per further value.

        The further values are priced by what each costs more than in its best order with this result.
        """
        lead = next((n for n in self.names if self.values[n] in self.piece.results), self.names[0])
        rest = [n for n in self.names if n != lead]
        rows = range(len(self.orders[lead]))
        best = {n: np.zeros(len(rows), dtype=int) for n in rest}
        own = np.array([self._seconds({lead: i}) for i in rows])
        for _ in range(2):  # the second time with the other values in their best orders
            for n in rest:
                for i in rows:
                    at = {m: int(best[m][i]) for m in rest}
                    options = [self._seconds({lead: i, **at, n: k}) for k in range(len(self.orders[n]))]
                    best[n][i] = int(np.argmin(options))
        for i in rows:
            own[i] = self._seconds({lead: i, **{m: int(best[m][i]) for m in rest}})
        tables = [self._table([lead], own)]
        for n in rest:
            extra = np.empty((len(rows), len(self.orders[n])))
            for i in rows:
                at = {m: int(best[m][i]) for m in rest}
                for k in range(len(self.orders[n])):
                    more = self._seconds({lead: i, **at, n: k}) - own[i]
                    extra[i, k] = max(0.0, more) if own[i] < np.inf else 0.0
            tables.append(self._table([lead, n], extra))
        return tables

    def _table(self, names: Sequence[str], seconds: np.ndarray) -> Table:
        own = [n for n in names if self.values[n] in self.piece.results]
        reads = tuple(n for n in names if n not in own)
        return Table(self.piece.name, tuple(names), seconds, reads, tuple(own), self.piece.phase)

    def _seconds(self, places: Mapping[str, int]) -> float:
        orders = {self.values[n]: self.orders[n][i] for n, i in places.items()}
        return self.costs.seconds(self.piece, orders)
