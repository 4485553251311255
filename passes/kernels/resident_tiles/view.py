"""A kernel of products in turn whose state has rows of a batch, which tensor cores multiply as tiles.

As `passes.kernels.resident.view`, but one row stands for all: every element is followed with the row as a
symbol, so that what a unit needs of a product are columns of its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import MMA_M, MMA_N, VECTOR_BYTES
from tilewright.ir.simplify import simplify
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.resident.view import (
    ALONG,
    MOST_OWNED,
    ROW,
    UNIT,
    Index,
    Product,
    ResidentView,
    Walk,
    owned,
    vector_of,
)

#: what a step reads of its state, the same in all products, behind dimensions of extent 1
STATE: Index = (Sym(ROW), Sym(ALONG))
#: factors that one instruction takes with sums of float32
DTYPES = ("bf16", "f16")


@dataclass(frozen=True)
class TilesView:
    """The products of a kernel, what units own, and the rows of the batch.

    of_row: as for a kernel of one row. applied: the scalar ops applied for an element of the state in all
    steps. dtype: of factors.
    """

    of_row: ResidentView
    rows: int
    dtype: str
    applied: tuple[str, ...]

    @property
    def units(self) -> int:
        return self.of_row.units

    @property
    def products(self) -> tuple[Product, ...]:
        return self.of_row.products

    @property
    def length(self) -> int:
        """Terms of a sum: the units of the state."""
        return self.products[0].length

    @property
    def most_sums(self) -> int:
        """Columns of a product that a unit needs, at most."""
        return max(len(p.sums) for p in self.products)

    @property
    def gates(self) -> tuple[tuple[Value, Index], ...]:
        """The columns of weights that a unit needs, each once: array and index over the sum."""
        return tuple((v, at) for v, at, _ in self.of_row.weights)


def tiles_view(kernel: Func) -> TilesView | str:
    """The view of a kernel, or one clause that says why it has none."""
    ops = kernel.body.ops[:-1]
    unfit = {op.name for op in ops} - {"tensor.contract", "tensor.map"}
    if unfit:
        return f"it has {', '.join(sorted(unfit))} beside products and maps"
    contracts = [op for op in ops if op.name == "tensor.contract"]
    made = {r for op in ops for r in op.results}
    vectors = [(op, vector_of(op, kernel.params, DTYPES)) for op in contracts]
    for _, n in vectors:
        if isinstance(n, str):
            return n
    states = [op.operands[n] for op, n in vectors if isinstance(n, int)]
    kept = list(dict.fromkeys(v for v in states if v in made))
    if not kept:
        return "no product reads what another one gives"
    shape = kept[0].tensor.shape
    tiled = len(shape) == 2 and not any(n % MMA_M for n in shape)
    if not tiled or any(v.tensor.shape != shape for v in states):
        return f"the state {kept[0].type} is no matrix of whole tiles of {MMA_M} x {MMA_M} in every step"
    rows, units = shape
    return view_by_units(kernel, [(op, n) for op, n in vectors if isinstance(n, int)], kept, rows, units)


def view_by_units(
    kernel: Func, vectors: Sequence[tuple[Op, int]], kept: Sequence[Value], rows: int, units: int
) -> TilesView | str:
    """The view of a kernel whose results, and values `kept` in blocks, are matrices of rows of units.

    vectors: its products, each with the position of the operand that is the state. A clause where units need
    what they cannot have.
    """
    returned = kernel.body.ops[-1].operands
    for op, n in vectors:
        state = op.operands[n]
        if not state.tensor.rows_of(VECTOR_BYTES // itemsize(state.tensor.dtype)):
            return f"rows of the state {state.type} do not begin at multiples of {VECTOR_BYTES} bytes"
    for v in (*kept, *returned):
        if not 0 < len(owned(v, units, rows)) <= MOST_OWNED:
            return f"{v.type} is no matrix of {rows} rows of {units} units"
    walk = Walk(kernel, units, rows)
    for v in (*kept, *returned):
        for at in owned(v, units, rows):
            fault = walk.follow(v, at)
            if fault:
                return fault
    view = walk.view(vectors, kept, returned)
    if isinstance(view, str):
        return view
    dtype = vectors[0][0].operands[vectors[0][1]].tensor.dtype
    return _fault(view) or TilesView(view, rows, dtype, tuple(walk.operations))


def _fault(view: ResidentView) -> str:
    """Why products cannot be multiplied as tiles; empty where they can."""
    for p in view.products:
        for s in p.sums:
            *outer, row, along = s.vector_at
            if (row, along) != STATE or any(outer) or s.at[0] != Sym(ROW):
                return "a product reads its state in another order"
            if column_of(s.weights_at) is None:
                return "the columns of weights of neighbouring units are no neighbours"
    return ""


def column_of(at: Index) -> tuple[bool, int] | None:
    """How weights are read: whether sums are along rows of the array, and the first unit's row or column.

    None where units' weights are not those of neighbours in multiples of a tile.
    """
    if len(at) != 2 or Sym(ALONG) not in at:
        return None
    by_rows = at[1] == Sym(ALONG)
    other: Expr = at[0 if by_rows else 1]
    first = simplify(other - Sym(UNIT))
    if set(symbols(other)) != {UNIT} or not isinstance(first, int) or first % MMA_N:
        return None
    return by_rows, first


def weights_of(view: TilesView, product: Product) -> Sequence[tuple[Value, Index]]:
    """Per sum of a product, the array and the index of its weights."""
    return [(product.op.operands[product.weights], s.weights_at) for s in product.sums]
