"""Pass look-up-sums: maps over all of state look up the sums of the few rows that updates name."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.costmodel import load_hardware
from tilewright.costmodel.hardware.description import Hardware
from tilewright.ir import Builder, Expr, Func, Level, Module, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Attr
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.kernels.ordered.choose_rows import looking_up_pays
from tilewright.passes.lower.lowering import mapped
from tilewright.passes.lower.scalars import written
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.tensor.sums.sort_scatters import KeyedUpdates
from tilewright.passes.tensor.sums.update_rows import (
    StateUpdates,
    combiner,
    lines,
    links,
    of_rows,
    rows_named,
)

#: tables whose totals and marks one kernel makes
MOST_TOGETHER = 48


@register_pass(Level.TENSOR)
def look_up_sums(module: Module, ctx: PassContext) -> Module:
    """Keep sums of updates by update, where a map over all of state reads the sum of each row.

    rewrite:  %s = tensor.scatter(zeros, %u, %i, at = [i0, c]) {add}; %m = tensor.map(%state, %s) {f}
        -->   %t = tensor.join_updates(%u, earlier, next); %k = the first update of each row, else none;
              %s = tensor.gather(%t, %k, at = [i0, c], mode = "fill"); %m = tensor.map(%state, %s) {f}

    So a step with momentum, moments or decay of all rows stores and reads no array of sums as large as the
    state. All that depends on the sums are maps that lead to new state, which share a kernel with the gather.
    Sums are joined in the interpreter's order. The cost model compares.
    """
    main = module.main
    if main.level is not Level.TENSOR or not main.updates:
        return module
    hardware = ctx.hardware or load_hardware(ctx.target)
    search = StateUpdates(main, ConstantPool(module.constants), hardware)
    groups = [group for group in _alike(main, search) if _pays(group, search, hardware)]
    if not groups:
        return module
    new = _rewritten(main, groups, search)
    return module.with_funcs(tuple(new if f is main else f for f in module.funcs))


def _alike(main: Func, search: StateUpdates) -> list[list[Op]]:
    """Scatters whose sums lead to new state alone, by maps, together where they are of one form."""
    kinds: dict[object, list[list[Op]]] = {}
    for op in main.body.ops:
        if op.name != "tensor.scatter" or not of_rows(op) or not combiner(op):
            continue
        start = search.uniform(op.operands[0])
        if start is None or not search.maps_of(op):
            continue
        s, t = KeyedUpdates(op, Builder()), op.result.tensor
        kind = (s.count, t, op.operands[1].tensor.dtype, combiner(op), start)
        groups = kinds.setdefault(kind, [[]])
        if len(groups[-1]) == MOST_TOGETHER:
            groups.append([])
        groups[-1].append(op)
    return [group for groups in kinds.values() for group in groups]


def _pays(group: Sequence[Op], search: StateUpdates, hardware: Hardware) -> bool:
    first = group[0]
    s, t = KeyedUpdates(first, Builder()), first.result.tensor
    inside = {r for m in search.maps_of(first) or () for r in m.results}
    tables = max(1, sum(new in inside for new in search.old))
    return looking_up_pays(
        len(group), s.count, t.shape[0], s.payload_size, itemsize(t.dtype), tables, hardware
    )


def _rewritten(main: Func, groups: Sequence[Sequence[Op]], search: StateUpdates) -> Func:
    """The function with what reads the sums at its end, behind all that they are made of.

    It leads to new state alone.
    """
    b = Builder()
    found = [op for group in groups for op in group]
    rows = rows_named(b, found)
    sums: dict[Value, Value] = {}
    for group in groups:
        start = search.uniform(group[0].operands[0])
        assert start is not None
        with b.at(group[0].loc):
            sums.update(_looked_up(b, group, [rows[op] for op in group], start))
    later = {m for op in found for m in search.maps_of(op) or ()}
    *ops, end = main.body.ops
    early = [op for op in ops if op not in later]
    late = [op.with_operands(tuple(sums.get(v, v) for v in op.operands)) for op in ops if op in later]
    body = main.body.with_ops((*early, *b.ops, *late, end))
    return main.with_body(body.with_ops(live_ops(body)))


def _looked_up(b: Builder, group: Sequence[Op], keys: Sequence[Value], start: float) -> dict[Value, Value]:
    """The sums of scatters alike in form as gathers of totals of updates."""
    first = KeyedUpdates(group[0], b)
    rows, flags, places = links(b, keys)
    par = {"u": first.count, **{f"d{d}": first.par[p] for d, p in first.named.items()}}
    updates = [lines(b, KeyedUpdates(op, b), par) for op in group]
    result = TensorType(group[0].result.tensor.dtype, tuple(par.values()))
    attrs: dict[str, Attr] = {"par": Pairs.of(par), "combine": combiner(group[0]), "start": start}
    totals = b.emit("tensor.join_updates", [*updates, flags, places], attrs, types=[result] * len(group))
    marks = _marks(b, rows, group[0].result.tensor.shape[0])
    out: dict[Value, Value] = {}
    for k, (op, total) in enumerate(zip(group, totals, strict=True)):
        domain = {"d0": op.result.tensor.shape[0], **{d: n for d, n in par.items() if d != "u"}}
        at: tuple[Expr, ...] = (Sym("i0"), *(Sym(d) for d in domain if d != "d0"))
        place: dict[str, Attr] = {"reads": ((k, Sym("d0")),), "at": at, "mode": "fill"}
        attrs = {"par": Pairs.of(domain), **place, "fill_value": start}
        (out[op.result],) = b.emit("tensor.gather", [total, marks], attrs, types=[op.result.type])
    return out


def _marks(b: Builder, rows: Value, count: int) -> Value:
    """For every row of every table the place of the first update that names it, else one behind all."""
    tables, updates = rows.tensor.shape
    t = TensorType("i32", (tables, count))
    par = {"t": tables, "r": count}
    none = mapped(b, [], t, par, [], lambda i, p: i.const(updates, "i32"))
    line: tuple[Expr, ...] = (Sym("t"), Sym("u"))
    domain = {"t": tables, "u": updates}
    numbers = mapped(b, [], rows.tensor, domain, [], lambda i, p: i.index(Sym("u")))
    attrs: dict[str, Attr] = {
        "par": Pairs.of(domain), "reads": (line, line), "at": (Sym("t"), Sym("i0")),
    }  # fmt: skip
    block = written(b, ["i32", "i32"], lambda i, p: p[0].min(p[1]))
    (marks,) = b.emit("tensor.scatter", [none, numbers, rows], attrs, types=[t], body=block)
    return marks
