"""Writes the ops that compute terms of attention at one point of a kernel, and says what terms cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir import Block, Expr, Op, UnsupportedError, Value
from tilewright.ir.expr import substitute
from tilewright.passes.analysis.index_sets import recompute_cost
from tilewright.passes.analysis.terms import Apply, Position, Read, Term
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: ops that cost no instruction of their own
_FREE = frozenset({"scalar.const", "scalar.cast", "scalar.index"})


class TermWriter:
    """Writes the ops that compute terms at one point of the current scope, each once.

    env: the symbols of the terms' indices there; known: values of leaves that are in registers; mask: under
    which parameters may be read (zeros elsewhere).
    """

    def __init__(
        self, w: Writer, env: Mapping[str, Expr], known: Mapping[Term, Value] | None = None, mask: Mask = ()
    ) -> None:
        self.w, self.env, self.mask = w, dict(env), mask
        self.known: dict[Term, Value] = dict(known or {})

    def value(self, term: Term) -> Value:
        """The value of a term."""
        if term not in self.known:
            self.known[term] = self._written(term)
        return self.known[term]

    def at(self, index: Sequence[Expr]) -> tuple[Expr, ...]:
        """An index at this point."""
        return tuple(self.w.simple(substitute(e, self.env)) for e in index)

    def _written(self, term: Term) -> Value:
        w = self.w
        if isinstance(term, Read):
            return w.load(w.inputs[term.value], self.at(term.at), self.mask)
        if isinstance(term, Position):
            return w.b.index(self.at((term.at,))[0], term.type.dtype)
        if isinstance(term, Apply):
            operands = [self.value(a) for a in term.args]
            (out,) = w.b.emit(term.name, operands, dict(term.attrs), types=[term.type])
            return out
        raise UnsupportedError("the result of a reduction is read before it is known", where=term.op.loc)


def term_work(*terms: Term) -> int:
    """Instructions of terms, each different one once."""
    todo, seen = list(terms), set[Term]()
    while todo:
        t = todo.pop()
        if isinstance(t, Apply) and t not in seen:
            seen.add(t)
            todo += t.args
    return sum(_cost(t) for t in seen if isinstance(t, Apply) and t.name not in _FREE)


def _cost(term: Apply) -> int:
    """Instructions of one scalar op, as a map of it alone is counted."""
    op = Op(term.name, (), (), ())
    return recompute_cost(Op("tensor.map", (), (), (), Block((), (op, Op("scalar.yield", (), (), ())))))
