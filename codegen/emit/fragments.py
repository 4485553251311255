"""Matrix fragments of a warp: which element of a 16x16, 16x8 or 8x8 tile lies in which register of a lane.

Layouts are those of the PTX manual for mma.m16n8k16 (f16, bf16), mma.m16n8k8 (tf32) and
mma.m16n8k32 (s8, u8).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.codegen.dialect import HALVES
from tilewright.codegen.emit.emission import BufferRef, Emission
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.expr import Expr, Sym
from tilewright.ir.nodes import Value
from tilewright.ir.simplify import simplify
from tilewright.ir.types import BYTES, FLOAT8, TensorType, itemsize

#: 32-bit registers per lane of the tiles there are, by element bytes and shape
_REGISTERS: dict[tuple[int, tuple[int, ...]], int] = {
    (2, (16, 16)): 4,
    (2, (16, 8)): 2,
    (4, (16, 8)): 4,
    (4, (8, 8)): 2,
    (1, (16, 32)): 4,
    (1, (32, 8)): 2,
}
#: C types of registers by dtype, where they are not packed
_REGISTER_TYPES = {"f32": "float", "i32": "int"}
#: a lane's place in the warp: `lane.row` = lane / 4, `lane.pair` = lane % 4
ROW, PAIR = Sym("lane.row"), Sym("lane.pair")
ROLES = ("a", "b", "c")


def registers(t: TensorType) -> int:
    """32-bit registers per lane of one tile; raises UnsupportedError for a tile no instruction takes."""
    size = itemsize(t.dtype) if t.dtype in HALVES | {"f32", *BYTES, *FLOAT8} else 0
    count = _REGISTERS.get((size, t.shape[-2:]))
    if (t.dtype, t.shape[-2:]) == ("i32", (16, 8)):
        count = _REGISTERS[4, (16, 8)]  # sums of bytes
    if count is None:
        raise UnsupportedError(
            "expected a fragment [16, 16] or [16, 8] of f16 or bf16, [16, 8] or [8, 8] of f32, [16, 32] or "
            f"[32, 8] of i8 or f8e4m3 or [16, 8] of i32, got {t}"
        )
    return count


def declare_fragment(e: Emission, v: Value) -> None:
    """Registers of one lane, tile after tile: packed pairs of 16 bits, packed fours of 8, else one each."""
    if e.dialect.native_vectors:
        raise UnsupportedError(f"matrix fragments need CUDA; {e.dialect.name} has none")
    t = v.tensor
    count = registers(t) * prod(t.shape[:-2])
    name = e.name(v.hint or "fragment")
    e.line(f"{_REGISTER_TYPES.get(t.dtype, 'unsigned int')} {name}[{count}];")
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

    paired: along the sum, factors of 32 bits are in the order 0 2 4 6 1 3 5 7.
    """
    if itemsize(t.dtype) == 1 and role == "a":
        corners = [(ROW, PAIR * 4), (ROW + 8, PAIR * 4), (ROW, PAIR * 4 + 16), (ROW + 8, PAIR * 4 + 16)]
        return [[(r, c + i) for i in range(4)] for r, c in corners]
    if itemsize(t.dtype) == 1:
        return [[(PAIR * 4 + k + i, ROW) for i in range(4)] for k in (0, 16)]
    if t.dtype in HALVES and role == "a":
        starts = [(ROW, PAIR * 2), (ROW + 8, PAIR * 2), (ROW, PAIR * 2 + 8), (ROW + 8, PAIR * 2 + 8)]
        return [[(r, c), (r, c + 1)] for r, c in starts]
    if t.dtype in HALVES:
        return [[(PAIR * 2 + k, ROW), (PAIR * 2 + k + 1, ROW)] for k in (0, 8)]
    if role == "a" and paired:
        return [[(ROW, PAIR * 2)], [(ROW + 8, PAIR * 2)], [(ROW, PAIR * 2 + 1)], [(ROW + 8, PAIR * 2 + 1)]]
    if role == "a":
        return [[(ROW, PAIR)], [(ROW + 8, PAIR)], [(ROW, PAIR + 4)], [(ROW + 8, PAIR + 4)]]
    if role == "b" and paired:
        return [[(PAIR * 2, ROW)], [(PAIR * 2 + 1, ROW)]]
    if role == "b":
        return [[(PAIR, ROW)], [(PAIR + 4, ROW)]]
    return [[(ROW, PAIR * 2)], [(ROW, PAIR * 2 + 1)], [(ROW + 8, PAIR * 2)], [(ROW + 8, PAIR * 2 + 1)]]
