"""The elements of a kernel's tensors as scalar terms: what each is computed from, over symbolic indices.

Maps are followed; reductions and contractions are leaves, which `Terms.folded` opens. Two terms are equal
exactly where the same ops give the same element, `Terms.same` leaves casts between floating types out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from tilewright.ir import Attr, BinOp, Expr, Func, Op, ScalarType, Sym, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import simplify, within
from tilewright.ir.tensor.ops import REDUCING, dims, fills, reads

FLOATS = ("f16", "bf16", "f32", "f64")
#: a maximum that begins here or below is that of its terms alone: the least number of 16 bits
LEAST_F16 = -65504.0


@dataclass(frozen=True)
class Read:
    """An element of a tensor that is not followed further, a parameter of the kernel for instance."""

    value: Value
    at: tuple[Expr, ...]


@dataclass(frozen=True)
class Position:
    """An index as a number."""

    at: Expr
    type: ScalarType


@dataclass(frozen=True)
class Apply:
    """A scalar op of terms.

    Terms share what they are computed from: those of random bits, written out, would have thousands of ops.
    """

    name: str
    attrs: tuple[tuple[str, Attr], ...]
    type: ScalarType
    args: tuple[Term, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.name, self.attrs, self.type, self.args))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class Reduction:
    """An element of the result of a reduction or contraction."""

    op: Op
    at: tuple[Expr, ...]


Term = Read | Position | Apply | Reduction


@dataclass(frozen=True)
class Folded:
    """The sum (`add`, from 0 on) or the largest (`max`) of a term over dimensions (name, extent)."""

    kind: Literal["add", "max"]
    over: tuple[tuple[str, int], ...]
    of: Term


class Terms:
    """Terms of the elements of one kernel's values.

    ranges: of all symbols in the indices, both ends included; dimensions of opened reductions are added.
    stop: values that are not followed.
    """

    def __init__(
        self, kernel: Func, ranges: Mapping[str, tuple[int, int]], stop: Collection[Value] = ()
    ) -> None:
        self.ranges = dict(ranges)
        self._producers = {r: op for op in kernel.body.ops for r in op.results if r not in stop}
        self._terms: dict[tuple[Value, tuple[Expr, ...]], Term] = {}
        self._folds: dict[tuple[Reduction, tuple[str, ...]], Folded | None] = {}

    def element(self, value: Value, at: Sequence[Expr]) -> Term:
        """The element of a value at an index."""
        key = (value, tuple(simplify(e, self.ranges) for e in at))
        if key not in self._terms:
            self._terms[key] = self._computed(*key)
        return self._terms[key]

    def _computed(self, value: Value, at: tuple[Expr, ...]) -> Term:
        op = self._producers.get(value)
        if op is not None and op.name == "tensor.map":
            scalars = self._scalars(op, dict(zip(dims(op, "par"), at, strict=True)))
            if scalars is not None:
                assert op.body is not None
                return scalars[op.body.ops[-1].operands[op.results.index(value)]]
        if op is not None and op.name in REDUCING and len(op.results) == 1:
            return Reduction(op, at)
        return Read(value, at)

    def _scalars(self, op: Op, env: Mapping[str, Expr]) -> dict[Value, Term] | None:
        """The terms of all scalars in a body at a point; None where an operand may be read outside of it.

        What a reduction has accumulated so far is a read of the body's last parameter.
        """
        assert op.body is not None
        terms: dict[Value, Term] = {p: Read(p, ()) for p in op.body.params[len(op.operands) :]}
        for p, v, index, fill in zip(op.body.params, op.operands, reads(op), fills(op), strict=False):
            at = tuple(simplify(substitute(e, env), self.ranges) for e in index)
            if fill is not None and not self._inside(v, at):
                return None
            terms[p] = self.element(v, at)
        for inner in op.body.ops[:-1]:
            terms[inner.result] = self._scalar(inner, terms, env)
        return terms

    def _scalar(self, op: Op, terms: Mapping[Value, Term], env: Mapping[str, Expr]) -> Term:
        kind = op.result.type
        assert isinstance(kind, ScalarType)
        if op.name == "scalar.index":
            return Position(simplify(substitute(op.expr("at"), env), self.ranges), kind)
        args = tuple(terms[v] for v in op.operands)
        if op.name == "scalar.add":
            for one, other in (args, args[::-1]):
                if number(one) == 0.0 and dtype_of(other) == kind.dtype:
                    return other
        return Apply(op.name, op.attrs, kind, args)

    def _inside(self, value: Value, at: Sequence[Expr]) -> bool:
        return all(within(e, n, self.ranges) for e, n in zip(at, value.tensor.shape, strict=True))

    def folded(self, reduction: Reduction, names: Sequence[str] = ()) -> Folded | None:
        """The sum or maximum that a reduction is; None for another one.

        names: of its dimensions of more than one index, None for others of another number or extent. Where
        none are given they get names of their own, the same for equal reductions.
        """
        key = (reduction, tuple(names))
        if key not in self._folds:
            self._folds[key] = self._opened(reduction, names)
        return self._folds[key]

    def _opened(self, reduction: Reduction, names: Sequence[str]) -> Folded | None:
        op, point = reduction.op, self._point(reduction, names)
        scalars = None if point is None else self._scalars(op, point[0])
        start = op["init"]
        if point is None or scalars is None or not isinstance(start, tuple):
            return None
        assert op.body is not None
        so_far, last = Read(op.body.params[-1], ()), peeled(scalars[op.body.ops[-1].operands[0]])
        if not isinstance(last, Apply) or last.name not in ("scalar.add", "scalar.max"):
            return None
        added = [a for a in last.args if peeled(a) != so_far]
        if len(added) != 1 or so_far in leaves(added[0]) or type(start[0]) not in (int, float):
            return None
        begin: float = start[0]  # type: ignore[assignment]
        if last.name == "scalar.add":
            return Folded("add", point[1], added[0]) if begin == 0 else None
        return Folded("max", point[1], added[0]) if begin <= LEAST_F16 else None

    def _point(
        self, reduction: Reduction, names: Sequence[str]
    ) -> tuple[dict[str, Expr], tuple[tuple[str, int], ...]] | None:
        """The dimensions of a reduction at its element, those that are reduced as symbols with extents."""
        wide = {d: n for d, n in dims(reduction.op, "red").items() if n > 1}
        chosen = names or [f"fold.{len(self.ranges) + i}" for i in range(len(wide))]
        over = dict(zip(chosen, wide.values(), strict=False))
        new = {name: (0, n - 1) for name, n in over.items()}
        if len(over) != len(wide) or any(self.ranges.get(name, r) != r for name, r in new.items()):
            return None
        self.ranges |= new
        env: dict[str, Expr] = dict(zip(dims(reduction.op, "par"), reduction.at, strict=True))
        env |= dict.fromkeys(dims(reduction.op, "red"), 0) | dict(zip(wide, map(Sym, over), strict=True))
        return env, tuple(over.items())

    def operands(self, reduction: Reduction, names: Sequence[str]) -> tuple[Term, ...] | None:
        """The elements of a reduction's operands, with names for its dimensions as `folded` takes them."""
        point, op = self._point(reduction, names), reduction.op
        if point is None:
            return None
        indices_ = ([substitute(e, point[0]) for e in index] for index in reads(op))
        return tuple(self.element(v, at) for v, at in zip(op.operands, indices_, strict=True))

    def same(self, one: Term, other: Term) -> bool:
        """Return whether two terms are equal but for casts between floating types."""
        one, other = peeled(one), peeled(other)
        if isinstance(one, Apply) and isinstance(other, Apply):
            if (value := number(one)) is not None:
                return value == number(other)
            return (one.name, one.attrs, len(one.args)) == (other.name, other.attrs, len(other.args)) and all(
                self.same(a, b) for a, b in zip(one.args, other.args, strict=True)
            )
        if isinstance(one, Reduction) and isinstance(other, Reduction) and one != other:
            first = self.folded(one)
            second = None if first is None else self.folded(other, [name for name, _ in first.over])
            if first is None or second is None:
                return False
            return (first.kind, first.over) == (second.kind, second.over) and self.same(first.of, second.of)
        return one == other

    def stored(self, term: Term) -> list[Read]:
        """The elements of tensors that are this term, perhaps in another floating type; what is read first
        comes first."""
        same = peeled(term)
        return [Read(*key) for key, other in self._terms.items() if peeled(other) == same]

    def sources(self, term: Term) -> Iterator[Read | Position]:
        """All elements and positions that a term is computed from, through reductions as well."""
        for leaf in leaves(term):
            fold = self.folded(leaf) if isinstance(leaf, Reduction) else None
            if fold is not None:
                yield from self.sources(fold.of)
            else:
                yield Read(leaf.op.result, leaf.at) if isinstance(leaf, Reduction) else leaf


def peeled(term: Term) -> Term:
    """A term without the casts between floating types around it; `fma` is a product and a sum."""
    while isinstance(term, Apply) and term.name == "scalar.cast" and term.type.dtype in FLOATS:
        if dtype_of(term.args[0]) not in FLOATS:
            break
        term = term.args[0]
    if isinstance(term, Apply) and term.name == "scalar.fma":
        product = Apply("scalar.mul", (), term.type, term.args[:2])
        return replace(term, name="scalar.add", args=(product, term.args[2]))
    return term


def dtype_of(term: Term) -> str:
    """The type of a term's number."""
    if isinstance(term, Read):
        return term.value.type.dtype
    return term.op.result.tensor.dtype if isinstance(term, Reduction) else term.type.dtype


def constant(value: float) -> Apply:
    """A number in float32."""
    return Apply("scalar.const", (("value", float(value)), ("dtype", "f32")), ScalarType("f32"), ())


def number(term: Term) -> float | None:
    """The number that a constant is given as; None for other terms."""
    inner = peeled(term)
    if not isinstance(inner, Apply) or inner.name != "scalar.const":
        return None
    return float(dict(inner.attrs)["value"])  # type: ignore[arg-type]


def applied(term: Term, name: str) -> tuple[Term, ...] | None:
    """The arguments of `scalar.NAME` where a term is that op; None for other terms."""
    inner = peeled(term)
    return inner.args if isinstance(inner, Apply) and inner.name == f"scalar.{name}" else None


def both_orders(term: Term, name: str) -> list[tuple[Term, ...]]:
    """The two arguments of a commutative op in either order; none where a term is another op."""
    args = applied(term, name)
    return [] if args is None else [args, args[::-1]]


def quotient(term: Term) -> tuple[Term, Term] | None:
    """Numerator and denominator of a division, also where the inverse is multiplied; None for others."""
    if (parts := applied(term, "div")) is not None:
        return parts[0], parts[1]
    for one, other in both_orders(term, "mul"):
        inverse = applied(other, "div")
        if inverse is not None and number(inverse[0]) == 1.0:
            return one, inverse[1]
    return None


def leaves(term: Term) -> Iterator[Read | Position | Reduction]:
    """The elements, positions and results of reductions that a term is computed from, each once, in order."""
    todo: list[Term] = [term]
    seen: set[Term] = set()
    while todo:
        part = todo.pop()
        if part in seen:
            continue
        seen.add(part)
        if isinstance(part, Apply):
            todo += reversed(part.args)
        else:
            yield part


def names_in(term: Term) -> set[str]:
    """The symbols that a term's indices depend on."""
    return {name for leaf in leaves(term) for e in indices(leaf) for name in symbols(e)}


def substituted(term: Term, env: Mapping[str, Expr], ranges: Mapping[str, tuple[int, int]]) -> Term:
    """The term over other symbols."""
    if isinstance(term, Apply):
        return Apply(term.name, term.attrs, term.type, tuple(substituted(a, env, ranges) for a in term.args))
    if isinstance(term, Reduction):
        return Reduction(term.op, tuple(simplify(substitute(e, env), ranges) for e in term.at))
    if isinstance(term, Read):
        return Read(term.value, tuple(simplify(substitute(e, env), ranges) for e in term.at))
    return type(term)(simplify(substitute(term.at, env), ranges), term.type)


def replaced(term: Term, old: Term, new: Term) -> Term:
    """The term with `new` in place of each `old`."""
    if term == old:
        return new
    if not isinstance(term, Apply):
        return term
    return replace(term, args=tuple(replaced(a, old, new) for a in term.args))


def indices(leaf: Read | Position | Reduction) -> tuple[Expr, ...]:
    """The indices of a leaf."""
    return (leaf.at,) if isinstance(leaf, Position) else leaf.at


def divided(
    atoms: Collection[Read | Position], ranges: Mapping[str, tuple[int, int]]
) -> tuple[str, int] | None:
    """One of these dimensions that some index divides, and by what, where that divides its extent."""
    todo = [e for leaf in atoms for e in indices(leaf)]
    while todo:
        e = todo.pop()
        if isinstance(e, BinOp):
            todo += (e.lhs, e.rhs)
            if e.op in ("//", "%") and isinstance(e.lhs, Sym) and isinstance(e.rhs, int):
                extent = ranges.get(e.lhs.name, (0, 0))[1] + 1
                if 1 < e.rhs < extent and extent % e.rhs == 0:
                    return e.lhs.name, e.rhs
    return None
