"""Calls of one program that are the steps of a recurrence: products each of which reads what maps made of the
one before, in equal forms, and the maps between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import Func, Op, Value
from tilewright.ir.tensor.ops import dims, fills
from tilewright.passes.tensor.joins.merge import kernel_of

#: products of a recurrence, at least
FEWEST = 3


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A recurrence of @main: its products in order, and all calls, maps before, between and behind included.

    Nothing outside of the calls lies between two of them. inner: the calls without maps before and behind.
    """

    products: tuple[Op, ...]
    calls: tuple[Op, ...]
    inner: tuple[Op, ...]


def recurrences(main: Func, kernels: Mapping[str, Func]) -> Iterator[Recurrence]:
    """The recurrences of a program of outlined kernels, the first ones first.

    kernels: those that may be joined, by name. A step's product has the extents of the product before, whose
    result it reads through maps. Products that read one state belong to one step.
    """
    yield from _Search(main.body.ops, kernels).all()


def parts_of(found: Recurrence, calls: Sequence[Op], main: Func, most: int) -> tuple[tuple[Op, ...], ...]:
    """Calls of a recurrence as parts in turn, of at most so many products one behind the other.

    Another part begins where calls outside may go on with what the steps so far gave, while later steps run:
    a layer above that takes some steps at a time. Calls that only later ones than the last step lead to, as
    those of a backward pass, are none of them. No cut leaves a part fewer products than a recurrence has.
    """
    products = set(found.products)
    depth: dict[Value, int] = {}
    depth_of: dict[Op, int] = {}
    for op in calls:
        depth_of[op] = max((depth.get(v, 0) for v in op.operands), default=0) + (op in products)
        depth.update((r, depth_of[op]) for r in op.results)
    last, inside = max(depth_of.values()), set(calls)
    behind = {v for v, d in depth.items() if d == last}
    cuts: set[int] = set()
    for op in main.body.ops:
        read = [v for v in op.operands if v in depth]
        if op in inside:
            continue
        if any(v in behind for v in op.operands):
            behind.update(op.results)
        elif read:
            cuts.add(max(depth[v] for v in read))
    first, number = min(depth_of.values()), 0
    ends: list[int] = []
    for end in sorted(cuts):
        if end - (ends[-1] if ends else first) >= FEWEST and last - end >= FEWEST:
            ends.append(end)
    ends.append(last)
    part_of: dict[int, int] = {}
    for end in ends:
        for d in range(first, end + 1):
            part_of[d] = number + (d - first) // most
        number, first = part_of[end] + 1, end + 1
    parts: dict[int, list[Op]] = {}
    for op in calls:
        parts.setdefault(part_of[depth_of[op]], []).append(op)
    return tuple(tuple(parts[n]) for n in sorted(parts))


class _Search:
    def __init__(self, ops: Sequence[Op], kernels: Mapping[str, Func]) -> None:
        self.ops = ops
        self.kernels = {id(op): k for op in ops if (k := _step_kernel_of(op, kernels)) is not None}
        self.position = {id(op): i for i, op in enumerate(ops)}
        self.producer = {r: op for op in ops for r in op.results}
        self.readers: dict[Value, list[Op]] = {}
        for op in ops:
            for v in op.operands:
                self.readers.setdefault(v, []).append(op)
        self.product = {i: p for i, k in self.kernels.items() if (p := _product_of(k)) is not None}

    def all(self) -> Iterator[Recurrence]:
        """Every chain of products with the maps that belong to it."""
        chain_of: dict[int, list[Op]] = {}
        for op in self.ops:
            if id(op) not in self.product:
                continue
            before = self._before(op)
            chain = chain_of[id(before)] if before is not None else []
            chain.append(op)
            chain_of[id(op)] = chain
        seen: set[int] = set()
        for chain in chain_of.values():
            if id(chain) not in seen and len(chain) >= FEWEST and (found := self._closed(chain)) is not None:
                yield found
            seen.add(id(chain))

    def _before(self, op: Op) -> Op | None:
        """The latest product of the same extents from whose result maps make what this one multiplies."""
        form = _form(self.product[id(op)])
        waiting = [self.producer.get(v) for v in self._multiplied(op)]
        seen: set[int] = set()
        found: Op | None = None
        while waiting:
            made = waiting.pop()
            if made is None or id(made) in seen or id(made) not in self.kernels:
                continue
            seen.add(id(made))
            if id(made) not in self.product:
                waiting += [self.producer.get(v) for v in made.operands]
            elif _form(self.product[id(made)]) == form:
                found = max((found or made), made, key=lambda op: self.position[id(op)])
        return found

    def _multiplied(self, op: Op) -> list[Value]:
        """The values of @main from which a call's product has its factors."""
        kernel = self.kernels[id(op)]
        producer = {r: o for o in kernel.body.ops for r in o.results}
        given = dict(zip(kernel.params, op.operands, strict=True))
        waiting, out = list(self.product[id(op)].operands), []
        while waiting:
            v = waiting.pop()
            if v in given:
                out.append(given[v])
            elif v in producer:
                waiting += producer[v].operands
        return out

    def _closed(self, products: Sequence[Op]) -> Recurrence | None:
        """Products with what lies between them, and the maps behind; None where something else does."""
        inside = {id(op) for op in products}
        below = self._below(inside)
        above = self._above(inside)
        between = below & above
        if not all(i in self.kernels for i in between - inside):
            return None
        if any(i in self.product for i in between - inside):
            return None
        inside |= between
        inner = tuple(op for op in self.ops if id(op) in inside)
        largest = max(r.tensor.size for op in products for r in self.product[id(op)].results)
        for op in reversed(self.ops):
            reading = [r for v in op.results for r in self.readers.get(v, ())]
            outside = [r for r in reading if id(r) not in inside]
            free = id(op) not in below and not any(id(r) in above for r in outside)
            if free and len(outside) < len(reading) and self._small(op, largest):
                inside.add(id(op))
        below = self._below(inside)
        for op in self.ops:
            made = [self.producer[v] for v in op.operands if v in self.producer]
            outside = [m for m in made if id(m) not in inside]
            free = not any(id(m) in below for m in outside)
            if free and len(outside) < len(made) and self._small(op, largest):
                inside.add(id(op))
        return Recurrence(tuple(products), tuple(op for op in self.ops if id(op) in inside), inner)

    def _small(self, op: Op, largest: int) -> bool:
        """Return whether a call has only maps, of at most so many elements, that read nothing outside."""
        if id(op) not in self.kernels or id(op) in self.product:
            return False
        inside = all(fill is None for o in self.kernels[id(op)].body.ops[:-1] for fill in fills(o))
        return inside and all(r.tensor.size <= largest for r in op.results)

    def _below(self, inside: set[int]) -> set[int]:
        """Ops that read, at once or later, what these give."""
        below: set[int] = set()
        reached: set[Value] = set()
        for op in self.ops:
            if any(v in reached for v in op.operands):
                below.add(id(op))
            if id(op) in below or id(op) in inside:
                reached.update(op.results)
        return below

    def _above(self, inside: set[int]) -> set[int]:
        """Ops whose results these read, at once or later."""
        above: set[int] = set()
        needed: set[Value] = set()
        for op in reversed(self.ops):
            if any(r in needed for r in op.results):
                above.add(id(op))
            if id(op) in above or id(op) in inside:
                needed.update(op.operands)
        return above


def _step_kernel_of(op: Op, kernels: Mapping[str, Func]) -> Func | None:
    """The kernel of a call that may be joined: one of maps and at most one product."""
    kernel = kernel_of(op, kernels)
    if kernel is None or not {o.name for o in kernel.body.ops[:-1]} <= {"tensor.contract", "tensor.map"}:
        return None
    return kernel if sum(o.name == "tensor.contract" for o in kernel.body.ops) <= 1 else None


def _product_of(kernel: Func) -> Op | None:
    return next((o for o in kernel.body.ops if o.name == "tensor.contract"), None)


def _form(product: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The extents that products of equal form share: of results and of sums."""
    par = tuple(sorted(n for n in dims(product, "par").values() if n > 1))
    red = tuple(sorted(dims(product, "red").values()))
    return par, red
