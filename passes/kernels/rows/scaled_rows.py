"""Elements that are one value, shifted and scaled by numbers of its row and by numbers of its column.

Norms of rows are such: (x - mean) / deviation * gain + offset, or x / root of the mean square * gain.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tilewright.ir import ScalarType
from tilewright.passes.analysis.terms import (
    Apply,
    Read,
    Term,
    applied,
    both_orders,
    constant,
    names_in,
    peeled,
)


@dataclass(frozen=True)
class ScaledRows:
    """(value - shift) * scale * gain + offset, in float32.

    shift and scale are numbers of the row, gain and offset of the column; None stands for what is not there.
    """

    value: Read
    shift: Term | None = None
    scale: Term | None = None
    gain: Term | None = None
    offset: Term | None = None


def scaled_rows(term: Term, value: Read, rows: Collection[str], column: str) -> ScaledRows | None:
    """The term as a value that is shifted and scaled; None where it is anything else.

    rows: names of the dimensions of rows. Whatever depends on neither them nor the column is a number of the
    row where it scales, and of the column where it is added behind the scaling.
    """
    if peeled(term) == value:
        return ScaledRows(value)
    for kind, step in (("add", _added), ("sub", _subtracted), ("mul", _scaled), ("div", _divided)):
        args = both_orders(term, kind) if kind in ("add", "mul") else [applied(term, kind) or ()]
        for inner, other in (pair for pair in args if len(pair) == 2):
            names = names_in(other)
            of_row, of_column = names <= set(rows), names <= {column}
            if not (of_row or of_column):
                continue
            before = scaled_rows(inner, value, rows, column)
            return None if before is None else step(before, other, of_row, of_column)
    return None


def _added(before: ScaledRows, other: Term, of_row: bool, of_column: bool) -> ScaledRows | None:
    return _moved("add", before, other, of_row, of_column)


def _subtracted(before: ScaledRows, other: Term, of_row: bool, of_column: bool) -> ScaledRows | None:
    return _moved("sub", before, other, of_row, of_column)


def _moved(kind: str, before: ScaledRows, other: Term, of_row: bool, of_column: bool) -> ScaledRows | None:
    """Something is added or subtracted: before all scaling by the row, or behind it by the column."""
    untouched = before == ScaledRows(before.value)
    if of_row and untouched and not of_column:
        return replace(before, shift=other if kind == "sub" else _negative(other))
    if not of_column:
        return None
    if before.offset is None:
        return replace(before, offset=other if kind == "add" else _negative(other))
    return replace(before, offset=apply(kind, before.offset, other))


def _scaled(before: ScaledRows, other: Term, of_row: bool, of_column: bool) -> ScaledRows | None:
    if of_row and before.offset is None:
        return replace(before, scale=_times(before.scale, other))
    if not of_column:
        return None
    offset = None if before.offset is None else _times(before.offset, other)
    return replace(before, gain=_times(before.gain, other), offset=offset)


def _divided(before: ScaledRows, other: Term, of_row: bool, of_column: bool) -> ScaledRows | None:
    return _scaled(before, apply("div", constant(1.0), other), of_row, of_column)


def _times(one: Term | None, other: Term) -> Term:
    return other if one is None else apply("mul", one, other)


def _negative(term: Term) -> Term:
    return apply("sub", constant(0.0), term)


def apply(name: str, *args: Term) -> Term:
    """The scalar op of this name, such as `mul`, on terms, in float32."""
    return Apply(f"scalar.{name}", (), ScalarType("f32"), args)
