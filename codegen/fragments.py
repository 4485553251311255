"""Matrix fragments of a warp: which element of a 16x16, 16x8 or 8x8 tile lies in which register of which lane.

Layouts are those of the PTX manual for mma.m16n8k16 (f16, bf16) and mma.m16n8k8 (tf32).
"""

from __future__ import annotations

from tilewright.codegen.dialect import NARROW
from tilewright.codegen.emission import BufferRef, Emission
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.expr import Expr
from tilewright.ir.nodes import Value
from tilewright.ir.types import TensorType

#: registers per lane of the fragments there are, by dtype class and shape
_REGISTERS = {
    ("narrow", (16, 16)): 4,
    ("narrow", (16, 8)): 2,
    ("f32", (16, 8)): 4,
    ("f32", (8, 8)): 2,
}


def registers(t: TensorType) -> int:
    """32-bit registers per lane; raises UnsupportedError for a tile no instruction takes."""
    key = ("narrow" if t.dtype in NARROW else t.dtype, t.shape)
    if key not in _REGISTERS:
        raise UnsupportedError(
            f"expected a fragment [16, 16] or [16, 8] of f16 or bf16, or [16, 8] or [8, 8] of f32, got {t}"
        )
    return _REGISTERS[key]


def declare_fragment(e: Emission, v: Value) -> None:
    """Registers of one lane: packed pairs for 16-bit floats, one float each for f32."""
    if e.dialect.native_vectors:
        raise UnsupportedError(f"matrix fragments need CUDA; {e.dialect.name} has none")
    t = v.tensor
    name = e.name(v.hint or "fragment")
    kind = "unsigned int" if t.dtype in NARROW else "float"
    e.line(f"{kind} {name}[{registers(t)}];")
    e.buffers[v] = BufferRef(name, t, flat=False)


def lane_elements(t: TensorType, role: str) -> list[list[tuple[Expr, Expr]]]:
    """Per register the (row, column) of each element it packs, over the symbols `lane.row` = lane / 4 and `lane.pair` = lane % 4."""
    from tilewright.ir.expr import Sym

    g, p = Sym("lane.row"), Sym("lane.pair")
    if t.dtype in NARROW and role == "a":
        starts = [(g, p * 2), (g + 8, p * 2), (g, p * 2 + 8), (g + 8, p * 2 + 8)]
        return [[(r, c), (r, c + 1)] for r, c in starts]
    if t.dtype in NARROW:
        return [[(p * 2 + k, g), (p * 2 + k + 1, g)] for k in (0, 8)]
    if role == "a":
        return [[(g, p)], [(g + 8, p)], [(g, p + 4)], [(g + 8, p + 4)]]
    if role == "b":
        return [[(p, g)], [(p + 4, g)]]
    return [[(g, p * 2)], [(g, p * 2 + 1)], [(g + 8, p * 2)], [(g + 8, p * 2 + 1)]]
