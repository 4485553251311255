"""Ops whose table of weights is too large for one step: products and look-ups, split by rows of it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir import Op, Value
from tilewright.ir.builder import Builder
from tilewright.ir.types import TensorType
from tilewright.streaming.line import Line, RowsOf


def split_large(line: Line, weight_limit: int) -> Line:
    """The line with every op split whose weights exceed the limit, where that is possible.

    rewrite:  graph.dense(x, w)  -->  graph.concatenate(graph.dense(x, rows of w), graph.dense(x, others))
    rewrite:  graph.take(w, i)   -->  graph.where(i >= n, graph.take(rows of w from n on, i - n),
                                      graph.take(rows of w before n, i))
    """
    large = [i for i, needed in enumerate(line.constant_bytes) if sum(needed.values()) > weight_limit]
    splitter = _Splitter(line, weight_limit)
    changed = {i: ops for i in large if (ops := splitter.split(line.ops[i]))}
    if not changed:
        return line
    ops = [new for i, op in enumerate(line.ops) for new in changed.get(i, [op])]
    constants = line.module.constants.updated(splitter.numbers)
    return replace(
        line,
        module=line.module.with_constants(constants),
        ops=tuple(ops),
        fixed={**line.fixed, **splitter.fixed},
        rows={**line.rows, **splitter.rows},
    )


@dataclass(frozen=True)
class _Table:
    """A constant that an op reads row by row, and the begins and ends of its pieces."""

    name: str
    pieces: tuple[tuple[int, int], ...]


class _Splitter:
    def __init__(self, line: Line, limit: int) -> None:
        self._line, self._limit = line, limit
        self.fixed: dict[Value, Op] = {}
        self.rows: dict[str, RowsOf] = {}
        self.numbers: dict[str, np.ndarray] = {}

    def split(self, op: Op) -> list[Op] | None:
        """Ops that compute the same results; None where this op cannot be split."""
        builder = Builder(op.loc)
        if op.name == "graph.dense":
            table = self._table(op.operands[1])
            if table is None:
                return None
            pieces = [builder.emit("graph.dense", (op.operands[0], rows), dict(op.attrs))[0]
                      for rows in self._rows(table)]  # fmt: skip
            builder.emit("graph.concatenate", pieces, {"axis": op.result.tensor.rank - 1})
        elif op.name == "graph.take" and op.get("axis") == 0 and op.get("batch_dims") == 0:
            table = self._table(op.operands[0])
            if table is None or op.get("mode") == "wrap":
                return None
            self._take(builder, op, table)
        else:
            return None
        *before, last = builder.ops
        return [*before, replace(last, results=op.results)]

    def _table(self, value: Value) -> _Table | None:
        """The constant that is to be split; None where it is computed, or even one row is too large."""
        op = self._line.fixed.get(value)
        if op is None or op.name != "graph.constant" or value.tensor.rank < 1:
            return None
        count = value.tensor.shape[0]
        most = self._limit // max(1, value.tensor.nbytes // count)
        if most < 1:
            return None
        # Even pieces: steps that are alike share a plan.
        number = -(-count // most)
        bounds = [count * i // number for i in range(number + 1)]
        return _Table(str(op["name"]), tuple(itertools.pairwise(bounds)))

    def _rows(self, table: _Table) -> Iterator[Value]:
        kind = next(v.tensor for v, op in self._line.fixed.items() if op.get("name") == table.name)
        for begin, end in table.pieces:
            name = f"{table.name}.rows_{begin}_{end}"
            self.rows[name] = RowsOf(table.name, begin, end)
            yield self._constant(name, TensorType(kind.dtype, (end - begin, *kind.shape[1:])))

    def _constant(self, name: str, kind: TensorType) -> Value:
        value = Value(kind, name)
        self.fixed[value] = Op("graph.constant", (), (("name", name),), (value,))
        return value

    def _number(self, value: int, like: Value) -> Value:
        name = f"row_{value}"
        kind = like.tensor.dtype
        self.numbers[name] = np.asarray(value, np.dtype({"i32": np.int32, "i64": np.int64}[kind]))
        return self._constant(name, TensorType(kind, ()))

    def _take(self, builder: Builder, op: Op, table: _Table) -> None:
        """Look up in piece after piece; each takes over the rows from its first on."""
        places, attrs = op.operands[1], dict(op.attrs)
        shape = (*places.tensor.shape, *(1,) * (op.operands[0].tensor.rank - 1))
        first, *others = self._rows(table)
        (found,) = builder.emit("graph.take", (first, places), attrs)
        for rows, (begin, _) in zip(others, table.pieces[1:], strict=True):
            number = self._number(begin, places)
            (inside,) = builder.emit("graph.subtract", (places, number))
            (own,) = builder.emit("graph.take", (rows, inside), attrs)
            (reached,) = builder.emit("graph.greater_equal", (places, number))
            (wide,) = builder.emit("graph.reshape", (reached,), {"newshape": shape})
            (found,) = builder.emit("graph.where", (wide, own, found))
