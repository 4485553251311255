"""The fastest split in space among those that fit into the devices' memories, and what they need of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, isfinite

import numpy as np

from tilewright.ir.division import OperandRows
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func, Op, Value
from tilewright.passes.graph.distribute.rows.exchanges import missing_rows, row_bytes
from tilewright.passes.graph.distribute.rows.placement import Distribution, Placement
from tilewright.passes.graph.distribute.rows.spreading import SplitRequest, Spread, spread

#: how often rows are moved from devices that are too full to the others
_ROUNDS = 12
#: relative precision of the least memory that is named where none fits
_PRECISION = 1e-3


def fastest(func: Func, requests: Sequence[SplitRequest], limits: Sequence[float]) -> Spread:
    """Return the split of least modelled seconds among some requests, on devices with so many bytes.

    Where a request does not fit, its rows are cut by other shares than the speeds, less for devices that are
    too full, and gathering as late as possible is tried as well. Raises InputError with the least memory that
    would do, all devices' limits raised by one factor.
    """
    if not limits:
        return min((spread(func, r) for r in requests), key=lambda s: s.total_s)
    fitting = _fitting(func, requests, limits)
    if fitting is None:
        least = ", ".join(f"{b:.0f}" for b in _least(func, requests, limits))
        got = ", ".join(f"{b:.0f}" for b in limits)
        raise InputError(
            f"expected memory for the weights and values of {len(limits)} devices, at least {least} bytes, "
            f"got {got}"
        )
    return fitting


def _fitting(func: Func, requests: Sequence[SplitRequest], limits: Sequence[float]) -> Spread | None:
    own = [s for r in requests if _fits(func, s := spread(func, r), limits)]
    # Other shares, and gathers later than is fastest, are slower: they are tried where nothing else fits.
    splits = own or [s for r in _thriftier(requests) for s in _moved(func, r, limits)]
    return min(splits, key=lambda s: s.total_s, default=None)


def _thriftier(requests: Sequence[SplitRequest]) -> Iterator[SplitRequest]:
    for r in requests:
        yield replace(r, searched={})
        if not r.late:
            yield replace(r, searched={}, late=True)


def _moved(func: Func, request: SplitRequest, limits: Sequence[float]) -> Iterator[Spread]:
    """The request with shares that fit, if they are found: close to the speeds, close to the memories."""
    for start in (request.speeds, tuple(limits)):
        shares = tuple(s / sum(start) for s in start)
        for _ in range(_ROUNDS):
            made = spread(func, replace(request, shares=shares))
            if _fits(func, made, limits):
                yield made
                break
            used = rank_bytes(func, made, len(limits))
            full = [b > m for b, m in zip(used, limits, strict=True)]
            if all(full):
                break
            shares = _relieved(shares, used, limits)


def _relieved(shares: Sequence[float], used: Sequence[float], limits: Sequence[float]) -> tuple[float, ...]:
    """Less for every device that is too full, what is left in proportion to the shares of the others."""
    less = [
        s * min(0.98, max(0.5, m / b)) if b > m else 0.0 for s, b, m in zip(shares, used, limits, strict=True)
    ]
    others = sum(s for s, new in zip(shares, less, strict=True) if not new)
    left = 1.0 - sum(less)
    return tuple(new or s * left / others for s, new in zip(shares, less, strict=True))


def _fits(func: Func, made: Spread, limits: Sequence[float]) -> bool:
    used = rank_bytes(func, made, len(limits))
    return all(b <= m for b, m in zip(used, limits, strict=True))


def _least(func: Func, requests: Sequence[SplitRequest], limits: Sequence[float]) -> tuple[float, ...]:
    """Limits raised by the least factor for which something fits, in whole bytes."""

    def raised(factor: float) -> tuple[float, ...]:
        return tuple(float(ceil(m * factor)) for m in limits)

    first = rank_bytes(func, spread(func, requests[0]), len(limits))
    low, high = 1.0, max(b / m for b, m in zip(first, limits, strict=True))
    if not isfinite(high):
        raise InputError(f"expected memories above 0, got {list(limits)}")
    while high > low * (1 + _PRECISION):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if _fitting(func, requests, raised(middle)) else (middle, high)
    return raised(high)


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
        nbytes = np.zeros(self.devices)
        read: set[tuple[int, Value, OperandRows | None]] = set()
        for _, op, placement in self._placed():
            for v, needs in self._operands(op, placement):
                if v in self.constants:
                    rows = needs or (None,) * self.devices
                    read.update((rank, v, need) for rank, need in enumerate(rows))
        for rank, v, need in read:
            part = v.tensor.nbytes if need is None else row_bytes(v, need.axis) * (need.end - need.start)
            nbytes[rank] += part
        return nbytes

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
                distribution = self.spread.held[v]
                if distribution is not None and (needs is None or needs[0].axis != distribution.axis):
                    whole[v] = whole.get(v, (at, at))[0], at
                elif distribution is not None and needs is not None:
                    rows = [
                        missing_rows(n, own) for n, own in zip(needs, distribution.intervals, strict=True)
                    ]
                    self._live(at, at, row_bytes(v, distribution.axis) * np.array(rows, np.float64))
            if placement.partial:
                self._live(at, at, np.full(self.devices, float(sum(r.tensor.nbytes for r in op.results))))
        for v, (first, end) in whole.items():
            self._live(first, end, np.full(self.devices, float(v.tensor.nbytes)))
        return np.cumsum(self.changes, axis=0).max(axis=0)

    def _placed(self) -> Iterator[tuple[int, Op, Placement]]:
        """All ops; the last one returns whole values."""
        for at, op in enumerate(self.ops):
            yield at, op, self.spread.placements.get(op, Placement())

    def _operands(self, op: Op, placement: Placement) -> list[tuple[Value, tuple[OperandRows, ...] | None]]:
        return list(zip(op.operands, placement.needs or (None,) * len(op.operands), strict=True))

    def _held(self, v: Value) -> _Bytes:
        distribution: Distribution = self.spread.held[v]
        if distribution is None:
            return np.full(self.devices, float(v.tensor.nbytes))
        return row_bytes(v, distribution.axis) * np.array(distribution.extents, np.float64)

    def _live(self, first: int, last: int, nbytes: _Bytes) -> None:
        self.changes[first] += nbytes
        self.changes[last + 1] -= nbytes
