"""What an element of a tensor is computed from: the ops of a kernel as one scalar term with indices."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import BinOp, Expr, Func, Op, Sym, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import coefficients, interval, simplify
from tilewright.ir.tensor.ops import STRUCTURED, dims, fills, reads
from tilewright.libraries.matching.strides import Strides

_FLOATS = ("f16", "bf16", "f32", "f64")


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True)
class Read:
    """An element of a tensor, and the term it is computed by; None for what is not followed further."""

    value: Value
    at: tuple[Expr, ...]
    made: Term | None = None


@dataclass(frozen=True)
class Apply:
    """A scalar op; casts between floating types are left out, `fma` is a product and a sum."""

    name: str
    args: tuple[Term, ...]


@dataclass(frozen=True)
class Fold:
    """`sum` or `max` of a term over dimensions (name, extent)."""

    kind: str
    over: tuple[tuple[str, int], ...]
    of: Term


Term = Number | Read | Apply | Fold


class Terms:
    """Terms of the elements of one kernel's values.

    stop: values that are not followed; those computed from indices are not either. `ranges` holds every
    dimension that occurs; those of sums get names of their own.
    """

    def __init__(
        self, kernel: Func, ranges: Mapping[str, tuple[int, int]], stop: Collection[Value] = ()
    ) -> None:
        self.ranges = dict(ranges)
        self._made = {r: op for op in kernel.body.ops for r in op.results}
        self._stop = set(stop)
        self._found: dict[tuple[Value, tuple[Expr, ...]], Term] = {}
        self._count = 0

    def element(self, value: Value, at: Sequence[Expr]) -> Term:
        """The element of a value at these indices."""
        key = (value, tuple(simplify(e, self.ranges) for e in at))
        if key not in self._found:
            op = None if value in self._stop else self._made.get(value)
            self._found[key] = Read(*key, None if op is None else self._computed(op, key[1]))
        return self._found[key]

    def _computed(self, op: Op, at: tuple[Expr, ...]) -> Term | None:
        if op.name not in STRUCTURED or len(op.results) != 1 or _names_indices(op):
            return None
        env: dict[str, Expr] = dict(zip(dims(op, "par"), at, strict=True))
        over: list[tuple[str, int]] = []
        for d, n in dims(op, "red").items():
            env[d] = 0
            if n > 1:
                over.append((f"fold.{self._count}", n))
                self._count += 1
                env[d] = Sym(over[-1][0])
                self.ranges[over[-1][0]] = (0, n - 1)
        operands: list[Term] = []
        for v, index, fill in zip(op.operands, reads(op), fills(op), strict=True):
            moved = [substitute(e, env) for e in index]
            if fill is not None and not self._inside(v, moved):
                return None
            operands.append(self.element(v, moved))
        if op.name == "tensor.map":
            return _body(op, operands)
        return _folded(op, operands, tuple(over))

    def _inside(self, value: Value, at: Sequence[Expr]) -> bool:
        bounds = (interval(simplify(e, self.ranges), self.ranges) for e in at)
        return all(low >= 0 and high < n for (low, high), n in zip(bounds, value.tensor.shape, strict=True))

    def same(self, one: Term, other: Term, names: Mapping[str, Expr]) -> bool:
        """Whether `one` is `other` with these dimensions of `other` renamed; those of sums match in order."""
        one, other = peeled(one), peeled(other)
        if isinstance(one, Read) and isinstance(other, Read):
            moved = tuple(simplify(substitute(e, names), self.ranges) for e in other.at)
            return one.value is other.value and one.at == moved
        if isinstance(one, Apply) and isinstance(other, Apply):
            return (one.name, len(one.args)) == (other.name, len(other.args)) and all(
                self.same(a, b, names) for a, b in zip(one.args, other.args, strict=True)
            )
        if isinstance(one, Fold) and isinstance(other, Fold):
            if one.kind != other.kind or [n for _, n in one.over] != [n for _, n in other.over]:
                return False
            inner = {b: Sym(a) for (a, _), (b, _) in zip(one.over, other.over, strict=True)}
            return self.same(one.of, other.of, {**names, **inner})
        return isinstance(one, Number) and one == other

    def steps(self, read: Read) -> Strides | None:
        """Strides of what is read in memory; None where it is not affine."""
        t = read.value.tensor
        offset: Expr = 0
        for e, step in zip(read.at, t.strides, strict=True):
            offset = offset + e * step
        found = coefficients(offset, self.ranges, self.ranges)
        if found is None or not isinstance(found[1], int):
            return None
        return Strides(found[0], found[1] + t.start)


def peeled(term: Term) -> Term:
    """What an element is computed by, as far as it is known."""
    while isinstance(term, Read) and term.made is not None:
        term = term.made
    return term


def sources(term: Term) -> list[Read]:
    """An element and what it is a copy of, possibly in another type; what is read first comes first."""
    found: list[Read] = []
    while isinstance(term, Read):
        found.insert(0, term)
        if term.made is None:
            break
        term = term.made
    return found


def leaves(term: Term) -> Iterator[Read]:
    """All elements that a term is computed from in the end."""
    term = peeled(term)
    if isinstance(term, Read):
        yield term
    for inner in term.args if isinstance(term, Apply) else (term.of,) if isinstance(term, Fold) else ():
        yield from leaves(inner)


def quotient(reads_: Collection[Read], ranges: Mapping[str, tuple[int, int]]) -> tuple[str, int] | None:
    """One of these dimensions that some index divides, and by what, where that divides its extent."""
    todo = [e for r in reads_ for e in r.at]
    while todo:
        e = todo.pop()
        if isinstance(e, BinOp):
            todo += (e.lhs, e.rhs)
            if e.op in ("//", "%") and isinstance(e.lhs, Sym) and isinstance(e.rhs, int):
                extent = ranges.get(e.lhs.name, (0, 0))[1] + 1
                if 1 < e.rhs < extent and extent % e.rhs == 0:
                    return e.lhs.name, e.rhs
    return None


def depends(read: Read, name: str) -> bool:
    """Whether an index names a dimension."""
    return any(name in symbols(e) for e in read.at)


def _body(op: Op, operands: Sequence[Term]) -> Term:
    assert op.body is not None
    known: dict[Value, Term] = dict(zip(op.body.params, operands, strict=True))
    for inner in op.body.ops[:-1]:
        args = tuple(known[v] for v in inner.operands)
        if inner.name == "scalar.const":
            known[inner.result] = Number(float(inner["value"]))  # type: ignore[arg-type]
        elif inner.name == "scalar.cast" and _floating(inner):
            known[inner.result] = args[0]
        elif inner.name == "scalar.fma":
            known[inner.result] = Apply("add", (Apply("mul", args[:2]), args[2]))
        else:
            name = inner.name.removeprefix("scalar.")
            known[inner.result] = Apply(name, args)
    return known[op.body.ops[-1].operands[0]]


def _names_indices(op: Op) -> bool:
    return op.body is not None and any(inner.name == "scalar.index" for inner in op.body.ops)


def _floating(cast: Op) -> bool:
    source = cast.operands[0].type
    return cast["dtype"] in _FLOATS and getattr(source, "dtype", "") in _FLOATS


#: stands for what has been added up so far
_SO_FAR = Number(float("nan"))


def _folded(op: Op, operands: Sequence[Term], over: tuple[tuple[str, int], ...]) -> Term | None:
    """A sum from 0, or a maximum from below all numbers of 16 bits; None for other reductions."""
    found = _body(op, (*operands, _SO_FAR))
    start = op["init"]
    if not isinstance(found, Apply) or len(found.args) != 2 or not isinstance(start, tuple):
        return None
    terms = [a for a in found.args if a is not _SO_FAR]
    begin = start[0]
    if len(terms) != 1 or type(begin) not in (int, float):
        return None
    if found.name == "add" and begin == 0:
        return Fold("sum", over, terms[0])
    if found.name == "max" and begin <= -65504:  # type: ignore[operator]
        return Fold("max", over, terms[0])
    return None
