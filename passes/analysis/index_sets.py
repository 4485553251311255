"""The index sets that a structured op reads and writes: the facts that decide fusion legality."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import gcd

from tilewright.ir import BinOp, Op, Sym, Value
from tilewright.ir.expr import Expr, substitute, symbols
from tilewright.ir.simplify import Ranges, coefficients, linear, simplify
from tilewright.ir.tensor.ops import dims, fills, ranges_of, reads

#: ops whose element at a point depends on single elements of their operands: computed where they are used
POINTWISE = frozenset({"tensor.map", "tensor.gather"})


def row_major_offset(at: Sequence[Expr], shape: Sequence[int]) -> Expr:
    """The linear offset of index `at` in a dense array of `shape`."""
    offset: Expr = 0
    for e, extent in zip(at, shape, strict=True):
        offset = offset * extent + e
    return offset


def is_copy(op: Op) -> bool:
    """True for a map whose body yields its only operand unchanged and that never reads outside it."""
    return is_padded_copy(op) and fills(op) == (None,)


def is_padded_copy(op: Op) -> bool:
    """True for a map whose body yields its only operand unchanged, or the value it has outside its bounds."""
    if op.name != "tensor.map" or len(op.operands) != 1 or len(op.results) != 1 or op.body is None:
        return False
    (last,) = op.body.ops[-1:]
    return len(op.body.ops) == 1 and last.operands == op.body.params


#: what the body of a map may hold that only scales or rounds
_SCALING = frozenset({"scalar.const", "scalar.cast", "scalar.mul", "scalar.yield"})


def is_scaling(op: Op) -> bool:
    """True for a map of one operand, element by element, that does no more than scale or round it."""
    return (
        op.name == "tensor.map"
        and len(op.operands) == len(op.results) == 1
        and fills(op) == (None,)
        and identity_read(op, 0)
        and op.body is not None
        and all(o.name in _SCALING for o in op.body.ops)
    )


def is_view(op: Op) -> bool:
    """True for a copy that keeps the row-major order of elements: a reinterpretation of the same buffer."""
    if not is_copy(op) or op.operands[0].tensor.size != op.result.tensor.size:
        return False
    ranges = ranges_of(op)
    source = row_major_offset(reads(op)[0], op.operands[0].tensor.shape)
    target = row_major_offset([Sym(d) for d in dims(op, "par")], op.result.tensor.shape)
    return simplify(source - target, ranges) == 0


def identity_read(op: Op, operand: int) -> bool:
    """True where point p of the op reads exactly element p of the operand, whose shape is the domain's."""
    par = dims(op, "par")
    if op.operands[operand].tensor.shape != tuple(par.values()) or dims(op, "red"):
        return False
    at = reads(op)[operand]
    if all(type(e) is Sym and e.name == d for e, d in zip(at, par, strict=True)):
        return True
    ranges: Ranges = ranges_of(op)
    return all(simplify(e, ranges) == simplify(Sym(d), ranges) for e, d in zip(at, par, strict=True))


def reads_of(op: Op, value: Value) -> list[tuple[Expr, ...]]:
    """Every index, known without data, at which the op reads `value`."""
    return [at for v, at in placed_reads(op) if v is value]


def placed_reads(op: Op) -> list[tuple[Value, tuple[Expr, ...]]]:
    """Operands read at indices known without data, and those indices; a gather's data is none of them."""
    where = reads(op)
    return list(zip(op.operands[len(op.operands) - len(where) :], where, strict=True))


def index_step(e: Expr, ranges: Ranges) -> int:
    """Return a divisor of all steps of an index from its first value on; 1 where none is seen."""
    moving = [name for name in dict.fromkeys(symbols(e)) if ranges[name][0] < ranges[name][1]]
    form = coefficients(e, moving, ranges)
    if form is None or not isinstance(form[1], int):
        return 1
    return max(1, gcd(*form[0].values()))


def run_along(place: Expr, dim: str, ranges: Ranges) -> int:
    """The number of elements along a dimension that lie one after the other, wherever such a run begins.

    place: of an element in memory. The runs divide the dimension evenly and begin at multiples of their
    number in memory; 1 where none is seen.
    """
    extent = int(ranges[dim][1]) + 1
    for run in sorted({gcd(extent, n) for n in (extent, *_divisors(place, dim))}, reverse=True):
        inside = {**ranges, "run": (0, extent // run - 1), "element": (0, run - 1)}
        form = linear(substitute(place, {dim: Sym("run") * run + Sym("element")}), inside)
        others = [(atom, step) for atom, step in form.terms if atom != Sym("element")]
        apart = all("element" not in symbols(atom) for atom, _ in others)
        if apart and (Sym("element"), 1) in form.terms:
            return gcd(run, form.constant, *(step for _, step in others))
    return 1


def _divisors(e: Expr, dim: str) -> Iterator[int]:
    """Numbers by which an expression divides what depends on a dimension."""
    if isinstance(e, BinOp):
        if e.op in ("//", "%") and isinstance(e.rhs, int) and dim in symbols(e.lhs):
            yield e.rhs
        yield from _divisors(e.lhs, dim)
        yield from _divisors(e.rhs, dim)


def slices_of(op: Op) -> dict[int, str]:
    """Dimensions of a scatter's target that one dimension of its domain names alone.

    Updates never leave their slice: the elements that share these indices.
    """
    at = op.exprs("at")
    slices: dict[int, str] = {}
    for d, e in enumerate(at):
        used = [set(symbols(other)) for k, other in enumerate(at) if k != d]
        if isinstance(e, Sym) and e.name in dims(op, "par") and not any(e.name in names for names in used):
            slices[d] = e.name
    return slices


#: scalar ops that cost far more than an addition: not worth computing twice
_EXPENSIVE = frozenset(
    f"scalar.{n}"
    for n in (
        "exp",
        "exp2",
        "log",
        "log2",
        "log10",
        "pow",
        "erf",
        "erfc",
        "narrow_gelu",
        "sigmoid",
        "tanh",
        "sin",
        "cos",
        "tan",
        "div",
        "sqrt",
        "rsqrt",
        "sinh",
        "cosh",
        "asin",
        "acos",
        "atan",
        "asinh",
        "acosh",
        "atanh",
        "atan2",
        "mod",
    )
)


def recompute_cost(op: Op) -> int:
    """Scalar work of one point of a map, in additions; expensive functions count 16, a gather's address 6."""
    if op.name == "tensor.gather":
        return 6
    body = op.body.ops if op.body is not None else ()
    free = {"scalar.yield", "scalar.const", "scalar.index"}
    return sum(16 if o.name in _EXPENSIVE else 1 for o in body if o.name not in free)


def sums_samples(op: Op) -> bool:
    """Return whether a contraction sums over several dimensions of its first factor, as gradients by weights
    sum over samples and windows: then channels are its rows and columns, and lie innermost in both factors.
    """
    if op.name != "tensor.contract":
        return False
    first = reads(op)[0]
    return sum(Sym(d) in first for d, n in dims(op, "red").items() if n > 1) > 1
