"""Which buffers may share bytes: the order "every use of b happens before every use of c", as bit sets."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_
from typing import Any

import numpy as np

from tilewright.runtime.errors import RuntimeInputError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class LaunchOrder:
    """Happens-before of launches, which are listed in a topological order.

    `before[i]` is the bit set of the launches that finish before launch i starts, `after[i]` of those that
    start after it. `edges[i]` are the launches that i waits for and that no other of them implies.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    edges: tuple[tuple[int, ...], ...]

    @staticmethod
    def of(deps: Sequence[Collection[int]]) -> LaunchOrder:
        """Closure and reduction of `deps`; raises `RuntimeInputError` unless they are earlier launches."""
        before: list[int] = []
        edges: list[tuple[int, ...]] = []
        for index, own in enumerate(deps):
            if any(not 0 <= dep < index for dep in own):
                raise RuntimeInputError(
                    f"expected launch {index} to depend on earlier launches, got {sorted(own)}"
                )
            reached, kept = 0, []
            for dep in sorted(own, reverse=True):
                if not reached >> dep & 1:
                    reached |= before[dep] | 1 << dep
                    kept.append(dep)
            before.append(reached)
            edges.append(tuple(kept))
        after = [0] * len(before)
        for index in reversed(range(len(before))):
            for dep in edges[index]:
                after[dep] |= after[index] | 1 << index
        return LaunchOrder(tuple(before), tuple(after), tuple(edges))

    def earliest(self, launches: int) -> Iterator[int]:
        """The members of a bit set of launches that no other member precedes."""
        while launches:
            lowest = launches & -launches
            launch = lowest.bit_length() - 1
            yield launch
            launches &= ~(self.after[launch] | lowest)

    def latest(self, launches: int) -> Iterator[int]:
        """The members of a bit set of launches that no other member follows."""
        while launches:
            launch = launches.bit_length() - 1
            yield launch
            launches &= ~(self.before[launch] | 1 << launch)


@dataclass(frozen=True)
class Lifetimes:
    """Buffers with `uses[b]`, the launches that touch b (at least one); what is `kept` nothing follows."""

    order: LaunchOrder
    uses: Sequence[Sequence[int]]
    kept: Sequence[bool]

    @cached_property
    def first_uses(self) -> tuple[tuple[int, ...], ...]:
        """Per buffer the uses that no other use precedes."""
        return tuple(tuple(self.order.earliest(_bits(own))) for own in self.uses)

    @cached_property
    def last_uses(self) -> tuple[tuple[int, ...], ...]:
        """Per buffer the uses that no other use follows."""
        return tuple(tuple(self.order.latest(_bits(own))) for own in self.uses)

    @cached_property
    def over(self) -> tuple[int, ...]:
        """Per buffer the bit set of the launches that start after all its uses; empty where it is kept."""
        after = self.order.after
        return tuple(
            0 if kept else reduce(and_, (after[use] for use in last))
            for last, kept in zip(self.last_uses, self.kept, strict=True)
        )

    @cached_property
    def predecessors(self) -> tuple[int, ...]:
        """Per buffer the bit set of the buffers whose uses all happen before all of its uses."""
        free = [0] * len(self.order.before)  # per launch: the buffers that are over when it starts
        for buffer, launches in enumerate(self.over):
            for launch in self.order.earliest(launches):
                free[launch] |= 1 << buffer
        for launch, edges in enumerate(self.order.edges):
            free[launch] = reduce(or_, (free[dep] for dep in edges), free[launch])
        return tuple(reduce(and_, (free[use] for use in first)) for first in self.first_uses)

    @cached_property
    def clashes(self) -> Bytes:
        """Rows of bits (`np.unpackbits`, little-endian): per buffer the others whose uses may interleave."""
        ordered = unpacked(self.predecessors, len(self.uses))
        clashing = ~(ordered | ordered.T)
        np.fill_diagonal(clashing, False)
        return np.packbits(clashing, axis=1, bitorder="little")

    def live_bytes(self, sizes: Ints) -> Ints:
        """Per launch the bytes of buffers that hold data while it runs, in every allowed order."""
        order, end = self.order, len(self.order.before)
        total = np.zeros(end, dtype=np.int64)
        for row, (first, last) in enumerate(zip(self.first_uses, self.last_uses, strict=True)):
            begun = reduce(or_, (order.after[use] | 1 << use for use in first))
            not_over = reduce(or_, (order.before[use] | 1 << use for use in last))
            alive = begun if self.kept[row] else begun & not_over
            total += sizes[row] * unpacked((alive,), end)[0]
        return total


def unpacked(bit_sets: Sequence[int], count: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Bit sets of members below `count` as rows of booleans."""
    width = -(-count // 8)
    packed = np.frombuffer(b"".join(bits.to_bytes(width, "little") for bits in bit_sets), dtype=np.uint8)
    rows = packed.reshape(len(bit_sets), width)
    return np.unpackbits(rows, axis=1, bitorder="little", count=count).astype(np.bool_)


def _bits(members: Sequence[int]) -> int:
    return reduce(or_, (1 << member for member in members))
