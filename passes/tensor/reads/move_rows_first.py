"""Pass move-rows-first: what only moves the rows of a norm moves those of its operand instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.ir import Block, Expr, Func, Level, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import dims, fills, ranges_of, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.backward_pass import LOSS
from tilewright.passes.analysis.index_sets import is_copy, is_view
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.inlined import with_bodies
from tilewright.passes.rewriting.values import copied_ops, producers, readers, rename_dims, with_indices
from tilewright.passes.tensor.reads.inline_maps import SMALL_BYTES
from tilewright.passes.tensor.reads.read_moved_rows import keeps_neighbours


@register_pass(Level.TENSOR)
def move_rows_first(func: Func, ctx: PassContext) -> Func:
    """Compute reductions of rows, and the map that they lead to, in the order in which its rows are read.

    rewrite:  %s = tensor.reduce(%x, par = (h), red = (c)); %y = tensor.map(%x, %s, par = (h, c));
              %w = tensor.map(%y, par = (i, j, c), reads = [[j * 8 + i, c]]) {yield}
        -->   %s = tensor.reduce(%x, par = (i, j), red = (c), reads = [[j * 8 + i, c]]);
              %w = tensor.map(%x, %s, par = (i, j, c), reads = [[j * 8 + i, c], [i, j]])

    Windows of an image are cut out of what a norm makes; with the rows of the norm in their order the kernel
    of the norm writes the windows, and no kernel moves them. The copy is all that reads the map, it keeps the
    neighbours of a row as they are (`read_moved_rows.keeps_neighbours`), and takes as many rows as there are
    results of the reductions, which nothing else reads. Training steps stay as they are.
    """
    if func.updates or func.get(LOSS) is not None:
        return func
    rows = _Rows(func)
    ops: list[Op] = []
    for op in func.body.ops:
        moved = rows.moved(op)
        ops += moved if moved is not None else [op]
    block = func.body.with_ops(tuple(ops))
    return func.with_body(block.with_ops(live_ops(block))) if len(ops) > len(func.body.ops) else func


class _Refused(Exception):
    """A value cannot be computed for moved rows."""


class _Rows:
    def __init__(self, func: Func) -> None:
        self.made, self.read_by = producers(func.body), readers(func.body)

    def moved(self, op: Op) -> list[Op] | None:
        """The ops that compute what a copy moves, in the order of the copy's rows; None where it stays."""
        if not is_copy(op) or is_view(op) or op.result.tensor.nbytes <= SMALL_BYTES:
            return None
        chain = [op]
        made = self._only_read(op.operands[0])
        while made is not None and is_view(made):
            chain.append(made)
            made = self._only_read(made.operands[0])
        if made is None:
            return None
        bodies: dict[Value, Op] = {}
        for source in (made, *reversed(chain)):
            bodies[source.result] = with_bodies(source, bodies)
        return _Move(self, chain, made, bodies[op.result]).ops()

    def _only_read(self, v: Value) -> Op | None:
        """The map that makes a value which one op reads."""
        made = self.made.get(v)
        one = made is not None and made.name == "tensor.map" and len(made.results) == 1
        return made if one and len(self.read_by[v]) == 1 else None


class _Move:
    """The rows of a norm in the order in which a copy has them.

    last: the copy with the norm's last map in it, whose innermost dimension runs along rows. The others name
    the rows.
    """

    def __init__(self, rows: _Rows, copies: Sequence[Op], norm: Op, last: Op) -> None:
        self.rows, self.last = rows, last
        self.column = list(dims(last, "par"))[-1]
        self.par = {d: n for d, n in dims(last, "par").items() if d != self.column}
        self.before: list[Op] = []
        #: values of rows by what they were and where they were read
        self.known: dict[tuple[Value, tuple[Expr, ...]], Value] = {}
        self.copies = copies
        #: ops that other ones take the place of
        self.replaced = {norm}

    def ops(self) -> list[Op] | None:
        """The new ops; None where no reduction is of these rows, or something else reads what it gives."""
        try:
            new = self._with_row_values(self.last)
        except _Refused:
            return None
        if all(op.name != "tensor.reduce" for op in self.before):
            return None
        read = {x for op in self.replaced for r in op.results for x in self.rows.read_by[r]}
        return [*self.before, new] if read <= {*self.replaced, *self.copies} else None

    def _with_row_values(self, op: Op) -> Op:
        """An op over these rows, with what it reads of a row computed in their order."""
        operands: list[Value] = []
        places: list[tuple[Expr, ...]] = []
        for i, (v, read, fill) in enumerate(zip(op.operands, reads(op), fills(op), strict=True)):
            at = tuple(simplify(e, ranges_of(op)) for e in read)
            if fill is None and self._is_of_rows(v, at):
                v, at = self._moved(v, at), tuple(map(Sym, self.par))
            elif v.tensor.nbytes > SMALL_BYTES and not keeps_neighbours(op, i):
                raise _Refused
            operands.append(v)
            places.append(at)
        return replace(op.with_attrs(reads=tuple(places)), operands=tuple(operands))

    def _is_of_rows(self, v: Value, at: Sequence[Expr]) -> bool:
        """Return whether a reduction or a map makes one element of a value for each row."""
        made = self.rows.made.get(v)
        if made is None or made.name not in ("tensor.map", "tensor.reduce") or len(made.results) != 1:
            return False
        named = all(d in self.par for e in at for d in symbols(e))
        return named and v.tensor.size == prod(self.par.values())

    def _moved(self, v: Value, at: tuple[Expr, ...]) -> Value:
        """The value that rows read at an index, computed in their order."""
        if (v, at) not in self.known:
            made = self.rows.made[v]
            self.replaced.add(made)
            apart = {d: self._unnamed(d) for d in dims(made, "red")}
            names = {d: f"{d}.of" for d in dims(made, "par")}
            op = rename_dims(made, apart | names)
            env = dict(zip(names.values(), at, strict=True))
            op = with_indices(op.with_attrs(par=Pairs(tuple(self.par.items()))), lambda e: substitute(e, env))
            op = op.with_attrs(reads=tuple(tuple(substitute(e, env) for e in read) for read in reads(op)))
            own = Value(TensorType(v.tensor.dtype, tuple(self.par.values())), v.hint)
            op = self._with_row_values(replace(op, results=(own,), body=_copied(op.body)))
            self.before.append(op)
            self.known[v, at] = own
        return self.known[v, at]

    def _unnamed(self, d: str) -> str:
        while d in self.par:
            d += "_"
        return d


def _copied(body: Block | None) -> Block | None:
    """The body with values of its own."""
    if body is None:
        return None
    params = {p: Value(p.type, p.hint) for p in body.params}
    return replace(body, params=tuple(params.values()), ops=tuple(copied_ops(body.ops, dict(params))))
