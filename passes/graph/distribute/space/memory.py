"""Memory that every rank of a split in space takes: its weights, and the most that is alive at any op."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.ir.nodes import Func, Op, Value
from tilewright.passes.graph.distribute.distribution import Distribution, Need
from tilewright.passes.graph.distribute.placement import Placement
from tilewright.passes.graph.distribute.space.cost import missing_rows, row_bytes
from tilewright.passes.graph.distribute.spreading import Spread

_Bytes = np.ndarray[tuple[int], np.dtype[np.float64]]


def rank_bytes(func: Func, spread: Spread, devices: int) -> tuple[float, ...]:
    """Bytes of every rank: rows of the weights it reads, each once, and the values alive at its fullest op.

    Inputs and results are whole on every rank. Halos lie beside the rows that they belong to; what is
    gathered, or added up over ranks, is there beside its pieces. Kernels that take several ops need less.
    """
    count = _Lives(func, spread, devices)
    return tuple(float(b) for b in count.weights() + count.peaks())


class _Lives:
    """Bytes over the ops of a function, by rank: what begins to live with an op, and what ends before it."""

    def __init__(self, func: Func, spread: Spread, devices: int) -> None:
        self.ops, self.spread, self.devices = func.body.ops, spread, devices
        self.params = func.params
        self.constants = {r for op in self.ops if op.name == "graph.constant" for r in op.results}
        self.changes = np.zeros((len(self.ops) + 1, devices))

    def weights(self) -> _Bytes:
        found = np.zeros(self.devices)
        read: set[tuple[int, Value, Need | None]] = set()
        for _, op, placement in self._placed():
            for v, needs in self._operands(op, placement):
                if v in self.constants:
                    rows = needs or (None,) * self.devices
                    read.update((rank, v, need) for rank, need in enumerate(rows))
        for rank, v, need in read:
            part = v.tensor.nbytes if need is None else row_bytes(v, need.axis) * (need.end - need.start)
            found[rank] += part
        return found

    def peaks(self) -> _Bytes:
        last = {v: i for i, op in enumerate(self.ops) for v in op.operands}
        for p in self.params:
            self._live(0, len(self.ops) - 1, np.full(self.devices, float(p.tensor.nbytes)))
        whole: dict[Value, tuple[int, int]] = {}
        for at, op, placement in self._placed():
            for v in op.results:
                if v not in self.constants:
                    self._live(at, last.get(v, at), self._held(v))
            for v, needs in self._operands(op, placement):
                held = self.spread.held[v]
                if held is not None and (needs is None or needs[0].axis != held.axis):
                    whole[v] = whole.get(v, (at, at))[0], at
                elif held is not None and needs is not None:
                    rows = [missing_rows(n, own) for n, own in zip(needs, held.intervals, strict=True)]
                    self._live(at, at, row_bytes(v, held.axis) * np.array(rows, np.float64))
            if placement.partial:
                self._live(at, at, np.full(self.devices, float(sum(r.tensor.nbytes for r in op.results))))
        for v, (first, end) in whole.items():
            self._live(first, end, np.full(self.devices, float(v.tensor.nbytes)))
        return np.cumsum(self.changes, axis=0).max(axis=0)

    def _placed(self) -> Iterator[tuple[int, Op, Placement]]:
        """All ops; the last one returns whole values."""
        for at, op in enumerate(self.ops):
            yield at, op, self.spread.placements.get(op, Placement())

    def _operands(self, op: Op, placement: Placement) -> list[tuple[Value, tuple[Need, ...] | None]]:
        return list(zip(op.operands, placement.needs or (None,) * len(op.operands), strict=True))

    def _held(self, v: Value) -> _Bytes:
        held: Distribution = self.spread.held[v]
        if held is None:
            return np.full(self.devices, float(v.tensor.nbytes))
        return row_bytes(v, held.axis) * np.array(held.extents, np.float64)

    def _live(self, first: int, last: int, nbytes: _Bytes) -> None:
        self.changes[first] += nbytes
        self.changes[last + 1] -= nbytes
