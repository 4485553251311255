"""Pass update-rows: updates of a few rows of state change these rows where they lie, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.costmodel import load_hardware
from tilewright.costmodel.hardware.description import Hardware
from tilewright.ir import (
    Block,
    Builder,
    Expr,
    Func,
    Level,
    Module,
    Op,
    Pairs,
    Sym,
    TensorType,
    Value,
    scalar_body,
)
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Attr
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.indexed_ops import COMBINING
from tilewright.ir.tensor.ops import dims, fills, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import identity_read
from tilewright.passes.kernels.ordered.choose_rows import rows_pay
from tilewright.passes.lower.lowering import mapped
from tilewright.passes.lower.scalars import Scalar, Scalars
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.known_scalars import Known, Number, Unknown, yielded
from tilewright.passes.tensor.sums.sort_scatters import KeyedUpdates

#: names of the dimension that counts updates, of the one they are compared along, and of the one of tables
_UPDATE, _OTHER, _TABLE = "u", "j", "t"
#: tables and updates that one kernel takes: its parameters are limited
MOST_ARGUMENTS = 160


@register_pass(Level.TENSOR)
def update_rows(module: Module, ctx: PassContext) -> Module:
    """Write updates of few rows of state as such, where the rest of it stays as it is.

    rewrite:  %s = tensor.scatter(zeros, %u, %i, at = [i0, c]) {add};
              %new = tensor.map(%state, %s, %rate) {f}; return(%new), the update of %state
        -->   %new = tensor.update_rows(%state, %u, rows, earlier, next, %rate, combine = "add") {f}

    Maps that nothing but new state comes from, which give the old state where %s is zero, may stand between;
    several parts of state may change with the same sums. Zero times what is only known at run time counts as
    zero. Sums take the order of the interpreter's. A scatter into state itself whose result is the new state
    is written so, too:

    rewrite:  %new = tensor.scatter(%state, %u, %i, at = [i0, c]) {f}
        -->   %new = tensor.update_rows(%state, %u, rows, earlier, next) {f}

    Nothing else may read the new state, so that whatever reads the old one runs before. Rows of updates are
    compared with each other; where that takes longer than all of the state does, all stays as it is.
    """
    main = module.main
    if main.level is not Level.TENSOR or not main.updates:
        return module
    found = StateUpdates(
        main, ConstantPool(module.constants), ctx.hardware or load_hardware(ctx.target)
    ).found()
    if not found:
        return module
    new = _rewritten(main, found)
    return module.with_funcs(tuple(new if f is main else f for f in module.funcs))


@dataclass(frozen=True, eq=False)
class _RowUpdate:
    """An update of rows: the scatter, the state it changes with what becomes of it, and how.

    others: what the body reads beside elements of state and a total, with the index in dimensions d0, d1, ...
    of the state.
    """

    scatter: Op
    state: Mapping[Value, Value]
    combine: str
    start: float
    others: Sequence[tuple[Value, tuple[Expr, ...]]]
    body: Block


class StateUpdates:
    """Updates of rows among the ops of @main."""

    def __init__(self, main: Func, pool: ConstantPool, hardware: Hardware) -> None:
        self.main, self.pool, self.hardware = main, pool, hardware
        self.producers = {r: op for op in main.body.ops for r in op.results}
        self.readers: dict[Value, list[Op]] = {}
        for op in main.body.ops:
            for v in dict.fromkeys(op.operands):
                self.readers.setdefault(v, []).append(op)
        returned = main.body.ops[-1].operands
        pairs = [(main.params[p], returned[r]) for p, r in main.updates]
        #: new state that one place returns, and what it is the update of
        self.old = {new: old for old, new in pairs if new is not old and returned.count(new) == 1}

    def found(self) -> list[_RowUpdate]:
        out = []
        for op in self.main.body.ops:
            if op.name == "tensor.scatter" and of_rows(op):
                update = self._overwriting(op) or self._of_sums(op)
                if update is not None and self._pays(update):
                    out.append(update)
        return out

    def _pays(self, update: _RowUpdate) -> bool:
        s, t = KeyedUpdates(update.scatter, Builder()), update.scatter.result.tensor
        tables = len(update.state)
        return rows_pay(s.count, t.shape[0], s.payload_size, itemsize(t.dtype), tables, self.hardware)

    def _overwriting(self, op: Op) -> _RowUpdate | None:
        """A scatter into state whose result is the new state."""
        assert op.body is not None
        state, new = op.operands[0], op.result
        if self.old.get(new) is not state or len(self.readers[new]) > 1 or state in op.operands[1:]:
            return None
        if any(o.name == "scalar.index" for o in op.body.ops):
            return None
        return _RowUpdate(op, {state: new}, "", 0.0, (), op.body)

    def _of_sums(self, op: Op) -> _RowUpdate | None:
        """A scatter into equal numbers from which new state is computed, element by element."""
        start, combine = self.uniform(op.operands[0]), combiner(op)
        if start is None or not combine:
            return None
        maps = self.maps_of(op)
        if maps is None:
            return None
        inside = {op.result, *(r for m in maps for r in m.results)}
        state = {old: new for new, old in self.old.items() if new in inside}
        left = self._unchanged(op, start, maps)
        same = state and all(left.get(n) == Unknown(o) for o, n in state.items())
        others = self._others(maps, inside, state) if same else None
        if others is None:
            return None
        body = _one_body(op, maps, state, others)
        return _RowUpdate(op, state, combine, start, list(others), body)

    def uniform(self, v: Value) -> float | None:
        """The number that all elements of a value are; None where they differ or are not known."""
        op = self.producers.get(v)
        array = self.pool.array(op)
        if array is not None:
            first = array.reshape(-1)[:1]
            return float(first[0]) if array.size and bool(np.all(array == first)) else None
        if op is None or op.name != "tensor.map" or op.body is None or any(f is not None for f in fills(op)):
            return None
        numbers = [self.uniform(x) for x in op.operands]
        if any(n is None for n in numbers) or any(o.name == "scalar.index" for o in op.body.ops):
            return None
        known = yielded(op.body, [Number(n) for n in numbers if n is not None])[op.results.index(v)]
        return float(known.value) if isinstance(known, Number) else None

    def maps_of(self, scatter: Op) -> list[Op] | None:
        """All that depends on a scatter: maps over its elements that lead to new state; None otherwise."""
        shape, maps = scatter.result.tensor.shape, list[Op]()
        pending, seen = [scatter.result], {scatter.result}
        while pending:
            v = pending.pop()
            for op in self.readers.get(v, ()):
                if op is self.main.body.ops[-1]:
                    if v not in self.old:
                        return None
                elif not _is_elementwise(op, shape, v):
                    return None
                else:
                    maps.append(op)
                    pending += [r for r in op.results if r not in seen]
                    seen.update(op.results)
        order = {op: i for i, op in enumerate(self.main.body.ops)}
        return sorted(dict.fromkeys(maps), key=order.__getitem__)

    def _unchanged(self, scatter: Op, start: float, maps: Sequence[Op]) -> dict[Value, Known]:
        """What maps give where no update is."""
        known: dict[Value, Known] = {scatter.result: Number(start)}
        for op in maps:
            assert op.body is not None
            own = [
                known.get(v, Unknown(v) if identity_read(op, i) else Unknown((v, reads(op)[i])))
                for i, v in enumerate(op.operands)
            ]
            known.update(zip(op.results, yielded(op.body, own), strict=True))
        return known

    def _others(
        self, maps: Sequence[Op], inside: set[Value], state: Mapping[Value, Value]
    ) -> dict[tuple[Value, tuple[Expr, ...]], None] | None:
        """What maps read beside sums and state, none of it row by row; None where they read other things."""
        out: dict[tuple[Value, tuple[Expr, ...]], None] = {}
        for op in maps:
            for i, v in enumerate(op.operands):
                if v in inside:
                    continue
                at = _in_common_dims(op, i)
                if v in state:
                    if not identity_read(op, i) or fills(op)[i] is not None:
                        return None
                elif fills(op)[i] is not None or any("d0" in symbols(e) for e in at):
                    return None
                else:
                    out[v, at] = None
        return out


def of_rows(op: Op) -> bool:
    """Whether an index names the first dimension of a scatter's target, and updates have all of a row."""
    s, shape = KeyedUpdates(op, Builder()), op.result.tensor.shape
    whole = all(s.par[p] == shape[d] for d, p in s.named.items())
    wide = {p for p, n in s.payload.items() if n > 1}
    shared = not any(wide & set(symbols(e)) for read in reads(op)[1:] for e in read)
    return s.rest == [0] and whole and shared and s.count > 0 and op.result.tensor.size > 0


def combiner(op: Op) -> str:
    """The op that joins updates to what is there, by its short name; empty where the body does more.

    The update may be cast before.
    """
    assert op.body is not None
    old, update = op.body.params
    *ops, end = op.body.ops
    if len(ops) == 2 and ops[0].name == "scalar.cast" and ops[0].operands == (update,):
        update = ops[0].result
        ops = ops[1:]
    if len(ops) != 1 or ops[0].name not in COMBINING or end.operands != ops[0].results:
        return ""
    return ops[0].name.removeprefix("scalar.") if set(ops[0].operands) == {old, update} else ""


def _is_elementwise(op: Op, shape: Sequence[int], v: Value) -> bool:
    """Whether an op maps elements of these extents, and reads a value where each of them is."""
    if op.name != "tensor.map" or op.body is None or tuple(dims(op, "par").values()) != tuple(shape):
        return False
    if any(o.name == "scalar.index" for o in op.body.ops):
        return False
    return all(identity_read(op, i) and fills(op)[i] is None for i, x in enumerate(op.operands) if x is v)


def _in_common_dims(op: Op, operand: int) -> tuple[Expr, ...]:
    """Where a map reads an operand, with its dimensions called d0, d1, ..."""
    names: dict[str, Expr] = {d: Sym(f"d{k}") for k, d in enumerate(dims(op, "par"))}
    return tuple(substitute(simplify(e, ranges_of(op)), names) for e in reads(op)[operand])


def _one_body(
    scatter: Op,
    maps: Sequence[Op],
    state: Mapping[Value, Value],
    others: Mapping[tuple[Value, tuple[Expr, ...]], None],
) -> Block:
    """The bodies of maps as one: of elements of state, a total and others, to new elements of state."""
    values = [*state, scatter.result, *(v for v, _ in others)]
    inner, params = scalar_body([v.tensor.dtype for v in values])
    known = dict(zip((*state, scatter.result), params, strict=False))
    read = dict(zip(others, params[len(state) + 1 :], strict=True))
    for op in maps:
        assert op.body is not None
        own = [known[v] if v in known else read[v, _in_common_dims(op, i)] for i, v in enumerate(op.operands)]
        env = dict(zip(op.body.params, own, strict=True))
        for o in op.body.ops[:-1]:
            operands = [env[v] for v in o.operands]
            copies = inner.emit(o.name, operands, dict(o.attrs), types=[r.type for r in o.results])
            env.update(zip(o.results, copies, strict=True))
        known.update(zip(op.results, (env[v] for v in op.body.ops[-1].operands), strict=True))
    inner.do("scalar.yield", *(known[new] for new in state.values()))
    return inner.block(params)


def _rewritten(main: Func, found: Sequence[_RowUpdate]) -> Func:
    """The function with its updates of rows at the end, where all that they read is computed."""
    b = Builder()
    new: dict[Value, Value] = {}
    rows = rows_named(b, [update.scatter for update in found])
    known: dict[tuple[Value, ...], tuple[Value, Value, Value]] = {}
    for group in _alike(found):
        with b.at(group[0].scatter.loc):
            keys = tuple(rows[update.scatter] for update in group)
            if keys not in known:
                known[keys] = links(b, keys)
            results = _emitted(b, group, known[keys])
            new.update(zip((v for update in group for v in update.state.values()), results, strict=True))
    *ops, end = main.body.ops
    end = end.with_operands(tuple(new.get(v, v) for v in end.operands))
    body = main.body.with_ops((*ops, *b.ops, end))
    return main.with_body(body.with_ops(live_ops(body)))


def _alike(found: Sequence[_RowUpdate]) -> list[list[_RowUpdate]]:
    """Updates by what one kernel does for tables of its own each, of which one may have so many."""
    kinds: dict[str, list[list[_RowUpdate]]] = {}
    for update in found:
        s = KeyedUpdates(update.scatter, Builder())
        row = [s.count, *(n for n in update.scatter.result.tensor.shape[1:])]
        types = [*(v.tensor.dtype for v in update.state), s.op.operands[1].tensor.dtype]
        others = [(id(v), str(at)) for v, at in update.others]
        kind = repr((row, types, update.combine, update.start, others, _text(update.body)))
        groups = kinds.setdefault(kind, [[]])
        if (len(groups[-1]) + 1) * (2 * len(update.state) + 1) > MOST_ARGUMENTS:
            groups.append([])
        groups[-1].append(update)
    return [group for groups in kinds.values() for group in groups]


def _text(body: Block) -> str:
    """A body as text: equal for bodies that compute the same in the same order."""
    number: dict[Value, int] = {}
    lines: list[object] = []
    for v in (*body.params, *(r for op in body.ops for r in op.results)):
        number[v] = len(number)
    for op in body.ops:
        lines.append((op.name, op.attrs, [number[v] for v in op.operands], [r.type for r in op.results]))
    return repr([[str(p.type) for p in body.params], lines])


def rows_named(b: Builder, scatters: Sequence[Op]) -> dict[Op, Value]:
    """The rows that the updates of scatters name, i32[updates]; one value for all that read them alike."""
    known: dict[str, Value] = {}
    out: dict[Op, Value] = {}
    for op in scatters:
        where = [str(x) for x in (dims(op, "par"), reads(op)[1:], op.exprs("at"), op.result.tensor.shape)]
        name = repr([*map(id, op.operands[2:]), *where])
        if name not in known:
            with b.at(op.loc):
                known[name] = KeyedUpdates(op, b).keys()
        out[op] = known[name]
    return out


def links(b: Builder, tables: Sequence[Value]) -> tuple[Value, Value, Value]:
    """Rows of updates of several tables as one array, and both links of each update."""
    count = tables[0].tensor.size
    t = TensorType("i32", (len(tables), count))
    par = {_TABLE: len(tables), _UPDATE: count}

    def chosen(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        row = p[0]
        for k, other in enumerate(p[1:], 1):
            row = i.index(Sym(_TABLE)).equals(k).select(other, row)
        return row

    rows = mapped(b, tables, t, par, [(Sym(_UPDATE),)] * len(tables), chosen)
    inner, params = scalar_body(["i32"] * 4)
    i = Scalars(inner)
    own, other, earlier, following = (Scalar(inner, p) for p in params)
    same, here, there = own.equals(other), i.index(Sym(_UPDATE)), i.index(Sym(_OTHER))
    before, behind = same & (there < here), same & (there > here)
    inner.do(
        "scalar.yield",
        earlier.max(before.select(i.const(1, "i32"), 0)).value,
        following.min(behind.select(there, count)).value,
    )
    attrs: dict[str, Attr] = {
        "par": Pairs.of(par),
        "red": Pairs.of({_OTHER: count}),
        "reads": ((Sym(_TABLE), Sym(_UPDATE)), (Sym(_TABLE), Sym(_OTHER))),
        "init": (0, count),
    }
    flags, places = b.emit("tensor.reduce", [rows, rows], attrs, types=[t, t], body=inner.block(params))
    return rows, flags, places


def _emitted(b: Builder, group: Sequence[_RowUpdate], found: tuple[Value, Value, Value]) -> tuple[Value, ...]:
    first = group[0]
    s = KeyedUpdates(first.scatter, b)
    par = {_UPDATE: s.count, **{f"d{d}": s.par[p] for d, p in s.named.items()}}
    state = [v for update in group for v in update.state]
    updates = [lines(b, KeyedUpdates(update.scatter, b), par) for update in group]
    attrs: dict[str, Attr] = {
        "par": Pairs.of(par),
        "reads": tuple(at for _, at in first.others),
        "groups": len(group),
        "combine": first.combine,
        "start": first.start,
    }
    operands = [*state, *updates, *found, *(v for v, _ in first.others)]
    return b.emit("tensor.update_rows", operands, attrs, types=[v.type for v in state], body=first.body)


def lines(b: Builder, s: KeyedUpdates, par: Mapping[str, int]) -> Value:
    """The updates one after the other: [updates, row...]."""
    updates = s.op.operands[1]
    places = {**s.places(Sym(_UPDATE)), **{p: Sym(f"d{d}") for d, p in s.named.items()}}
    ranges = {name: (0, n - 1) for name, n in par.items()}
    at = tuple(simplify(substitute(e, places), ranges) for e in reads(s.op)[0])
    plain = tuple(simplify(Sym(name), ranges) for name in par)
    if at == plain and updates.tensor.shape == tuple(par.values()):
        return updates
    t = TensorType(updates.tensor.dtype, tuple(par.values()))
    return mapped(b, [updates], t, par, [at], lambda i, p: p[0])
