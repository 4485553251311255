"""The dimensions of the ops of a kernel that name the row of its first reduction."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Op, Sym, Value
from tilewright.ir.expr import Expr
from tilewright.ir.tensor.ops import REDUCING, dims
from tilewright.passes.analysis.index_sets import placed_reads


def rows_of(ops: Sequence[Op], anchor: Op) -> dict[Op, list[str]] | None:
    """Per op that belongs to a row the dimensions that name the row, in the anchor's order.

    ops: in program order. The row of a reduction is its parallel index. A map names its row by the index at
    which it reads a reduction's result, or the row part of another map's index; maps that depend on no
    reduction belong to no row. None where an op crosses rows.
    """
    extents = list(dims(anchor, "par").values())
    rows: dict[Op, list[str]] = {}
    made: dict[Value, Op] = {}
    for op in ops:
        par = dims(op, "par")
        names_of_row: list[str] | None = list(par) if op.name in REDUCING else None
        for v, at in placed_reads(op):
            producer = made.get(v)
            if producer is None:
                continue
            part = _row_part(producer, at, rows[producer])
            names = [e.name for e in part if isinstance(e, Sym) and e.name in par]
            if len(names) != len(part) or (names_of_row is not None and names != names_of_row):
                return None
            names_of_row = names
        if names_of_row is None:
            continue
        if [par[n] for n in names_of_row] != extents:
            return None
        rows[op] = names_of_row
        made.update(dict.fromkeys(op.results, op))
    return rows


def _row_part(producer: Op, at: Sequence[Expr], rows: list[str]) -> list[Expr]:
    if producer.name in REDUCING:
        return list(at)
    position = {d: i for i, d in enumerate(dims(producer, "par"))}
    return [at[position[d]] for d in rows]


def row_dims(op: Op, group: Sequence[Op], anchor: Op) -> list[str] | None:
    """The dimensions of `op` that name its row; None where it belongs to no row of `group`.

    A map that depends on no reduction belongs to the row that reads it, where all that read it agree.
    """
    rows = rows_of(group, anchor)
    if rows is None:
        return None
    return rows[op] if op in rows else _row_of_readers(op, group, rows)


def _row_of_readers(op: Op, group: Sequence[Op], rows: dict[Op, list[str]]) -> list[str] | None:
    """The dimensions of a map that name the row of each op that reads it point by point; None without one."""
    par = list(dims(op, "par"))
    found: set[tuple[str, ...]] = set()
    for reader in group:
        for v, at in placed_reads(reader):
            if v not in op.results:
                continue
            names = rows.get(reader) or _row_of_readers(reader, group, rows)
            place = {e.name: d for e, d in zip(at, par, strict=True) if isinstance(e, Sym)}
            if names is None or len(place) != len(par) or any(n not in place for n in names):
                return None
            found.add(tuple(place[n] for n in names))
    return list(*found) if len(found) == 1 else None
