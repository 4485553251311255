"""What kernels of gates have in common: blocks of rows and units, threads that own elements of units."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from tilewright.ir import Expr, Func, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.passes.kernels.gated.division import Division
from tilewright.passes.kernels.resident.view import ROW, UNIT, Index, owned
from tilewright.passes.kernels.resident_tiles.elements import UnitElements
from tilewright.passes.kernels.resident_tiles.view import TilesView, column_of, weights_of
from tilewright.passes.kernels.writing.staging import start_copying_matrix
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: copies of a thread that are written out one after the other, at most
_MOST_COPIES = 32


class GatesLowering(UnitElements[int]):
    """Brings weights and rows of the state to shared memory, has them multiplied, and finishes elements.

    Weights are asked for first: where nothing that the kernel waits for writes them, they are on their way
    before that has ended.
    """

    def __init__(self, w: Writer, view: TilesView, division: Division) -> None:
        super().__init__(w, view)
        self._division = division
        across = view.units // division.units
        self.first_row = w.simple(Sym("bid.x") // across * division.rows)
        self.first_unit = w.simple(Sym("bid.x") % across * division.units)
        (self.product,) = view.products

    @abstractmethod
    def _allocated_state(self) -> Value:
        """A buffer in shared memory for the rows of the state."""

    @abstractmethod
    def _allocated_weights(self, shape: tuple[int, int], *, by_rows: bool) -> Value:
        """A buffer in shared memory for the weights of a gate; by_rows: whether sums are along its rows."""

    @abstractmethod
    def _multiply(self, state: Value, weights: Sequence[tuple[Value, bool]]) -> None:
        """Make the sums known that this thread's elements need.

        weights: per gate those of this block's units, and whether sums are along their rows.
        """

    def lowered(self) -> Func:
        """The whole kernel."""
        w, view, points = self.w, self.view, self._division.points()
        weights = self._weights()
        state = self._allocated_state()
        source = w.inputs[self.product.state]
        outer = (0,) * (len(source.tensor.shape) - 2)
        self._copy(source, (*outer, self.first_row, 0), state, self._division.rows)
        w.b.do("thread.async_commit")
        for elements in view.of_row.read:
            for v, at in elements:
                for point in range(points):
                    self._value(v, at, point)
        w.b.do("thread.async_wait", pending=0)
        w.b.do("thread.barrier")
        self._multiply(state, weights)
        for v in dict.fromkeys(v for v, _ in view.of_row.ready):
            with w.b.at(w.producers[v].loc):
                for at in owned(v, view.units, view.rows):
                    for point in range(points):
                        value = self._value(v, at, point)
                        w.store(value, w.outputs[v], self._placed(at, point), self._mask(point))
        return w.finish()

    def _number(self, point: int) -> Expr:
        """The number of a thread's element among those of the block, units side by side."""
        return self.w.simple(Sym("tid") + point * self._division.threads())

    def _mask(self, point: int) -> Mask:
        return self.w.below(self._number(point), self._division.rows * self._division.units)

    def _place(self, point: int) -> tuple[Expr, Expr]:
        """The row and the unit of an element among those of the block."""
        row, unit = self.w.unravel(self._number(point), (self._division.rows, self._division.units))
        return row, unit

    def _placed(self, at: Sequence[Expr], point: int) -> Index:
        """An index for an element of this thread."""
        row, unit = self._place(point)
        env = {ROW: self.first_row + row, UNIT: self.first_unit + unit}
        return tuple(self.w.simple(substitute(e, env)) for e in at)

    def _copy(self, source: Value, first: Index, to: Value, rows: int | None = None) -> None:
        threads = self._division.threads()
        start_copying_matrix(self.w, source, first, to, threads, rows=rows, most_unrolled=_MOST_COPIES)

    def _weights(self) -> list[tuple[Value, bool]]:
        w, units, view = self.w, self._division.units, self.view
        tiles: list[tuple[Value, bool]] = []
        for v, at in weights_of(view, self.product):
            column = column_of(at)
            assert column is not None
            by_rows, first = column
            shape = (units, view.length) if by_rows else (view.length, units)
            tile = self._allocated_weights(shape, by_rows=by_rows)
            start = (first + self.first_unit, 0) if by_rows else (0, first + self.first_unit)
            self._copy(w.inputs[v], start, tile)
            tiles.append((tile, by_rows))
        return tiles
