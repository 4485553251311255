"""Emitters of float32 products by split factors: pieces, promoted sums, the test of all (CUDA only)."""

from __future__ import annotations

from tilewright.codegen.emit.emission import BufferRef, Emission, emitter
from tilewright.codegen.emit.fragments import register_text, registers, tile_text
from tilewright.codegen.emit.warp import cuda_only
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.float_pieces import PIECES
from tilewright.ir.nodes import Op
from tilewright.ir.thread.split_ops import GROUP, place_of_piece

#: per register of a tile of pieces, the tile of float32 and the two of its registers that it holds
_PAIRS: dict[tuple[int, ...], tuple[tuple[int, int, int], ...]] = {
    (16, 8): ((0, 0, 2), (0, 1, 3), (1, 0, 2), (1, 1, 3)),
    (8, 8): ((0, 0, 1), (1, 0, 1)),
}


@emitter("thread.split_fragment", writes=(1,))
def _split(e: Emission, op: Op) -> None:
    """Neighbours along k in one register are those four apart before, which one lane holds."""
    cuda_only(e, op)
    source, pieces = (e.buffer(v) for v in op.operands)
    item = op.exprs("item")
    function = e.need("split_pair")
    apart = _count(pieces) // pieces.type.shape[0]
    for i, (half, low, high) in enumerate(_PAIRS[source.type.shape[-2:]]):
        low_text, high_text = (register_text(e, source, (half, *item), r) for r in (low, high))
        target = register_text(e, pieces, (0, *item), i)
        e.line(f"{function}<{apart}>({low_text}, {high_text}, &{target});")


@emitter("thread.split_shared", writes=(1,))
def _split_shared(e: Emission, op: Op) -> None:
    """Eight neighbours in two vectors of four: elements four apart become pairs. A vector of each piece."""
    cuda_only(e, op)
    tile, pieces = (e.buffer(v) for v in op.operands)
    at, to = op.exprs("at"), op.exprs("dst")
    if e.alignment(tile, at, 4) < 4 or e.alignment(pieces, place_of_piece(to, 0), GROUP) < GROUP:
        raise UnsupportedError("thread.split_shared: expected aligned vectors", where=op.loc)
    sources = ", ".join(f"&{e.element(tile, (*at[:-1], at[-1] + 4 * i))}" for i in range(2))
    targets = ", ".join(f"&{e.element(pieces, place_of_piece(to, p))}" for p in range(PIECES))
    e.line(f"{e.need('split_vector')}({sources}, {targets});")


@emitter("thread.promote_fragment", writes=(2,))
def _promote(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    small, large, sums = (e.buffer(v) for v in op.operands)
    row, column = op.exprs("dst")
    rows, columns = small.type.shape[:2]
    for i in range(rows):
        parts = ", ".join(tile_text(e, part, (i, 0)) for part in (small, large))
        target = tile_text(e, sums, (row + i, column))
        e.line(f"{e.need('add_both', '')}<{columns * registers(small.type)}>({target}, {parts});")


@emitter("thread.add_fragment", writes=(1,))
def _add(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    part, sums = (e.buffer(v) for v in op.operands)
    e.line("#pragma unroll")
    e.line(f"for (int i = 0; i < {_count(sums)}; ++i) {sums.name}[i] += {part.name}[i];")


@emitter("thread.scale_fragment", writes=(0,))
def _scale(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    sums = e.buffer(op.operands[0])
    factor = e.dialect.literal(op.number("factor"), "f32")
    e.line("#pragma unroll")
    e.line(f"for (int i = 0; i < {_count(sums)}; ++i) {sums.name}[i] *= {factor};")


@emitter("thread.any_not_finite")
def _any_not_finite(e: Emission, op: Op) -> None:
    e.bind(op.result, [f"__syncthreads_or({_own_not_finite(e, op)})"], hint="not_finite")


@emitter("thread.any_not_finite_of_warp")
def _any_not_finite_of_warp(e: Emission, op: Op) -> None:
    e.bind(op.result, [f"__any_sync(0xffffffffu, {_own_not_finite(e, op)})"], hint="not_finite")


def _own_not_finite(e: Emission, op: Op) -> str:
    cuda_only(e, op)
    sums = e.buffer(op.operands[0])
    return f"{e.need('not_finite', '')}<{_count(sums)}>({sums.name})"


@emitter("scalar.piece")
def _piece(e: Emission, op: Op) -> None:
    lanes = e.lanes_of(op.operands[0], e.scalar_type(op.result).lanes)
    function = e.need("piece_of_f32", "")
    e.bind_lanes(op.result, [f"{function}({text}, {op.integer('number')})" for text in lanes])


@emitter("scalar.join_pieces")
def _join_pieces(e: Emission, op: Op) -> None:
    lanes = e.scalar_type(op.result).lanes
    columns = zip(*(e.lanes_of(v, lanes) for v in op.operands), strict=True)
    function = e.need("f32_from_pieces", "")
    e.bind_lanes(op.result, [f"{function}({a}, {b}, {c})" for a, b, c in columns])


def _count(fragment: BufferRef) -> int:
    """Registers of a lane of all tiles."""
    t = fragment.type
    return t.size // (t.shape[-1] * t.shape[-2]) * registers(t)
