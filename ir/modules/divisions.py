"""How state and inputs of a whole step are divided among ranks: what each rank's module holds of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Attr, Module
from tilewright.ir.windows import Interval

#: the module attribute that holds the divisions of a rank's module
DIVISIONS = "divisions"
#: cut: every rank holds a part; owner: one rank alone has the value; sum: every rank holds a summand
Kind = Literal["cut", "owner", "sum"]


@dataclass(frozen=True, slots=True)
class Division:
    """One value of the whole step, of `shape`, and what every rank holds of it.

    cut: dimension `axis` is read row-major as [outer, block], and rank r holds parts[r] of the block, which
      may be empty. owner: the rank whose part is not empty has all of it, the modules of others do not know
      it. sum: the values of all ranks add up to the whole one.
    """

    name: str
    kind: Kind
    shape: tuple[int, ...]
    axis: int
    outer: int
    parts: tuple[Interval, ...]

    @property
    def owner(self) -> int:
        """The first rank with a part that is not empty."""
        return next((r for r, (start, end) in enumerate(self.parts) if end > start), 0)

    def held(self, rank: int) -> bool:
        """Return whether the module of `rank` knows the value."""
        return self.kind != "owner" or rank == self.owner

    def piece(self, array: np.ndarray, rank: int) -> np.ndarray:
        """What `rank` holds of the whole array; of a sum, the first rank has all and others zeros."""
        if self.kind == "owner":
            return array
        if self.kind == "sum":
            return array if rank == 0 else np.zeros_like(array)
        start, end = self.parts[rank]
        blocks = array.reshape(*self.shape[: self.axis], self.outer, -1, *self.shape[self.axis + 1 :])
        part = blocks[(*(slice(None),) * (self.axis + 1), slice(start, end))]
        shape = (*self.shape[: self.axis], self.outer * (end - start), *self.shape[self.axis + 1 :])
        return np.ascontiguousarray(part.reshape(shape))

    def joined(self, pieces: Sequence[np.ndarray | None]) -> np.ndarray:
        """The whole array from the pieces of all ranks; None stands for a rank that does not know it."""
        known = [p for p in pieces if p is not None]
        if self.kind == "owner":
            (whole,) = known
            return whole
        if self.kind == "sum":
            total = known[0]
            for piece in known[1:]:
                total = total + piece
            return total
        blocks = [
            p.reshape(*self.shape[: self.axis], self.outer, end - start, *self.shape[self.axis + 1 :])
            for p, (start, end) in zip(known, self.parts, strict=True)
        ]
        return np.concatenate(blocks, axis=self.axis + 1).reshape(self.shape)

    @property
    def row(self) -> tuple[Attr, ...]:
        """The division as an entry of the attribute."""
        return (self.name, self.kind, self.shape, self.axis, self.outer, self.parts)


def with_divisions(module: Module, divisions: Sequence[Division]) -> Module:
    """The module of a rank with the attribute that says what it holds; none is written for none."""
    return module.with_attrs(**{DIVISIONS: tuple(d.row for d in divisions)}) if divisions else module


def divisions_of(module: Module) -> dict[str, Division]:
    """The divisions that a rank's module states, by name; raises InputError for what is none."""
    return read_divisions(module.get(DIVISIONS, ()))


def read_divisions(rows: object) -> dict[str, Division]:
    """Divisions from the attribute, or from its entries as plain lists."""
    try:
        parsed = [_division(row) for row in cast("Sequence[Sequence[object]]", rows)]
    except (TypeError, ValueError):
        raise InputError(f"expected rows of divisions in '{DIVISIONS}', got {rows!r:.200}") from None
    return {d.name: d for d in parsed}


def _division(row: Sequence[object]) -> Division:
    name, kind, shape, axis, outer, parts = row
    if kind not in get_args(Kind) or not isinstance(name, str):
        raise ValueError
    pairs = cast("Sequence[tuple[int, int]]", parts)
    return Division(
        name,
        cast("Kind", kind),
        tuple(map(int, cast("Sequence[int]", shape))),
        int(cast("int", axis)),
        int(cast("int", outer)),
        tuple((int(a), int(b)) for a, b in pairs),
    )


def pieces_of(
    values: Mapping[str, np.ndarray], divisions: Mapping[str, Division], rank: int
) -> dict[str, np.ndarray]:
    """Return the pieces that `rank` holds of values, by name."""
    return {
        n: a if n not in divisions else divisions[n].piece(a, rank)
        for n, a in values.items()
        if n not in divisions or divisions[n].held(rank)
    }
