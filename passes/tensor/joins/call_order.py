"""The order of the calls of @main: who makes and reads what, which can be one, and orders that are valid."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from itertools import pairwise

from tilewright.ir import Op, Value
from tilewright.ir.tensor.communication_ops import COMMUNICATE


class CallOrder:
    """The ops of @main in their order. position: by identity of an op; readers: of a value, each once."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self.ops = tuple(ops)
        self.position = {id(op): i for i, op in enumerate(self.ops)}
        self.producer = {r: op for op in self.ops for r in op.results}
        self.readers: dict[Value, list[Op]] = {}
        for op in self.ops:
            for v in dict.fromkeys(op.operands):
                self.readers.setdefault(v, []).append(op)

    def sorted(self, calls: Collection[Op]) -> list[Op]:
        """The calls as they follow one another."""
        return sorted(calls, key=lambda op: self.position[id(op)])

    def convex(self, calls: Collection[Op]) -> bool:
        """Return whether no path leaves the calls and comes back."""
        own = set(map(id, calls))
        places = [self.position[i] for i in own]
        left: set[Value] = set()
        for op in self.ops[min(places) : max(places) + 1]:
            if id(op) in own:
                if any(v in left for v in op.operands):
                    return False
            elif any(v in left or self._made_by(v, own) for v in op.operands):
                left.update(op.results)
        return True

    def depends(self, values: Collection[Value], on: Op) -> bool:
        """Return whether one of these values is computed from what an op makes."""
        sought, behind = set(values), set(on.results)
        if sought & behind:
            return True
        for op in self.ops[self.position[id(on)] + 1 :]:
            if any(v in behind for v in op.operands):
                behind.update(op.results)
        return bool(sought & behind)

    def _made_by(self, v: Value, own: set[int]) -> bool:
        return v in self.producer and id(self.producer[v]) in own


def in_order(ops: Sequence[Op]) -> list[Op]:
    """The ops in an order in which values are made before they are read, as near to the given one as may be.

    Communications keep their order. Raises AssertionError where ops wait for each other.
    """
    maker = {r: i for i, op in enumerate(ops) for r in op.results}
    waits: list[set[int]] = [{maker[v] for v in op.operands if v in maker} for op in ops]
    talks = [i for i, op in enumerate(ops) if op.name == COMMUNICATE]
    for earlier, later in pairwise(talks):
        waits[later].add(earlier)
    if ops:
        waits[-1] |= set(range(len(ops) - 1))  # the return
    followers: dict[int, list[int]] = {}
    for i, needed in enumerate(waits):
        for j in needed:
            followers.setdefault(j, []).append(i)
    count = [len(needed) for needed in waits]
    ready = [i for i, n in enumerate(count) if n == 0]
    heapq.heapify(ready)
    out: list[Op] = []
    while ready:
        i = heapq.heappop(ready)
        out.append(ops[i])
        for j in followers.get(i, ()):
            count[j] -= 1
            if count[j] == 0:
                heapq.heappush(ready, j)
    if len(out) < len(ops):
        raise AssertionError("kernels that were joined wait for each other")
    return out
