"""Sums, maxima and minima over rows of arrays, whole or by parts that another op joins: what they read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir import Block, Builder, Expr, Func, Level, Op, Sym, Value
from tilewright.ir.simplify import coefficients, simplify
from tilewright.ir.tensor.ops import dims, domain, fills, ranges_of, reads
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.rows.moments import joined_moments, moments_of, shifted_sums
from tilewright.passes.rewriting.values import rename_dims

#: how results are joined, by the op that does it: what folds start from, or None where any start is as good
#: as it is joined many times
JOINS: dict[str, float | None] = {"add": 0.0, "max": None, "min": None}


@dataclass(frozen=True)
class WholeSum:
    """A sum over rows, of which there is one for each column, perhaps of each of several runs of rows.

    op: what walks along the rows. results: what stands for the finished sums: one value, or mean and sum of
    squared distances from it. kept: the dimensions of the walk that number the results, in their order. kind:
    how parts are joined; maxima and minima count as sums here. value, at: of moments the array, and where
    `op` reads it at each point.
    """

    op: Op
    results: tuple[Value, ...]
    kept: tuple[str, ...]
    kind: str = "add"
    value: Value | None = None
    at: tuple[Expr, ...] = ()


@dataclass(frozen=True)
class Runs:
    """The rows that belong to one result: `length` neighbours.

    steps: by how many runs each kept dimension moves, but that of the columns; column: the latter.
    """

    length: int
    steps: Mapping[str, int]
    column: str


def whole_sums(func: Func) -> Iterator[WholeSum]:
    """All sums over rows of a function, none of which is read by another one's walk."""
    maker = {r: op for op in func.body.ops for r in op.results}
    readers: dict[Value, list[Op]] = {}
    for op in func.body.ops:
        for v in dict.fromkeys(op.operands):
            readers.setdefault(v, []).append(op)
    taken: set[Op] = set()
    for op in func.body.ops:
        found = _moments_by_parts(op, maker)
        if found is not None:
            yield found[0]
            taken |= found[1]
    for moments in moments_of(func):
        if moments.squares not in taken:
            results = (moments.mean, moments.squares.result)
            kept = tuple(dims(moments.squares, "par"))
            yield WholeSum(moments.squares, results, kept, value=moments.value, at=moments.at)
            taken |= {moments.total, moments.squares}
    for op in func.body.ops:
        kind = None if op in taken else fold_kind(op)
        if kind is None:
            continue
        behind = readers.get(op.result, [])
        free = len(behind) == 1 and behind[0] not in taken
        of_parts = _kept_of_parts(behind[0], op, kind) if free else None
        if of_parts is not None:
            taken.add(behind[0])
            yield WholeSum(op, (behind[0].result,), of_parts, kind)
        else:
            yield WholeSum(op, (op.result,), tuple(dims(op, "par")), kind)


def fold_kind(op: Op) -> str | None:
    """How an op joins something to each of its results in its body's last step; None where it does not so."""
    if op.name != "tensor.reduce" or len(op.results) != 1 or op.body is None:
        return None
    kind = _last_step(op.body)
    if kind is None:
        return None
    start = JOINS[kind]
    return kind if start is None or op["init"] == (start,) else None


def adds_last(body: Block) -> bool:
    """Return whether the accumulator is read once, by the addition that is yielded."""
    return _last_step(body) == "add"


def _last_step(body: Block) -> str | None:
    """How the step that is yielded joins something to the accumulator, which nothing else reads."""
    *inner, last = body.ops
    acc = body.params[-1]
    if not inner or last.operands != inner[-1].results:
        return None
    readers = [o for o in body.ops for v in o.operands if v is acc]
    kinds = {**{f"scalar.{kind}": (kind, (0, 1)) for kind in JOINS}, "scalar.fma": ("add", (2,))}
    kind, place = kinds.get(inner[-1].name, (None, ()))
    joins = readers == [inner[-1]] and any(inner[-1].operands[k] is acc for k in place)
    return kind if joins else None


def runs_of(whole: WholeSum, at: Sequence[Expr], shape: Sequence[int], column: int) -> Runs | None:
    """The runs of rows of an array that the points of a walk read; None where they are something else.

    The walk must read every element of the array once, and those of one result must be neighbours in its
    column. at: where the walk reads the array, in the dimensions of the walk. column: the dimension of the
    array that is that of the columns; all others together number the rows.
    """
    ranges = ranges_of(whole.op)
    extents = {d: n for d, n in domain(whole.op).items() if n > 1}
    name = simplify(at[column], ranges)
    if not isinstance(name, Sym) or name.name not in whole.kept or extents.get(name.name) != shape[column]:
        return None
    row: Expr = 0
    for i, (e, extent) in enumerate(zip(at, shape, strict=True)):
        if i != column:
            row = row * extent + e
    names = sorted(d for d in extents if d != name.name)
    form = coefficients(simplify(row, ranges), names, ranges)
    if form is None or form[1] != 0:
        return None
    step, length = 1, 0
    steps: dict[str, int] = {}
    for coefficient, d in sorted((form[0].get(d, 0), d) for d in names):
        if coefficient != step:
            return None
        if d in whole.kept:
            length = length or step
            steps[d] = step // length
        elif length:
            return None  # rows of one result lie apart
        step *= extents[d]
    rows = prod(n for i, n in enumerate(shape) if i != column)
    return Runs(length or step, steps, name.name) if step == rows else None


def _kept_of_parts(op: Op, part: Op, kind: str) -> tuple[str, ...] | None:
    """The dimensions of a walk that number the results where an op joins all its parts and does nothing else.

    They are in the order of the op's results; None where it is another op.
    """
    if op.name == "tensor.map":
        return _kept_of_few_parts(op, part, kind)
    if op.name != "tensor.reduce" or op.operands != (part.result,) or fold_kind(op) != kind:
        return None
    assert op.body is not None
    own = [Sym(d) for d in domain(op)]
    at = list(reads(op)[0])
    if len(op.body.ops) != 2 or fills(op) != (None,) or sorted(map(str, at)) != sorted(map(str, own)):
        return None
    return tuple(list(dims(part, "par"))[at.index(Sym(d))] for d in dims(op, "par"))


def _kept_of_few_parts(op: Op, part: Op, kind: str) -> tuple[str, ...] | None:
    """The same of a map that reads each of a few parts."""
    assert op.body is not None
    shape, columns = part.result.tensor.shape, tuple(map(Sym, dims(op, "par")))
    if (
        op.operands != (part.result,) * shape[0]
        or len(op.results) != 1
        or any(f is not None for f in fills(op))
    ):
        return None
    if list(reads(op)) != [(i, *columns) for i in range(shape[0])]:
        return None
    *inner, last = op.body.ops
    used = [v for o in inner for v in o.operands]
    made = [o.result for o in inner]
    joins = (
        all(o.name == f"scalar.{kind}" for o in inner)
        and last.operands == tuple(made[-1:])
        and sorted(map(id, used)) == sorted(map(id, (*op.body.params, *made[:-1])))
    )
    return tuple(dims(part, "par"))[1:] if joins else None


def _moments_by_parts(op: Op, maker: dict[Value, Op]) -> tuple[WholeSum, set[Op]] | None:
    """The moments that an op finishes from those of parts, and the ops that take them; None for other ops.

    They are those that `shifted_sums` and `joined_moments` append: what these would append is compared.
    """
    if op.name != "tensor.reduce" or len(op.operands) != 4 or len(dims(op, "red")) != 1:
        return None
    value, s, q, mean = op.operands
    walk, squares, share = (maker.get(v) for v in (s, q, mean))
    if walk is None or squares is None or share is None or len(share.operands) != 1:
        return None
    total = maker.get(share.operands[0])
    if total is None or any(o.name != "tensor.reduce" for o in (walk, squares, total)):
        return None
    if walk.operands != (value, value) or any(any(f is not None for f in fills(o)) for o in (walk, op)):
        return None
    taken = (walk, squares, total, share, op)
    ((part, parts),) = dims(op, "red").items()
    over = dims(op, "par")
    names = dict(zip(dims(walk, "par"), (part, *over), strict=False))
    if list(dims(walk, "par").values()) != [parts, *over.values()]:
        return None
    walk = rename_dims(walk, _fresh(names, walk))
    within, (every, first) = dims(walk, "red"), reads(walk)
    b = Builder()
    dtype, length = op.result.tensor.dtype, prod(within.values())
    shifted = shifted_sums(b, value, dims(walk, "par"), within, every, first, dtype)
    of_part = (Sym(part), *map(Sym, over))
    results = joined_moments(b, value, first, shifted, of_part, over, (part, parts), length)
    if _text(taken, value, (mean, op.result)) != _text(b.ops, value, results):
        return None
    walked = next(o for o in taken if o.result is s)
    kept = tuple(dims(walked, "par"))[1:]
    return WholeSum(walked, (mean, op.result), kept, value=value, at=reads(walked)[0]), set(taken)


def _fresh(names: dict[str, str], op: Op) -> dict[str, str]:
    """The renaming, where reduced dimensions have other names than those that come in."""
    new = set(names.values())
    clash = {d: f"{d}_" for d in dims(op, "red") if d in new and d not in names}
    return {**names, **clash}


def _text(ops: Sequence[Op], value: Value, results: Sequence[Value]) -> str:
    """Text of ops that depends neither on the names of dimensions nor on the order of independent scalars."""
    placed = []
    for op in ops:
        names = {d: f"p{i}" for i, d in enumerate(dims(op, "par"))}
        names |= {d: f"r{i}" for i, d in enumerate(dims(op, "red"))}
        renamed = rename_dims(op, names)
        ranges = ranges_of(renamed)
        simple = tuple(tuple(simplify(e, ranges) for e in at) for at in reads(renamed))
        assert op.body is not None
        placed.append(replace(renamed.with_attrs(reads=simple), body=_by_use(op.body)))
    last = Op("tensor.return", tuple(results))
    types = tuple(v.type for v in results)
    return kernel_text(Func(Level.TENSOR, "moments", Block((value,), (*placed, last)), types))


def _by_use(body: Block) -> Block:
    """The body with its ops in the order in which the result needs them."""
    maker = {r: op for op in body.ops for r in op.results}
    ops: list[Op] = []

    def visit(op: Op) -> None:
        if op in ops:
            return
        for v in op.operands:
            if v in maker:
                visit(maker[v])
        ops.append(op)

    visit(body.ops[-1])
    return Block(body.params, tuple(ops))
