"""Gradients of tables of which a step reads rows (embeddings): the rows that occur, without all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import GraphWriter, Tensor
from tilewright.ir.nodes import Op, Value
from tilewright.passes.graph.gradients.places import clipped, wrapped


@dataclass(frozen=True)
class RowGradient:
    """The gradient by the rows of a table that a step reads; it is zero for all others.

    indices: [n], a row for each read, with repeats. totals: [n, ...], for each read the whole gradient of its
    row: the sum over all reads of it. first: [n, 1, ...], true for one read of each row.
    """

    indices: Tensor
    totals: Tensor
    first: Tensor

    @property
    def type(self) -> object:
        """That of the totals."""
        return self.totals.type

    def __mul__(self, factor: Tensor | float) -> RowGradient:
        return replace(self, totals=self.totals * factor)

    def square_sum(self) -> Tensor:
        """The sum of the squares of the gradient; each row counts once."""
        return self.first.where(self.totals * self.totals, 0).sum()

    def rows(self, table: Tensor) -> Tensor:
        """The rows of a table that are read."""
        return table.writer.op("take", table, self.indices, axis=0)

    def updated(self, table: Tensor, rows: Tensor) -> Tensor:
        """The table with new rows at the indices; reads of one row must have equal ones."""
        places = self.indices.reshape(1, self.indices.size)
        return table.writer.op("scatter_nd", table, places, rows, mode="update")


def reads_of_rows(ops: Sequence[Op], table: Value, name: str) -> list[Op]:
    """The ops that read rows of a table; raises InputError where another op reads it, or none does."""
    reads = [op for op in ops if table in op.operands]
    for op in reads:
        whole = op.name != "graph.take" or op.operands[1] is table
        if whole or op["axis"] != 0 or op["batch_dims"] != 0:
            raise InputError(
                f"expected a sparse parameter of which graph.take reads rows (axis 0) alone, '{name}' is "
                f"read by {op.name}",
                where=op.loc,
            )
    return reads


def row_gradient(
    w: GraphWriter, table: Tensor, reads: Sequence[Op], cotangents: Sequence[Tensor]
) -> RowGradient:
    """The gradient by the rows that ops read, from what came back to their results, in float32.

    Reads of one row are counted by the largest position among them, where their sum is gathered.
    """
    count = table.shape[0]
    indices, rows = [], []
    for op, g in zip(reads, cotangents, strict=True):
        at = w.tensor(op.operands[1])
        bounded = wrapped if op["mode"] == "wrap" else clipped
        indices.append(bounded(at, count).reshape(at.size).cast("i32"))
        rows.append(g.reshape(at.size, *table.shape[1:]))
    index = indices[0] if len(indices) == 1 else w.op("concatenate", *indices, axis=0)
    row = rows[0] if len(rows) == 1 else w.op("concatenate", *rows, axis=0)
    positions = w.op("arange", stop=index.size, dtype="i32")
    none = w.number(0, "i32").broadcast_to(count)
    last = w.op("scatter_nd", none, index.reshape(1, index.size), positions, mode="max")
    group = w.op("take", last, index, axis=0)
    sums = w.op("scatter_nd", w.full(0, row.type), group.reshape(1, index.size), row, mode="add")
    first = group.equal(positions).reshape(index.size, *(1 for _ in table.shape[1:]))
    return RowGradient(index, w.op("take", sums, group, axis=0), first)
