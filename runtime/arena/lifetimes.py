"""Buffers that may share bytes: the order "every use of b happens before every use of c", as bit sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_, or_
from typing import Any

import numpy as np

from tilewright.runtime.dag import Dag

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Lifetimes:
    """Buffers with `uses[b]`, the launches that touch b (at least one); what is `kept` nothing follows.

    order: happens-before of the launches, which are listed in a topological order.
    """

    order: Dag
    uses: Sequence[Sequence[int]]
    kept: Sequence[bool]

    @cached_property
    def first_uses(self) -> tuple[tuple[int, ...], ...]:
        """Per buffer the uses that no other use precedes."""
        return tuple(tuple(self.earliest(_bits(own))) for own in self.uses)

    @cached_property
    def last_uses(self) -> tuple[tuple[int, ...], ...]:
        """Per buffer the uses that no other use follows."""
        return tuple(tuple(self.latest(_bits(own))) for own in self.uses)

    @cached_property
    def over(self) -> tuple[int, ...]:
        """Per buffer the bit set of the launches that start after all its uses; empty where it is kept."""
        after = self.order.descendants
        return tuple(
            0 if kept else reduce(and_, (after[use] for use in last))
            for last, kept in zip(self.last_uses, self.kept, strict=True)
        )

    @cached_property
    def predecessors(self) -> tuple[int, ...]:
        """Per buffer the bit set of the buffers whose uses all happen before all of its uses."""
        free = [0] * self.order.n  # per launch: the buffers that are over when it starts
        for buffer, launches in enumerate(self.over):
            for launch in self.earliest(launches):
                free[launch] |= 1 << buffer
        for launch, edges in enumerate(self.order.reduced_predecessors):
            free[launch] = reduce(or_, (free[dep] for dep in edges), free[launch])
        return tuple(reduce(and_, (free[use] for use in first)) for first in self.first_uses)

    @cached_property
    def clashes(self) -> Bytes:
        """Rows of bits (`np.unpackbits`, little-endian): per buffer the others whose uses may interleave."""
        ordered = unpacked(self.predecessors, len(self.uses))
        clashing = ~(ordered | ordered.T)
        np.fill_diagonal(clashing, False)
        return np.packbits(clashing, axis=1, bitorder="little")

    def earliest(self, launches: int) -> Iterator[int]:
        """The members of a bit set of launches that no other member precedes."""
        while launches:
            lowest = launches & -launches
            launch = lowest.bit_length() - 1
            yield launch
            launches &= ~(self.order.descendants[launch] | lowest)

    def latest(self, launches: int) -> Iterator[int]:
        """The members of a bit set of launches that no other member follows."""
        while launches:
            launch = launches.bit_length() - 1
            yield launch
            launches &= ~(self.order.ancestors[launch] | 1 << launch)

    def live_bytes(self, sizes: Ints) -> Ints:
        """Per launch the bytes of buffers that hold data while it runs, in every allowed order."""
        order, end = self.order, self.order.n
        total = np.zeros(end, dtype=np.int64)
        for row, (first, last) in enumerate(zip(self.first_uses, self.last_uses, strict=True)):
            begun = reduce(or_, (order.descendants[use] | 1 << use for use in first))
            not_over = reduce(or_, (order.ancestors[use] | 1 << use for use in last))
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
