"""Matrix fragments of a warp: which element of a 16x16, 16x8 or 8x8 tile lies in which register of a lane.

Layouts are those of the PTX manual for mma.m16n8k16 (f16, bf16) and mma.m16n8k8 (tf32).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.codegen.dialect import NARROW
from tilewright.codegen.emit.emission import BufferRef, Emission
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.expr import Expr, Sym
from tilewright.ir.nodes import Value
from tilewright.ir.simplify import simplify
from tilewright.ir.types import TensorType

#: 32-bit registers per lane of the tiles there are, by element bytes and shape
_REGISTERS: dict[tuple[int, tuple[int, ...]], int] = {
    (2, (16, 16)): 4,
    (2, (16, 8)): 2,
    (4, (16, 8)): 4,
    (4, (8, 8)): 2,
}
#: a lane's place in the warp: `lane.row` = lane / 4, `lane.pair` = lane % 4
ROW, PAIR = Sym("lane.row"), Sym("lane.pair")
ROLES = ("a", "b", "c")


def registers(t: TensorType) -> int:
    """32-bit registers per lane of one tile; raises UnsupportedError for a tile no instruction takes."""
    size = 2 if t.dtype in NARROW else (4 if t.dtype == "f32" else 0)
    count = _REGISTERS.get((size, t.shape[-2:]))
    if count is None:
        raise UnsupportedError(
            f"expected a fragment [16, 16] or [16, 8] of f16 or bf16, or [16, 8] or [8, 8] of f32, got {t}"
        )
    return count


def declare_fragment(e: Emission, v: Value) -> None:
    """Registers of one lane, tile after tile: packed pairs for 16-bit floats, one float each for f32."""
    if e.dialect.native_vectors:
        raise UnsupportedError(f"matrix fragments need CUDA; {e.dialect.name} has none")
    t = v.tensor
    count = registers(t) * prod(t.shape[:-2])
    name = e.name(v.hint or "fragment")
    e.line(f"{'unsigned int' if t.dtype in NARROW else 'float'} {name}[{count}];")
    e.buffers[v] = BufferRef(name, t, flat=False)


def register_text(e: Emission, frag: BufferRef, item: Sequence[Expr], i: Expr) -> str:
    """The lvalue of register `i` of a tile."""
    number: Expr = 0
    for index, extent in zip(item, frag.type.shape[:-2], strict=True):
        number = number * extent + index
    return f"{frag.name}[{e.index.render(simplify(number * registers(frag.type) + i, e.ranges), e.ranges)}]"


def tile_text(e: Emission, frag: BufferRef, item: Sequence[Expr]) -> str:
    """A pointer to the registers of a tile."""
    return f"&{register_text(e, frag, item, 0)}" if item else frag.name


def lane_elements(t: TensorType, role: str, paired: bool = False) -> list[list[tuple[Expr, Expr]]]:
    """Per register the (row, column) of each element it holds.

    paired: rows of a second factor of 32 bits are in the order 0 2 4 6 1 3 5 7.
    """
    if t.dtype in NARROW and role == "a":
        starts = [(ROW, PAIR * 2), (ROW + 8, PAIR * 2), (ROW, PAIR * 2 + 8), (ROW + 8, PAIR * 2 + 8)]
        return [[(r, c), (r, c + 1)] for r, c in starts]
    if t.dtype in NARROW:
        return [[(PAIR * 2 + k, ROW), (PAIR * 2 + k + 1, ROW)] for k in (0, 8)]
    if role == "a":
        return [[(ROW, PAIR)], [(ROW + 8, PAIR)], [(ROW, PAIR + 4)], [(ROW + 8, PAIR + 4)]]
    if role == "b" and paired:
        return [[(PAIR * 2, ROW)], [(PAIR * 2 + 1, ROW)]]
    if role == "b":
        return [[(PAIR, ROW)], [(PAIR + 4, ROW)]]
    return [[(ROW, PAIR * 2)], [(ROW, PAIR * 2 + 1)], [(ROW + 8, PAIR * 2)], [(ROW + 8, PAIR * 2 + 1)]]
