"""Sums of columns that the kernel of a product takes of its results: what they are, and how tiles take them.

Every result passes through shared memory on its way to memory, 16 rows at a time. There a lane adds up one
column of them, so that no lane needs registers of another one; what the rows of a part have is combined at
the end of a tile, by one thread for each column. Tiles hold whole parts, so that no sum crosses them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

from tilewright.ir import Expr, Func, InputError, Op, Sym, Value
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import MMA_M
from tilewright.ir.simplify import Ranges, simplify
from tilewright.ir.tensor.ops import dims, fills, ranges_of, reads
from tilewright.passes.kernels.writing.points import Points
from tilewright.passes.kernels.writing.writer import Writer

#: rows that one lane adds up at a time: those of a fragment, of which a warp brings as many to shared memory
GROUP_ROWS = MMA_M


class Product(Protocol):
    """A contraction as batched product of [m, k] and [n, k]: names of the dimensions of its results."""

    @property
    def op(self) -> Op:
        """The contraction."""
        ...

    @property
    def rows(self) -> tuple[str, ...]:
        """Those that make up m."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that make up n."""
        ...

    @property
    def batch(self) -> tuple[str, ...]:
        """Those of both factors."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """All extents."""
        ...

    @property
    def sums_of_result(self) -> int:
        """Sums from which a result is computed."""
        ...

    def size(self, names: tuple[str, ...]) -> int:
        """Product of the extents of dimensions."""
        ...


@dataclass(frozen=True)
class ColumnSums:
    """The sums of columns of a kernel, by parts of `length` rows of the product.

    folds: sums over the rows of a group, with parallel dimensions (part, group in it, column). ends: sums
    over the groups of a part and maps of what these give, with parallel dimensions (part, column). points:
    what is summed, values of the product's own domain; firsts: those whose first row of a group is read.
    written: results of the product's own domain, in their order, perhaps none; stored: whether all that is
    summed can be computed from these and from parameters.
    """

    length: int
    parts: int
    folds: tuple[Op, ...]
    ends: tuple[Op, ...]
    points: tuple[Value, ...]
    firsts: tuple[Value, ...]
    written: tuple[Value, ...]
    stored: bool

    @property
    def groups(self) -> int:
        """Groups of rows of a part."""
        return self.length // GROUP_ROWS

    @property
    def laid(self) -> tuple[Value, ...]:
        """What warps lay down where they sum what they lay down: what is written, else what is summed."""
        return self.written or self.points

    @property
    def results(self) -> frozenset[Value]:
        """What the ends give."""
        return frozenset(r for op in self.ends for r in op.results)


def row_index(view: Product, row: Expr, column: Expr, ranges: Ranges) -> tuple[Expr, ...]:
    """The index of a result, by the number of its row among all and its column."""
    index: dict[str, Expr] = dict.fromkeys(view.batch, 0)
    index |= {d: column if view.sizes[d] > 1 else 0 for d in view.columns}
    step = 1
    for i, d in reversed(list(enumerate(view.rows))):
        e = row // step
        index[d] = simplify(e % view.sizes[d] if i else e, ranges)
        step *= view.sizes[d]
    return tuple(index[d] for d in dims(view.op, "par"))


def takes_sums(view: Product) -> bool:
    """Return whether a product's rows are one dimension of a matrix, with a column's neighbours in memory.

    Each of its results must be a sum of its own.
    """
    par = dims(view.op, "par")
    last = next((d for d in reversed(par) if par[d] > 1), "")
    wide = [d for d in view.columns if par[d] > 1]
    return wide == [last] and view.size(view.batch) == 1 and view.sums_of_result == 1


def point_ops(kernel: Func, op: Op) -> tuple[Op, ...]:
    """The maps behind a contraction that are computed at its own points, where nothing else follows: all."""
    behind = kernel.body.ops[kernel.body.ops.index(op) + 1 : -1]
    first = next((i for i, o in enumerate(behind) if o.name == "tensor.reduce"), len(behind))
    return behind[:first]


def column_sums(kernel: Func, view: Product) -> ColumnSums | None:
    """The sums of columns of a kernel around one contraction; None where it has none.

    Behind the maps of the product's own points there are, in this order: sums over `r` of rows
    part * length + group * 16 + r, sums over groups, and maps of these.
    """
    rest = _behind_points(kernel, view.op)
    return _Sums.of(kernel, view, rest) if rest else None


def known_sums(kernel: Func, view: Product) -> ColumnSums | None:
    """The same of a kernel that reduces nothing else; raises InputError where it does."""
    sums = column_sums(kernel, view)
    if sums is None and _behind_points(kernel, view.op):
        raise InputError(
            f"expected sums over groups of {GROUP_ROWS} rows of a product, and what follows of their parts",
            where=f"@{kernel.name}",
        )
    return sums


def _behind_points(kernel: Func, op: Op) -> tuple[Op, ...]:
    """What stands behind the maps of a contraction's own points."""
    behind = kernel.body.ops[kernel.body.ops.index(op) + 1 : -1]
    return behind[len(point_ops(kernel, op)) :]


class _Sums:
    """What is known of a kernel's sums while its ops are read one after another."""

    def __init__(self, view: Product, made: frozenset[Value], shape: tuple[int, int, int]) -> None:
        self.view, self.made = view, made
        self.parts, self.groups, self.columns = shape
        self.points: dict[Value, None] = {}
        self.firsts: dict[Value, None] = {}
        self.folded: set[Value] = set()
        self.ended: set[Value] = set()

    @staticmethod
    def of(kernel: Func, view: Product, rest: Sequence[Op]) -> ColumnSums | None:
        """The sums that these ops are; None where they are something else."""
        shape = tuple(dims(rest[0], "par").values())
        domain_of_product = tuple(dims(view.op, "par").values())
        if not takes_sums(view) or len(shape) != 3 or any(len(op.results) != 1 for op in rest):
            return None
        made = frozenset(
            r for op in (view.op, *point_ops(kernel, view.op)) for r in op.results
            if r.tensor.shape == domain_of_product
        )  # fmt: skip
        known = _Sums(view, made, shape)
        rows = view.size(view.rows)
        if prod(shape[:2]) * GROUP_ROWS != rows or shape[2] != view.size(view.columns):
            return None
        folds = [op for op in rest if len(dims(op, "par")) == 3]
        ends = [op for op in rest if len(dims(op, "par")) == 2]
        if len(folds) + len(ends) != len(rest) or not ends:
            return None
        if not all(map(known.fold, folds)) or not all(map(known.end, ends)):
            return None
        results = dict.fromkeys(kernel.body.ops[-1].operands)
        written = tuple(v for v in results if v not in known.ended)
        producers = {r: op for op in kernel.body.ops for r in op.results}
        given = frozenset((*written, *kernel.params))
        return ColumnSums(
            shape[1] * GROUP_ROWS,
            shape[0],
            tuple(folds),
            tuple(ends),
            tuple(known.points),
            tuple(known.firsts),
            written,
            all(_follows(v, given, producers) for v in known.points),
        )

    def fold(self, op: Op) -> bool:
        """Take a sum over the rows of a group; return whether it is one."""
        par, red = dims(op, "par"), dims(op, "red")
        shape = (self.parts, self.groups, self.columns)
        if op.name != "tensor.reduce" or tuple(par.values()) != shape or tuple(red.values()) != (GROUP_ROWS,):
            return False
        (p, g, c), (r,), ranges = tuple(par), tuple(red), ranges_of(op)
        first = (Sym(p) * self.groups + Sym(g)) * GROUP_ROWS
        own = self._at(first + Sym(r), c, ranges)
        begin = self._at(first, c, ranges)
        for v, at in _plain_reads(op, ranges):
            if v not in self.made or at not in (own, begin):
                return False
            self.points[v] = None
            if at == begin:
                self.firsts[v] = None
        self.folded.update(op.results)
        return True

    def end(self, op: Op) -> bool:
        """Take a sum over the groups of a part, or a map of parts; return whether it is one."""
        par, red = dims(op, "par"), dims(op, "red")
        over = (self.groups,) if op.name == "tensor.reduce" else ()
        if op.name not in ("tensor.reduce", "tensor.map") or tuple(red.values()) != over:
            return False
        if tuple(par.values()) != (self.parts, self.columns):
            return False
        (p, c), ranges = tuple(par), ranges_of(op)
        for v, at in _plain_reads(op, ranges):
            if v in self.ended:
                fits = at == _simple((Sym(p), Sym(c)), ranges)
            elif not red:
                fits = False
            elif v in self.folded:
                fits = at == _simple((Sym(p), Sym(next(iter(red))), Sym(c)), ranges)
            else:
                row = (Sym(p) * self.groups + Sym(next(iter(red)))) * GROUP_ROWS
                fits = v in self.points and at == self._at(row, c, ranges)
                self.firsts[v] = None
            if not fits:
                return False
        self.ended.update(op.results)
        return True

    def _at(self, row: Expr, column: str, ranges: Ranges) -> tuple[Expr, ...]:
        return _simple(row_index(self.view, simplify(row, ranges), Sym(column), ranges), ranges)


def _follows(v: Value, given: frozenset[Value], producers: Mapping[Value, Op]) -> bool:
    """Return whether maps compute a value from given ones alone."""
    if v in given:
        return True
    op = producers[v]
    return op.name == "tensor.map" and all(_follows(x, given, producers) for x in op.operands)


def _plain_reads(op: Op, ranges: Ranges) -> list[tuple[Value, tuple[Expr, ...]]]:
    """What an op reads where, simplified; an operand that is no tensor element by element fits nowhere."""
    if any(fill is not None for fill in fills(op)):
        return [(v, ()) for v in op.operands]
    return [(v, _simple(at, ranges)) for v, at in zip(op.operands, reads(op), strict=True)]


def _simple(at: Sequence[Expr], ranges: Ranges) -> tuple[Expr, ...]:
    return tuple(simplify(e, ranges) for e in at)


class TileSums:
    """The sums of columns of one tile at a time, by the threads that share it.

    rows, columns: of the tile. Sums of groups lie in shared memory until the tile's results are written.
    """

    def __init__(self, w: Writer, view: Product, sums: ColumnSums, rows: int, columns: int) -> None:
        self.w, self.view, self.sums = w, view, sums
        self.rows, self.columns = rows, columns
        shape = (rows // GROUP_ROWS, columns)
        self.kept = {
            op.result: w.alloc(shape, op.result.tensor.dtype, "shared", "groups") for op in sums.folds
        }
        self.kept |= {v: w.alloc(shape, v.tensor.dtype, "shared", "firsts") for v in sums.firsts}

    def fold(
        self,
        staged: Callable[[Value, Expr, Expr], Value],
        place: tuple[Expr, Expr],
        group: Expr,
        column: Expr,
        lanes: int = 1,
    ) -> None:
        """Add up columns of a group of rows.

        staged: gives an element of a value by its row in the group and its column behind the first one.
        place: the first row and column of the tile; group, column: therein. lanes: columns that are added up,
        all of which are inside where the first one is.
        """
        w, sums = self.w, self.sums
        row = w.simple(place[0] + group * GROUP_ROWS)
        inside = (
            *w.below(row, self.view.size(self.view.rows)),
            *w.below(w.simple(place[1] + column), self.view.size(self.view.columns)),
        )
        with w.when(inside):
            totals = [w.alloc((lanes,), op.result.tensor.dtype, "reg", "total") for op in sums.folds]
            firsts = {v: w.alloc((lanes,), v.tensor.dtype, "reg", "first") for v in sums.firsts}
            with w.loop("v", lanes, unroll=1) as v:
                for op, total in zip(sums.folds, totals, strict=True):
                    w.store(self._start(op), total, (v,))
                for value, first in firsts.items():
                    w.store(staged(value, 0, v), first, (v,))
            with w.loop("r", GROUP_ROWS, unroll=1) as r, w.loop("v", lanes, unroll=1) as v:
                known: dict[Value, Value] = {}
                for op, total in zip(sums.folds, totals, strict=True):
                    (name,) = dims(op, "red")
                    values = []
                    for value, index in zip(op.operands, reads(op), strict=True):
                        if not _names(index, name):
                            values.append(w.load(firsts[value], (v,)))
                            continue
                        if value not in known:
                            known[value] = staged(value, r, v)
                        values.append(known[value])
                    point = (row // sums.length, group % sums.groups, place[1] + column + v)
                    env = {**dict(zip(dims(op, "par"), map(w.simple, point), strict=True)), name: r}
                    (new,) = w.inline(op, [*values, w.load(total, (v,))], env)
                    w.store(new, total, (v,))
            with w.loop("v", lanes, unroll=1) as v:
                at = (group, w.simple(column + v))
                for op, total in zip(sums.folds, totals, strict=True):
                    w.store(w.load(total, (v,)), self.kept[op.result], at)
                for value, first in firsts.items():
                    w.store(w.load(first, (v,)), self.kept[value], at)

    def fold_laid(
        self,
        laid: Callable[[Value, Expr, Expr], Value],
        place: tuple[Expr, Expr],
        group: Expr,
        column: Expr,
        lanes: int,
    ) -> None:
        """Add up columns of a group of rows whose results, or summed values, are laid down by rows.

        What is summed besides is computed from these once more. laid: gives an element of such a value, as
        `staged` of `fold` does.
        """
        points: dict[tuple[Expr, Expr], Points] = {}

        def staged(value: Value, r: Expr, v: Expr) -> Value:
            if (r, v) not in points:
                points[r, v] = Points(self.w, {x: laid(x, r, v) for x in self.sums.laid})
            row, at = place[0] + group * GROUP_ROWS + r, place[1] + column + v
            return points[r, v].value(value, row_index(self.view, row, at, self.w.ranges))

        self.fold(staged, place, group, column, lanes)

    def finish(self, place: tuple[Expr, Expr], threads: int) -> None:
        """Combine the groups of each part and write what the ends give: a thread for each column of one."""
        w, sums = self.w, self.sums
        count = self.rows // sums.length * self.columns
        with w.loop("part", -(-count // threads)) as step:
            number = w.simple(step * threads + Sym("tid"))
            local, column = w.unravel(number, (self.rows // sums.length, self.columns))
            part = w.simple(place[0] // sums.length + local)
            at = w.simple(place[1] + column)
            inside = (
                *w.below(number, count),
                *w.below(part, sums.parts),
                *w.below(at, self.view.size(self.view.columns)),
            )
            with w.when(inside):
                self._ends(local, column, part, at)

    def _ends(self, local: Expr, column: Expr, part: Expr, at: Expr) -> None:
        w, groups = self.w, self.sums.groups
        known: dict[Value, Value] = {}
        loaded: dict[tuple[Value, int], Value] = {}

        def element(v: Value, g: int) -> Value:
            if v in known:
                return known[v]
            if (v, g) not in loaded:
                loaded[v, g] = w.load(self.kept[v], (w.simple(local * groups + g), column))
            return loaded[v, g]

        for op in self.sums.ends:
            env = dict(zip(dims(op, "par"), (part, at), strict=True))
            if op.name == "tensor.map":
                (total,) = w.inline(op, [known[v] for v in op.operands], env)
            else:
                total = self._start(op)
                (name,) = dims(op, "red")
                for g in range(groups):
                    values = [element(v, g) for v in op.operands]
                    (total,) = w.inline(op, [*values, total], {**env, name: g})
            known[op.result] = total
            if op.result in w.outputs:
                with w.b.at(op.loc):
                    w.store(total, w.outputs[op.result], (part, at))

    def _start(self, op: Op) -> Value:
        start: float = op["init"][0]  # type: ignore[index, assignment]
        return self.w.b.const(start, op.result.tensor.dtype)


def _names(at: Sequence[Expr], name: str) -> bool:
    return any(name in symbols(e) for e in at)
