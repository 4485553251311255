"""Kernels of two products of which the second multiplies the finished rows of the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir import Func, Op, Sym, Value
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.kernel_problem import ops_named
from tilewright.passes.kernels.matrix.view import NARROW, MatrixView, matrix_view


@dataclass(frozen=True)
class ChainedView:
    """Both products as matrices, and the tensor that the second one multiplies.

    handed: of the extents of the first one's sums, computed from them element by element. maps, results: per
    product the maps that compute something from its sums, and what of these the kernel returns.
    """

    kernel: Func
    first: MatrixView
    second: MatrixView
    handed: Value
    maps: tuple[tuple[Op, ...], tuple[Op, ...]]
    results: tuple[tuple[Value, ...], tuple[Value, ...]]

    @property
    def products(self) -> tuple[MatrixView, MatrixView]:
        """Both products, in their order."""
        return self.first, self.second

    def further(self, product: int) -> tuple[Value, ...]:
        """The 16-bit parameters of a product's extents that its maps alone read, where they compute."""
        op, maps = self.products[product].op, self.maps[product]
        others = [o for o in self.kernel.body.ops[:-1] if o not in maps]
        out = []
        for v in self.kernel.params:
            at = [(o, i) for o in maps for i, x in enumerate(o.operands) if x is v]
            alone = bool(at) and not any(v in o.operands for o in others)
            alike = v.tensor.shape == op.result.tensor.shape and itemsize(v.tensor.dtype) == 2
            if alone and alike and all(_in_place(o, i) for o, i in at):
                out.append(v)
        return tuple(out)

    @property
    def rows(self) -> int:
        """Rows that both products have."""
        return self.first.size(self.first.rows)

    @property
    def columns(self) -> int:
        """Columns of the first product, over which the second one sums."""
        return self.first.size(self.first.columns)

    @property
    def width(self) -> int:
        """Columns of the second product."""
        return self.second.size(self.second.columns)

    @property
    def flops(self) -> int:
        """Operations of both products."""
        depth = self.first.size(self.first.taps) * self.first.sizes[self.first.channel]
        return 2 * self.rows * self.columns * (depth + self.width)


def chained_view(kernel: Func) -> ChainedView | str:
    """The kernel as two chained products, or one clause that says why it is none.

    Legal is what index sets allow: an element of the second product's first factor is an element of the first
    product's sums, at the same row, after maps that read these where they compute; the second product sums
    over all columns of the first one and over nothing else. So a block that has finished some rows of the
    first product has all that it needs of it for the same rows of the second one.
    """
    products = ops_named(kernel, "tensor.contract")
    if len(products) != 2 or {op.name for op in kernel.body.ops[:-1]} != {"tensor.contract", "tensor.map"}:
        return "it is not two products with maps"
    views = [matrix_view(kernel, op) for op in products]
    first, second = views
    if first is None or second is None or first.dtype not in NARROW or second.dtype not in NARROW:
        return "not both are products of 16-bit factors"
    if first.members is not None or second.members is not None:
        return "a result is computed from several sums"
    if any(view.size(view.batch) > 1 for view in (first, second)):
        return "a product has a batch of matrices"
    behind, further_behind = (_behind(kernel, op) for op in products)
    if isinstance(behind, str) or isinstance(further_behind, str):
        return behind if isinstance(behind, str) else str(further_behind)
    (maps, values), (further_maps, further) = behind, further_behind
    handed = second.sources[0].value
    if handed not in values:
        return "the second product does not multiply what is computed from the sums of the first"
    if any(v in values for op in further_maps for v in op.operands):
        return "a map reads both products"
    if not all(s.given for s in (*first.sources, second.sources[1])):
        return "a factor of a product is computed"
    if not _same_rows(first, second):
        return "the second product does not read the rows of the first as they are"
    returned = kernel.body.ops[-1].operands
    if any(v not in values and v not in further for v in returned):
        return "it returns what is computed from no product"
    return ChainedView(
        kernel,
        first,
        second,
        handed,
        (maps, further_maps),
        (tuple(v for v in returned if v in values), tuple(v for v in returned if v in further)),
    )


def _behind(kernel: Func, product: Op) -> tuple[tuple[Op, ...], list[Value]] | str:
    """The maps that compute something from the sums of a product, and all values that are so computed.

    They must read these values where they compute, which no other op but a product does.
    """
    values, maps = [product.result], []
    for op in kernel.body.ops[:-1]:
        if op.name != "tensor.map" or not any(v in values for v in op.operands):
            continue
        alike = tuple(dims(op, "par").values()) == product.result.tensor.shape
        own = [i for i, v in enumerate(op.operands) if v in values]
        if not alike or not all(_in_place(op, i) for i in own):
            return "a map reads a product elsewhere than where it computes"
        values += op.results
        maps.append(op)
    return tuple(maps), values


def _in_place(op: Op, operand: int) -> bool:
    """Return whether a map reads an operand where it computes."""
    return reads(op)[operand] == tuple(Sym(d) for d in dims(op, "par")) and fills(op)[operand] is None


def _same_rows(first: MatrixView, second: MatrixView) -> bool:
    """Return whether the second product reads each row of the first one's sums as its own row, and all of it.

    Dimensions of one element do not count.
    """
    if second.size(second.taps) > 1:
        return False
    at = dict(zip(dims(first.op, "par"), second.sources[0].at, strict=True))
    rows, others = _wide(first, first.rows), _wide(second, second.rows)
    columns = _wide(first, first.columns)
    if [first.sizes[d] for d in rows] != [second.sizes[d] for d in others] or len(columns) != 1:
        return False
    if first.sizes[columns[0]] != second.sizes[second.channel]:
        return False
    return at[columns[0]] == Sym(second.channel) and all(
        at[d] == Sym(e) for d, e in zip(rows, others, strict=True)
    )


def _wide(view: MatrixView, names: Sequence[str]) -> list[str]:
    return [d for d in names if view.sizes[d] > 1]
