"""Tensor ops whose element order or addresses depend on data: scan, gather, scatter and updates of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.expr import symbols
from tilewright.ir.facts import WorkClass
from tilewright.ir.nodes import Op, Value
from tilewright.ir.opdef import AttrDef, define
from tilewright.ir.tensor.ops import SHAPED, dims, reads, verify_reads, verify_scalar_body
from tilewright.ir.types import TensorType, Type

#: scalar ops that may join the updates of one row
COMBINING = frozenset({"scalar.add", "scalar.mul", "scalar.min", "scalar.max"})
#: the ways in which a gather deals with an address outside its data
GATHER_MODES = ("clip", "wrap", "fill")


def _verify_result(op: Op, shape: tuple[int, ...], dtype: str) -> list[str]:
    expected, t = TensorType(dtype, shape), op.result.type
    fits = isinstance(t, TensorType) and (t.dtype, t.shape, t.space) == (dtype, shape, expected.space)
    return [] if fits else [f"expected a result of type {expected}, got {op.result.type}"]


def _verify_scan(op: Op) -> Sequence[str]:
    par = dims(op, "par")
    faults = verify_reads(op)
    if op["dim"] not in par:
        faults.append(f"expected the scanned dimension among {list(par)}, got '{op['dim']}'")
    faults += _verify_result(op, tuple(par.values()), op.result.type.dtype)
    return faults + verify_scalar_body(op, [op.operands[0].type, op.result.type], [op.result.type])


define(
    "tensor.scan",
    ("x",),
    "Running fold along one parallel dimension: result[.., i, ..] folds elements 0..i, without i when "
    "exclusive, from the end when reverse; body(element, accumulator).",
    attrs={
        **SHAPED,
        "dim": AttrDef("str"),
        "init": AttrDef("number", 0.0),
        "exclusive": AttrDef("bool", False),
        "reverse": AttrDef("bool", False),
    },
    verify=_verify_scan,
    body=True,
    work=WorkClass.NORMALISATION,
)


def _verify_addresses(op: Op, target: TensorType, indices: Sequence[Value]) -> list[str]:
    at = op.exprs("at")
    values, names = {f"i{k}" for k in range(len(indices))}, dims(op, "par").keys()
    known = names | values
    faults = (
        [] if len(at) == target.rank else [f"expected {target.rank} index expressions in 'at', got {len(at)}"]
    )
    if values & names:
        both = ", ".join(sorted(values & names))
        faults.append(f"dimensions {both} have the names of values read from the index operands")
    for e in at:
        unknown = sorted(set(symbols(e)) - known)
        if unknown:
            faults.append(f"'at' uses unknown symbols {', '.join(unknown)}")
    for v in indices:
        if not v.type.dtype.startswith(("i", "u")):
            faults.append(f"expected integer indices, got {v.type}")
    return faults + verify_reads(op, first=1)


def _verify_gather(op: Op) -> Sequence[str]:
    data = op.operands[0].type
    if not isinstance(data, TensorType):
        return [f"expected a tensor to gather from, got {data}"]
    faults = _verify_addresses(op, data, op.operands[1:])
    if op["mode"] not in GATHER_MODES:
        faults.append(f"expected mode {', '.join(GATHER_MODES)}, got '{op['mode']}'")
    return faults + _verify_result(op, tuple(dims(op, "par").values()), data.dtype)


define(
    "tensor.gather",
    ("data", "indices*"),
    "result[par] = data[at], where symbols i0, i1, ... in `at` are values read from the index operands.",
    attrs={
        "par": SHAPED["par"],
        "reads": AttrDef("accesses", doc="where each index operand is read"),
        "at": AttrDef("exprs"),
        "mode": AttrDef("str", "clip", "clip, wrap, or fill (with `fill_value`) for addresses out of bounds"),
        "fill_value": AttrDef("number", 0.0),
    },
    verify=_verify_gather,
    work=WorkClass.ELEMENTWISE,
)


def _verify_scatter(op: Op) -> Sequence[str]:
    init = op.operands[0].type
    if not isinstance(init, TensorType):
        return [f"expected a tensor to scatter into, got {init}"]
    faults = _verify_addresses(op, init, op.operands[2:])
    faults += _verify_result(op, init.shape, init.dtype)
    return faults + verify_scalar_body(op, [init, op.operands[1].type], [init])


define(
    "tensor.scatter",
    ("init", "updates", "indices*"),
    "A copy of init where, for each point of par in order, element `at` becomes body(old, update); "
    "addresses out of bounds are dropped.",
    attrs={
        "par": SHAPED["par"],
        "reads": AttrDef("accesses", doc="where updates and each index operand are read"),
        "at": AttrDef("exprs"),
    },
    verify=_verify_scatter,
    body=True,
    work=WorkClass.ELEMENTWISE,
)


def _verify_update_rows(op: Op) -> Sequence[str]:
    par, groups = dims(op, "par"), op.integer("groups")
    if groups < 1 or not op.results or len(op.results) % groups or not par:
        return [f"expected results for each of groups = {groups} and dimensions of updates"]
    parts = row_groups(op)
    if parts is None:
        return ["expected tables, as many as results, updates of each group, rows, flags and places"]
    row, faults = tuple(par.values())[1:], verify_reads(op, first=len(op.operands) - len(reads(op)))
    listed = ", ".join(str(v.type) for group in parts.tables for v in group)
    for group in parts.tables:
        shapes = [v.type.shape if isinstance(v.type, TensorType) else () for v in group]
        if len(set(shapes)) != 1 or not shapes[0] or shapes[0][1:] != row:
            faults.append(f"expected tables of equally many rows of the shape {row}, got {listed}")
    if [r.type for r in op.results] != [v.type for group in parts.tables for v in group]:
        faults.append(f"expected results of the types of the tables, {listed}")
    faults += [
        f"expected updates of the shape {tuple(par.values())}, got {v.type}"
        for v in parts.updates
        if v.tensor.shape != tuple(par.values())
    ]
    links = TensorType("i32", (groups, next(iter(par.values()))))
    faults += [
        f"expected rows, flags and places of type {links}, got {v.type}"
        for v in parts.links
        if v.type != links
    ]
    if not faults and any(next(iter(par)) in symbols(e) for at in reads(op) for e in at):
        faults.append("expected further operands to be read at the same index for all updates")
    if op["combine"] and f"scalar.{op['combine']}" not in COMBINING:
        faults.append(f"expected combine {', '.join(sorted(COMBINING))} or none, got '{op['combine']}'")
    first = [v.type for v in parts.tables[0]]
    if op.body is None or len(op.body.params) <= len(first):
        return [*faults, "expected a body of elements of tables and a total at least"]
    total, others = op.body.params[len(first)].type, [v.type for v in parts.others]
    return faults + verify_scalar_body(op, [*first, total, *others], first)


@dataclass(frozen=True)
class RowGroups:
    """The operands of an update of rows: tables and updates by group, links of all groups, others."""

    tables: tuple[tuple[Value, ...], ...]
    updates: tuple[Value, ...]
    links: tuple[Value, Value, Value]
    others: tuple[Value, ...]


def row_groups(op: Op) -> RowGroups | None:
    """The operands of a tensor.update_rows by their roles; None where there are too few."""
    groups, tables = op.integer("groups"), len(op.results)
    each, given = tables // groups, op.operands
    if len(given) != tables + groups + 3 + len(reads(op)):
        return None
    rows, earlier, following = given[tables + groups : tables + groups + 3]
    return RowGroups(
        tuple(given[k : k + each] for k in range(0, tables, each)),
        given[tables : tables + groups],
        (rows, earlier, following),
        given[tables + groups + 3 :],
    )


def rows_changed(op: Op, value: Value) -> int | None:
    """Elements of a table, or of what it becomes, that the updates of an op name at most: each has a row.

    None for other ops and values.
    """
    if op.name != "tensor.update_rows" or value not in (*op.operands[: len(op.results)], *op.results):
        return None
    return min(value.tensor.size, prod(dims(op, "par").values()))


define(
    "tensor.update_rows",
    ("operands*",),
    "Groups of tables of which the rows that updates name change; operands: the tables of each group, the "
    "updates of each, three arrays [groups, updates] of rows, flags and next places, others. In every group "
    "an update u, of `par` = (u, the dimensions of a row), whose flag is 0 and whose row exists "
    "begins a chain u, next[u], next[next[u]], ... of places of updates, which ends where a place is none or "
    "does not rise. Without `combine` the body (elements of the tables, an update, others) gives new "
    "elements, update after update. With it the updates of a chain are joined to `start` in order, and "
    "the body is applied once, to the total. Updates are cast to the type of the body's parameter. Chains of "
    "a group have different rows. Results share memory with their tables: kernels write rows and no more.",
    attrs={
        "par": SHAPED["par"],
        "reads": AttrDef("accesses", doc="where others are read"),
        "groups": AttrDef("int", 1),
        "combine": AttrDef("str", "", "add, mul, min or max of updates of one row; none: one by one"),
        "start": AttrDef("number", 0.0, "what a total begins with"),
    },
    results=None,
    verify=_verify_update_rows,
    body=True,
    work=WorkClass.ELEMENTWISE,
)


def _extents(t: Type) -> tuple[int, ...] | None:
    return t.shape if isinstance(t, TensorType) else None


def _verify_join_updates(op: Op) -> Sequence[str]:
    par, groups = dims(op, "par"), len(op.results)
    if not par or not groups or len(op.operands) != groups + 2:
        return ["expected updates for each result, flags and places"]
    shape = tuple(par.values())
    *updates, flags, places = (v.type for v in op.operands)
    links = TensorType("i32", (groups, shape[0]))
    faults = [f"expected updates of the shape {shape}, got {t}" for t in updates if _extents(t) != shape]
    faults += [f"expected flags and places of type {links}, got {t}" for t in (flags, places) if t != links]
    if any(_extents(r.type) != shape for r in op.results) or len({r.type.dtype for r in op.results}) != 1:
        faults.append(f"expected results of one dtype and the shape {shape}")
    if f"scalar.{op['combine']}" not in COMBINING:
        faults.append(f"expected combine {', '.join(sorted(COMBINING))}, got '{op['combine']}'")
    return faults


define(
    "tensor.join_updates",
    ("operands*",),
    "For groups of updates what all updates of a chain give together; operands: the updates of each group, "
    "arrays [groups, updates] of flags and next places (see tensor.update_rows). Where the flag of update u "
    "of `par` = (u, the dimensions of a row) is 0, the updates of the chain that begins there are joined to "
    "`start` in order; elsewhere the result is `start`.",
    attrs={
        "par": SHAPED["par"],
        "reads": AttrDef("accesses", (), "none: all operands are read by place of update"),
        "combine": AttrDef("str", "add", "add, mul, min or max"),
        "start": AttrDef("number", 0.0, "what a total begins with"),
    },
    results=None,
    verify=_verify_join_updates,
)
