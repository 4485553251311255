"""Sums over all rows of arrays, in one piece or by parts that another op adds: what they are and read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir import Block, Builder, Expr, Func, Level, Op, Sym, Value
from tilewright.ir.expr import symbols
from tilewright.ir.simplify import coefficients, simplify
from tilewright.ir.tensor.ops import dims, domain, fills, ranges_of, reads
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.rows.moments import joined_moments, moments_of, shifted_sums
from tilewright.passes.rewriting.values import rename_dims


@dataclass(frozen=True)
class WholeSum:
    """A sum over rows, of which there is one for each column.

    op: what walks along the rows. results: what stands for the finished sums: one value, or mean and sum of
    squared distances from it. value, at: of such moments the array, and where `op` reads it at each point.
    """

    op: Op
    results: tuple[Value, ...]
    value: Value | None = None
    at: tuple[Expr, ...] = ()

    @property
    def extents(self) -> dict[str, int]:
        """The dimensions of the walk."""
        return domain(self.op)


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
            yield WholeSum(moments.squares, (moments.mean, moments.squares.result), moments.value, moments.at)
            taken |= {moments.total, moments.squares}
    for op in func.body.ops:
        if op in taken or not adds(op):
            continue
        behind = readers.get(op.result, [])
        if len(behind) == 1 and behind[0] not in taken and _adds_parts(behind[0], op):
            taken.add(behind[0])
            yield WholeSum(op, (behind[0].result,))
        else:
            yield WholeSum(op, (op.result,))


def adds(op: Op) -> bool:
    """Return whether an op adds something to each of its results, from 0 on, in its body's last step."""
    if op.name != "tensor.reduce" or len(op.results) != 1 or op.body is None or op["init"] != (0.0,):
        return False
    return adds_last(op.body)


def adds_last(body: Block) -> bool:
    """Return whether the accumulator is read once, by the addition that is yielded."""
    *inner, last = body.ops
    acc = body.params[-1]
    if not inner or last.operands != inner[-1].results:
        return False
    readers = [o for o in body.ops for v in o.operands if v is acc]
    place = {"scalar.add": (0, 1), "scalar.fma": (2,)}.get(inner[-1].name, ())
    return readers == [inner[-1]] and any(inner[-1].operands[k] is acc for k in place)


def covers(op: Op, at: Sequence[Expr], shape: Sequence[int], column: int) -> bool:
    """Return whether the points of a walk read every row of an array once, in the column of the result.

    column: the dimension of the array that is that of the columns.
    """
    extents = {d: n for d, n in domain(op).items() if n > 1}
    ranges = ranges_of(op)
    seen: set[str] = set()
    for i, (e, extent) in enumerate(zip(at, shape, strict=True)):
        e = simplify(e, ranges)
        names = {d for d in symbols(e) if d in extents}
        if seen & names or prod(extents[d] for d in names) != extent:
            return False
        seen |= names
        if i == column:
            if extent > 1 and not isinstance(e, Sym):
                return False
            continue
        form = coefficients(e, sorted(names), ranges)
        if form is None or form[1] != 0:
            return False
        step = 1
        for coefficient, d in sorted((c, d) for d, c in form[0].items()):
            if coefficient != step:
                return False
            step *= extents[d]
    return seen == set(extents)


def _adds_parts(op: Op, part: Op) -> bool:
    """Return whether an op adds up all parts of a sum, and does nothing else."""
    if op.name == "tensor.map":
        return _adds_few_parts(op, part)
    if op.name != "tensor.reduce" or op.operands != (part.result,) or not adds(op):
        return False
    assert op.body is not None
    own = [Sym(d) for d in domain(op)]
    at = list(reads(op)[0])
    return len(op.body.ops) == 2 and fills(op) == (None,) and sorted(map(str, at)) == sorted(map(str, own))


def _adds_few_parts(op: Op, part: Op) -> bool:
    """The same of a map that reads each of a few parts."""
    assert op.body is not None
    shape, columns = part.result.tensor.shape, tuple(map(Sym, dims(op, "par")))
    if (
        op.operands != (part.result,) * shape[0]
        or len(op.results) != 1
        or any(f is not None for f in fills(op))
    ):
        return False
    if list(reads(op)) != [(i, *columns) for i in range(shape[0])]:
        return False
    *inner, last = op.body.ops
    used = [v for o in inner for v in o.operands]
    made = [o.result for o in inner]
    return (
        all(o.name == "scalar.add" for o in inner)
        and last.operands == tuple(made[-1:])
        and sorted(map(id, used)) == sorted(map(id, (*op.body.params, *made[:-1])))
    )


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
    return WholeSum(walked, (mean, op.result), value, reads(walked)[0]), set(taken)


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
