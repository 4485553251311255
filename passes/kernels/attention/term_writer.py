"""Writes the ops that compute terms of attention at one point of a kernel, and says what terms cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir import Block, Expr, Op, UnsupportedError, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import Linear, interval, linear
from tilewright.passes.analysis.index_sets import recompute_cost
from tilewright.passes.analysis.terms import Apply, Position, Read, Term, number
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
            if term.name == "scalar.shr" and isinstance(by := term.args[1], Position):
                return self._shifted(term, by)
            operands = [self.value(a) for a in term.args]
            (out,) = w.b.emit(term.name, operands, dict(term.attrs), types=[term.type])
            return out
        raise UnsupportedError("the result of a reduction is read before it is known", where=term.op.loc)

    def _shifted(self, term: Apply, by: Position) -> Value:
        """A shift to the right by an index, in two steps: what the thread decides comes first.

        Elements of a thread that have a word in common then have the first step in common, and the second one
        is by a number that loops which are written out know.
        """
        w, value = self.w, self.value(term.args[0])
        form = linear(self.at((by.at,))[0], w.ranges)
        own = [(atom, n) for atom, n in form.terms if "tid" in symbols(atom)]
        rest = [(atom, n) for atom, n in form.terms if "tid" not in symbols(atom)]
        steps = [Linear.of(dict(own), 0).expr(), Linear.of(dict(rest), form.constant).expr()]
        if any(interval(step, w.ranges)[0] < 0 for step in steps):
            steps = [form.expr()]
        for step in steps:
            if step != 0:
                value = w.b.value("scalar.shr", value, w.b.index(step, by.type.dtype))
        return value


def term_work(*terms: Term) -> int:
    """Instructions of terms, each different one once."""
    todo, seen = list(terms), set[Term]()
    while todo:
        t = todo.pop()
        if isinstance(t, Apply) and t not in seen:
            seen.add(t)
            todo += t.args if _tested_word(t) is None else ()
    return sum(_cost(t) for t in seen if isinstance(t, Apply) and t.name not in _FREE)


def _tested_word(term: Apply) -> Term | None:
    """The word one bit of which a condition is; None for another term.

    Threads shift a word once for all their elements in it (`TermWriter`) and test a bit in one instruction.
    """
    if term.name != "scalar.ne" or number(term.args[1]) != 0.0:
        return None
    bit = term.args[0]
    if not isinstance(bit, Apply) or bit.name != "scalar.bit_and" or number(bit.args[1]) != 1.0:
        return None
    shifted = bit.args[0]
    if isinstance(shifted, Apply) and shifted.name == "scalar.shr" and isinstance(shifted.args[1], Position):
        word = shifted.args[0]
        return word if isinstance(word, Read) else None
    return None


def _cost(term: Apply) -> int:
    """Instructions of one scalar op, as a map of it alone is counted."""
    op = Op(term.name, (), (), ())
    return recompute_cost(Op("tensor.map", (), (), (), Block((), (op, Op("scalar.yield", (), (), ())))))
