"""What an element of a tensor is computed from: the maps of a kernel as one scalar term over given indices.

Reductions are leaves of terms, so that two terms are equal exactly where the same ops give the same element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import Attr, Expr, Func, Op, ScalarType, UnsupportedError, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import interval, simplify
from tilewright.ir.tensor.ops import REDUCING, dims, fills, reads
from tilewright.passes.kernels.writing.writer import Mask, Writer

_FLOATS = ("f16", "bf16", "f32")


@dataclass(frozen=True)
class Read:
    """An element of a parameter of the kernel."""

    value: Value
    at: tuple[Expr, ...]


@dataclass(frozen=True)
class Position:
    """An index as a number."""

    at: Expr
    type: ScalarType


@dataclass(frozen=True)
class Apply:
    """A scalar op of terms."""

    name: str
    attrs: tuple[tuple[str, Attr], ...]
    type: ScalarType
    args: tuple[Term, ...]


@dataclass(frozen=True)
class Reduction:
    """An element of the result of a reduction or contraction."""

    op: Op
    at: tuple[Expr, ...]


Term = Read | Position | Apply | Reduction


class Terms:
    """Terms of the elements of one kernel's values; `ranges` of all symbols in their indices."""

    def __init__(self, kernel: Func, ranges: Mapping[str, tuple[int, int]]) -> None:
        self.ranges = dict(ranges)
        self._params = set(kernel.params)
        self._made = {r: op for op in kernel.body.ops for r in op.results}
        self._found: dict[tuple[Value, tuple[Expr, ...]], Term] = {}

    def element(self, value: Value, at: Sequence[Expr]) -> Term:
        """The element of a value at an index; raises UnsupportedError where it is no map of reductions."""
        index = tuple(simplify(e, self.ranges) for e in at)
        key = (value, index)
        if key not in self._found:
            self._found[key] = self._computed(value, index)
        return self._found[key]

    def _computed(self, value: Value, at: tuple[Expr, ...]) -> Term:
        if value in self._params:
            return Read(value, at)
        op = self._made[value]
        if op.name in REDUCING and len(op.results) == 1:
            return Reduction(op, at)
        if op.name != "tensor.map":
            raise UnsupportedError(f"{op.name} is no part of attention", where=op.loc)
        return self.body(op, dict(zip(dims(op, "par"), at, strict=True)))[op.results.index(value)]

    def body(self, op: Op, env: Mapping[str, Expr]) -> list[Term]:
        """What a structured op yields at a point; what a reduction adds up, at one of its points."""
        assert op.body is not None
        known: dict[Value, Term] = {}
        for p, v, index, fill in zip(op.body.params, op.operands, reads(op), fills(op), strict=False):
            at = tuple(simplify(substitute(e, env), self.ranges) for e in index)
            if fill is not None and not self._inside(v, at):
                raise UnsupportedError("values outside of a tensor are no part of attention", where=op.loc)
            known[p] = self.element(v, at)
        last = len(op.body.ops) - (1 if op.name == "tensor.map" else 2)
        for inner in op.body.ops[:last]:
            known[inner.result] = self._scalar(inner, known, env)
        if op.name == "tensor.map":
            return [known[v] for v in op.body.ops[-1].operands]
        folded = op.body.ops[last].operands
        return [known[v] for v in folded if v is not op.body.params[-1]]

    def _scalar(self, op: Op, known: Mapping[Value, Term], env: Mapping[str, Expr]) -> Term:
        kind = op.result.type
        assert isinstance(kind, ScalarType)
        if op.name == "scalar.index":
            return Position(simplify(substitute(op["at"], env), self.ranges), kind)  # type: ignore[arg-type]
        args = tuple(known[v] for v in op.operands)
        if op.name == "scalar.add":
            for one, other in (args, args[::-1]):
                if is_number(one, 0.0) and _dtype(other) == kind.dtype:
                    return other
        return Apply(op.name, op.attrs, kind, args)

    def _inside(self, value: Value, at: Sequence[Expr]) -> bool:
        bounds = (interval(e, self.ranges) for e in at)
        return all(low >= 0 and high < n for (low, high), n in zip(bounds, value.tensor.shape, strict=True))


def peeled(term: Term) -> Term:
    """A term without the casts between floating types around it."""
    while isinstance(term, Apply) and term.name == "scalar.cast" and term.type.dtype in _FLOATS:
        inner = term.args[0]
        if isinstance(inner, Apply) and inner.type.dtype not in _FLOATS:
            break
        if isinstance(inner, Position) or (
            isinstance(inner, Read) and inner.value.tensor.dtype not in _FLOATS
        ):
            break
        term = inner
    return term


def is_number(term: Term, number: float) -> bool:
    """Whether a term is this constant."""
    term = peeled(term)
    return isinstance(term, Apply) and term.name == "scalar.const" and dict(term.attrs)["value"] == number


def _dtype(term: Term) -> str:
    if isinstance(term, Read):
        return term.value.tensor.dtype
    return term.op.result.tensor.dtype if isinstance(term, Reduction) else term.type.dtype


def leaves(term: Term) -> Iterator[Read | Position | Reduction]:
    """What a term is computed from."""
    if not isinstance(term, Apply):
        yield term
        return
    for inner in term.args:
        yield from leaves(inner)


def names_in(term: Term) -> set[str]:
    """The symbols that a term's indices depend on."""
    found: set[str] = set()
    for leaf in leaves(term):
        for e in (leaf.at,) if isinstance(leaf, Position) else leaf.at:
            found |= set(symbols(e))
    return found


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
