"""Kernels that walk along rows and add up columns on the way: which ops add up columns, by index sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir import Block, Expr, Func, Op, Pairs, Sym, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import dims, ranges_of, reads
from tilewright.passes.analysis.row_phases import Phase, RowPhases, phases_of

#: what a kernel of rows and columns is made of
_OPS = frozenset({"tensor.map", "tensor.reduce", "tensor.return"})


@dataclass(frozen=True)
class RowsAndColumns:
    """A kernel whose ops walk along rows, some of which add up the rows of a part, column by column.

    rows, columns: their extents; `length` rows that follow each other along the last dimension of the rows
    are a part. phases: those of all ops, in which a sum of columns is folded at each point of all rows.
    sums: the sums of columns by the number of their phase.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    length: int
    phases: RowPhases
    sums: Mapping[int, Op]


@dataclass(frozen=True)
class _Part:
    """A sum over parts of rows: extents of rows and columns, rows of a part, and the op at each point."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    length: int
    folds: Op


def rows_and_columns(kernel: Func) -> RowsAndColumns | None:
    """The rows and columns of a kernel; None for kernels that are something else.

    A sum of columns is a reduction over `r` with parallel dimensions (..., q, columns) that reads rows at
    q * length + r, and is read by no op of the kernel. All others are reductions of rows, or maps, of which
    those that are stored have a point for each row, or for each row and column; there is one of these.
    """
    ops = [op for op in kernel.body.ops if op.name != "tensor.return"]
    outputs = set(kernel.body.ops[-1].operands)
    if any(op.name not in _OPS or len(op.results) != 1 for op in ops):
        return None
    inside = {v for op in ops for v in op.operands}
    parts = {
        op: part
        for op in ops
        if op.name == "tensor.reduce" and op.result not in inside and (part := _part(op)) is not None
    }
    if not parts:
        return None
    first = next(iter(parts.values()))
    nest = first.rows, first.columns, first.length
    parts = {op: p for op, p in parts.items() if (p.rows, p.columns, p.length) == nest}
    count = len(first.rows)
    phases: list[Phase] = []
    sums: dict[int, Op] = {}
    folded: list[Op] = []
    for op in ops:
        par = tuple(dims(op, "par"))
        extents = tuple(dims(op, "par").values())
        if op in parts:
            virtual = parts[op].folds
            names = tuple(dims(virtual, "par"))
            sums[len(phases)] = op
            phases.append(Phase(virtual, names[:count], names[count:]))
            folded.append(virtual)
            continue
        folded.append(op)
        if op.name == "tensor.reduce":
            if (extents, tuple(dims(op, "red").values())) != (first.rows, first.columns):
                return None
            phases.append(Phase(op, par, tuple(dims(op, "red"))))
        elif op.result in outputs:
            if extents not in (first.rows, (*first.rows, *first.columns)):
                return None
            phases.append(Phase(op, par[:count], par[count:]))
    if len(phases) == len(sums) or not _within_rows(folded, phases, count):
        return None
    return RowsAndColumns(first.rows, first.columns, first.length, phases_of(phases, folded), sums)


def _part(op: Op) -> _Part | None:
    """A reduction as a sum of the rows of parts; None where it is none."""
    par, red = dims(op, "par"), dims(op, "red")
    if len(red) != 1:
        return None
    ((r, length),) = red.items()
    found = [e for at in reads(op) for e in at if r in symbols(e)]
    ranges = ranges_of(op)
    for position, q in enumerate(par):
        whole = simplify(Sym(q) * length + Sym(r), ranges)
        if position + 1 < len(par) and found and all(simplify(e, ranges) == whole for e in found):
            return _folded(op, position, length)
    return None


def _folded(op: Op, position: int, length: int) -> _Part:
    """The op at the points of all rows: what it folds there, under the name of its part's dimension."""
    par, red = dims(op, "par"), dims(op, "red")
    (r,) = red
    names = list(par)
    q = names[position]
    extents = {d: n * length if d == q else n for d, n in par.items()}
    ranges = {d: (0, n - 1) for d, n in extents.items()}
    env: dict[str, Expr] = {q: Sym(q) // length, r: Sym(q) % length}

    def placed(e: Expr) -> Expr:
        return simplify(substitute(e, env), ranges)

    assert op.body is not None
    inner = tuple(
        replace(o, attrs=tuple((k, placed(v) if k == "at" else v) for k, v in o.attrs))  # type: ignore[arg-type]
        if o.name == "scalar.index"
        else o
        for o in op.body.ops
    )
    attrs = {
        **dict(op.attrs),
        "par": Pairs.of(dict(extents)),
        "red": Pairs.of({}),
        "reads": tuple(tuple(placed(e) for e in at) for at in reads(op)),
    }
    virtual = replace(op, attrs=tuple(attrs.items()), body=Block(op.body.params, inner))
    values = tuple(extents.values())
    return _Part(values[: position + 1], values[position + 1 :], length, virtual)


def _within_rows(ops: Sequence[Op], phases: Sequence[Phase], count: int) -> bool:
    """Return whether every read of what depends on a reduction of rows is of the row that is walked along."""
    folds = {p.op for p in phases}
    made: dict[Value, int] = {}  # values that depend on a row, with how many dimensions name it
    for op in ops:
        names = [Sym(d) for d in dims(op, "par")][:count]
        bound = False
        for v, at in zip(op.operands, reads(op), strict=True):
            if v in made:
                bound = True
                if list(at[:count]) != names:
                    return False
        reduces = op.name == "tensor.reduce" and op in folds and bool(dims(op, "red"))
        if bound or reduces:
            made[op.result] = count
    return True
