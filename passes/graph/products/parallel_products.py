"""Products that read one input and may be one product: the same op, attributes and elementwise ops behind."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from tilewright.ir import Func, Op, Value
from tilewright.ir.facts import Elements
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.opdef import facts_of
from tilewright.ir.types import TensorType, itemsize

#: products, and where their constant operand has the output channel (by layout or by a flag for the others)
CONVOLUTIONS = frozenset(f"graph.conv{n}d" for n in (1, 2, 3))
PRODUCTS = CONVOLUTIONS | {"graph.dense", "graph.matmul", "graph.batch_matmul"}
#: ops that may give back what they read
_SAME = frozenset(
    f"graph.{n}" for n in ("reshape", "squeeze", "broadcast_to", "dropout", "copy", "stop_gradient")
)
#: readers that write what they read to a place of its own: a slice there would be a copy
_PLACED = frozenset({"graph.concatenate", "graph.stack", "graph.return"})
#: rows and first elements of what tensor cores copy asynchronously lie at multiples of so many bytes
COPY_BYTES = ASYNC_COPY_BYTES[0]


@dataclass(frozen=True, eq=False)
class EpilogueStep:
    """An elementwise op behind a product.

    constant: position of a constant operand, -1 without one. axis: its dimension that has one value per
    output channel, -1 where it has one value for all.
    """

    op: Op
    constant: int = -1
    axis: int = -1


@dataclass(frozen=True, eq=False)
class Product:
    """A product with a constant operand and the elementwise ops that are alone in reading it."""

    op: Op
    steps: tuple[EpilogueStep, ...]
    end: Value

    @property
    def channels(self) -> int:
        """Number of output channels."""
        return self.op.result.tensor.shape[channel_axis(self.op)]


def channel_axis(op: Op) -> int:
    """Position of the output channel in the result of a product."""
    if op.name in CONVOLUTIONS:
        return str(op["data_layout"]).index("C")
    return op.result.tensor.rank - 1


def weight_axis(op: Op) -> int:
    """Position of the output channel in the constant operand of a product."""
    if op.name in CONVOLUTIONS:
        return str(op["kernel_layout"]).index("O")
    if op.name == "graph.dense":
        return 0
    return op.operands[1].tensor.rank - (2 if op["transpose_b"] else 1)


@dataclass(frozen=True, eq=False)
class ProductGroup:
    """Products that can be one, in the order of their channels in it.

    join: a concatenation along the channels whose first (`leads`) or last operands are the last, or first,
    members; the other members then lie beside the joined array, in one with it.
    """

    members: tuple[Product, ...]
    join: Op | None = None
    leads: bool = True
    pieces: int = 0

    @property
    def apart(self) -> tuple[Product, ...]:
        """The members that are read as slices."""
        if not self.pieces:
            return self.members
        return self.members[: -self.pieces] if self.leads else self.members[self.pieces :]

    @property
    def without_join(self) -> ProductGroup | None:
        """The group of those members only that go into no concatenation."""
        return ProductGroup(self.apart) if self.pieces and len(self.apart) > 1 else None


def parallel_products(func: Func, pool: ConstantPool) -> list[ProductGroup]:
    """Groups of two and more products that can be one.

    The members of a group read the same first operand, have equal attributes and constants that differ in the
    output channels at most, are followed by the same elementwise ops, and have channels that all are, or all
    are not, whole blocks of `COPY_BYTES`. Results of the function are in none, and of the pieces of
    concatenations those only that can be written in place: others would be copied from a slice.
    """
    finder = _Finder(func, pool)
    by_key: dict[Hashable, list[Product]] = {}
    for op in func.body.ops:
        if op.name in PRODUCTS and op.get("groups", 1) == 1 and finder.array(op.operands[1]) is not None:
            p = finder.product(op)
            by_key.setdefault(finder.key(p), []).append(p)
    joins: set[Op] = set()
    groups = [finder.group(products, joins) for products in by_key.values() if len(products) > 1]
    return [g for g in groups if len(g.members) > 1]


class _Finder:
    def __init__(self, func: Func, pool: ConstantPool) -> None:
        self.pool = pool
        self.constants = {op.result: op for op in func.body.ops if op.name == "graph.constant"}
        self.users: dict[Value, list[Op]] = {}
        for op in func.body.ops:
            for v in op.operands:
                self.users.setdefault(v, []).append(op)

    def array(self, v: Value) -> np.ndarray | None:
        return self.pool.array(self.constants.get(v))

    def product(self, op: Op) -> Product:
        """The product with as many ops behind it as can be done for several at once."""
        steps: list[EpilogueStep] = []
        value = op.result
        while len(users := self.users.get(value, [])) == 1:
            (user,) = users
            if user.name in _SAME and user.result.type == value.type and len(user.operands) == 1:
                value = user.result
                continue
            step = self._step(user, value, channel_axis(op))
            if step is None:
                break
            steps.append(step)
            value = user.result
        return Product(op, tuple(steps), value)

    def _step(self, op: Op, value: Value, channel: int) -> EpilogueStep | None:
        elementwise = _per_channel(op) or facts_of(op.name).elements is Elements.MAPS
        if not elementwise or len(op.results) != 1 or op.result.tensor.shape != value.tensor.shape:
            return None
        if len(op.operands) == 1:
            return EpilogueStep(op)
        if len(op.operands) != 2:
            return None
        i = 1 if op.operands[0] is value else 0
        if self.array(op.operands[i]) is None:
            return None
        t = op.operands[i].tensor
        if _per_channel(op):
            own = op.integer("axis") % value.tensor.rank == channel and i == 1
            return EpilogueStep(op, i, 0) if own else None
        if t.size == 1:
            return EpilogueStep(op, i)
        axis = channel - (value.tensor.rank - t.rank)
        per_channel = axis >= 0 and t.size == t.shape[axis] == value.tensor.shape[channel]
        return EpilogueStep(op, i, axis) if per_channel else None

    def placed(self, v: Value) -> bool:
        return any(user.name in _PLACED for user in self.users.get(v, []))

    def group(self, products: Sequence[Product], joins: set[Op]) -> ProductGroup:
        """Return those of equal products that can be one; `joins` has the concatenations taken already."""
        apart = tuple(p for p in products if not self.placed(p.end))
        best = ProductGroup(apart)
        for join in dict.fromkeys(user for p in products for user in self.users.get(p.end, [])):
            if join in joins or not self._may_grow(join, channel_axis(products[0].op)):
                continue
            by_end = {p.end: p for p in products if len(self.users.get(p.end, [])) == 1}
            for leads in (True, False):
                row = join.operands if leads else join.operands[::-1]
                pieces = tuple(by_end[v] for v in takewhile(by_end.__contains__, row))
                if len(pieces) > best.pieces:
                    members = (*apart, *pieces) if leads else (*pieces[::-1], *apart)
                    best = ProductGroup(members, join, leads, len(pieces))
        if best.join is not None:
            joins.add(best.join)
        return best

    def _may_grow(self, join: Op, channel: int) -> bool:
        """Return True where a concatenation along the channels may be a slice of a larger one."""
        if join.name != "graph.concatenate" or len(set(join.operands)) < len(join.operands):
            return False
        return join.integer("axis") % join.result.tensor.rank == channel and not self.placed(join.result)

    def key(self, p: Product) -> Hashable:
        """Equal for products that can be one."""
        weight, axis = p.op.operands[1].tensor, weight_axis(p.op)
        other = tuple(n for d, n in enumerate(weight.shape) if d != axis)
        aligned = p.channels * itemsize(p.end.tensor.dtype) % COPY_BYTES == 0
        product = (p.op.name, p.op.operands[0], _attrs(p.op), weight.dtype, weight.rank, other)
        return product, aligned, tuple(self._step_key(s) for s in p.steps)

    def _step_key(self, s: EpilogueStep) -> Hashable:
        attrs = () if _per_channel(s.op) else _attrs(s.op)
        if s.constant < 0:
            return s.op.name, attrs
        t = s.op.operands[s.constant].tensor
        same: Hashable = t.rank
        if s.axis < 0:
            array = self.array(s.op.operands[s.constant])
            assert array is not None
            same = t, array.tobytes()
        return s.op.name, attrs, s.constant, s.axis, t.dtype, same


def _per_channel(op: Op) -> bool:
    """Return True for ops whose further operands have one value per index of the attribute `axis`."""
    return facts_of(op.name).elements is Elements.MAPS_PER_CHANNEL


def _attrs(op: Op) -> Hashable:
    return tuple((k, repr(v)) for k, v in op.attrs)


def joined_type(types: Iterable[TensorType], axis: int) -> TensorType:
    """The type of arrays one after another along `axis`."""
    first, *others = types
    n = first.shape[axis] + sum(t.shape[axis] for t in others)
    return TensorType(first.dtype, (*first.shape[:axis], n, *first.shape[axis + 1 :]))


def whole_product(group: ProductGroup) -> Op:
    """One product in place of those of a group, its constant not made yet."""
    first, ops = group.members[0].op, [p.op for p in group.members]
    weight = joined_type((op.operands[1].tensor for op in ops), weight_axis(first))
    result = joined_type((op.result.tensor for op in ops), channel_axis(first))
    return Op(first.name, (first.operands[0], Value(weight)), first.attrs, (Value(result),))
