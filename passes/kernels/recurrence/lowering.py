"""Kernels of recurrences: a block per line, whose threads fold each result into the later ones they own."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir import AttrRecord, Expr, Func, Op, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.ir.tensor.recurrence_ops import history
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Writer, anchor_of

#: longest line, in bytes, that several threads keep in shared memory
MAX_LINE_BYTES = 32 << 10


@dataclass(frozen=True)
class RecurrenceParameters(AttrRecord):
    """Threads per line."""

    threads: int


def lower_recur(kernel: Func) -> Func:
    """The thread-level function of a recurrence.

    One thread works on the result in place, several share the line.

    rewrite:  tensor.recur   -->   line = start; for t: for own i > t: line[i] = body(.., line[t], line[i])
    """
    threads = parameters_of(kernel, RecurrenceParameters).threads
    op = anchor_of(kernel, "tensor.recur")
    par, along = dims(op, "par"), str(op["dim"])
    others = {d: n for d, n in par.items() if d != along}
    n, lines = par[along], prod(others.values())
    w = Writer(kernel, threads, (max(1, lines), 1, 1))
    at: dict[str, Expr] = dict(zip(others, w.unravel(Sym("bid.x"), tuple(others.values())), strict=True))
    if not op.result.tensor.size:
        return w.finish()
    out = w.outputs[op.result]
    line = w.alloc((n,), op.result.tensor.dtype, "shared", "line") if threads > 1 else out

    def place(i: Expr) -> tuple[Expr, ...]:
        return (i,) if line is not out else tuple({**at, along: i}[d] for d in par)

    with w.b.at(op.loc):
        with w.loop("s", -(-n // threads)) as step:
            own = w.simple(step * threads + Sym("tid"))
            with w.when(w.below(own, n)):
                where = tuple(substitute(e, {**at, along: own}) for e in reads(op)[0])
                start = Points(w).filled(op.operands[0], tuple(map(w.simple, where)), fills(op)[0])
                w.store(start, line, place(own))
        with w.loop("t", n) as t:
            known = w.load(line, place(t))
            with w.loop("s", -(-n // threads)) as step:
                own = w.simple(step * threads + Sym("tid"))
                with w.when((*w.below(own, n), (own, w.simple(t + 1), n))):
                    env: dict[str, Expr] = {**at, along: own, history(op): t}
                    values = _elements(w, op, env)
                    (new,) = w.inline(op, [*values, known, w.load(line, place(own))], env)
                    w.store(new, line, place(own))
        if line is not out:
            with w.loop("s", -(-n // threads)) as step:
                own = w.simple(step * threads + Sym("tid"))
                with w.when(w.below(own, n)):
                    w.store(w.load(line, (own,)), out, tuple({**at, along: own}[d] for d in par))
    return w.finish()


def _elements(w: Writer, op: Op, env: dict[str, Expr]) -> list[Value]:
    """Return what one step reads of the operands behind the start."""
    points = Points(w)
    out = []
    for v, at, fill in list(zip(op.operands, reads(op), fills(op), strict=True))[1:]:
        out.append(points.filled(v, tuple(w.simple(substitute(e, env)) for e in at), fill))
    return out
