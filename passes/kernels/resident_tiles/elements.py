"""Elements of units that a thread computes once each, for products and the maps behind them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from tilewright.ir import Expr, Value
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import dims
from tilewright.passes.kernels.resident.view import ROW, UNIT, Index, map_operands
from tilewright.passes.kernels.resident_tiles.view import TilesView
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: what numbers the elements of a thread
P = TypeVar("P")


class UnitElements(ABC, Generic[P]):
    """The elements of a kernel that a thread owns at each of its points, by the index that the view has.

    known: elements that the kernel has computed or loaded. Sums of products must be known before what
    depends on them is asked for.
    """

    def __init__(self, w: Writer, view: TilesView) -> None:
        self.w, self.view = w, view
        self.ranges = {UNIT: (0, view.units - 1), ROW: (0, view.rows - 1)}
        self.known: dict[tuple[Value, Index, P], Value] = {}

    @abstractmethod
    def _placed(self, at: Sequence[Expr], point: P) -> Index:
        """An index for an element of this thread."""

    def _mask(self, point: P) -> Mask:
        """Where this thread has an element at a point: everywhere, unless a lowering says otherwise."""
        return ()

    def _value(self, v: Value, at: Sequence[Expr], point: P) -> Value:
        """An element, by the index that the view knows it by."""
        index = tuple(simplify(e, self.ranges) for e in at)
        key = (v, index, point)
        if key in self.known:
            return self.known[key]
        if v in self.w.inputs:
            self.known[key] = self.w.load(self.w.inputs[v], self._placed(index, point), self._mask(point))
            return self.known[key]
        op = self.w.producers[v]
        operands = [self._value(u, place, point) for u, place in map_operands(op, index, self.ranges)]
        env = dict(zip(dims(op, "par"), self._placed(index, point), strict=True))
        results = self.w.inline(op, operands, env)
        self.known.update(((r, index, point), x) for r, x in zip(op.results, results, strict=True))
        return self.known[key]
