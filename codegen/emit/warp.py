"""Emitters of shuffles between the lanes of a warp (CUDA only)."""

from __future__ import annotations

from tilewright.codegen.emit.emission import Emission, emitter
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.nodes import Op
from tilewright.ir.types import itemsize

_SHUFFLES = {
    "down": "__shfl_down_sync",
    "up": "__shfl_up_sync",
    "xor": "__shfl_xor_sync",
    "index": "__shfl_sync",
}


def cuda_only(e: Emission, op: Op) -> None:
    """Raise UnsupportedError where the op's warps do not exist."""
    if e.dialect.native_vectors:
        raise UnsupportedError(f"{op.name} needs CUDA; {e.dialect.name} has no warps", where=op.loc)
    if e.block_size % 32:
        raise UnsupportedError(
            f"{op.name}: expected a block of whole warps of 32 threads, got {e.block_size}", where=op.loc
        )


@emitter("thread.shuffle")
def _shuffle(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    kind, width = str(op["kind"]), op["width"]
    if kind not in _SHUFFLES or width not in (2, 4, 8, 16, 32):
        raise UnsupportedError(
            f"thread.shuffle: expected {', '.join(_SHUFFLES)} within 2 to 32 lanes, "
            f"got '{kind}' within {width}",
            where=op.loc,
        )
    t = e.scalar_type(op.result)
    offset = e.index.render(op["offset"], e.ranges)  # type: ignore[arg-type]
    texts = []
    for text in e.lanes_of(op.operands[0], t.lanes):
        sent = text if t.dtype == "bool" or itemsize(t.dtype) >= 4 else f"(int){text}"
        call = f"{_SHUFFLES[kind]}(0xffffffffu, {sent}, {offset}, {width})"
        texts.append(call if sent is text else f"({e.dialect.reg_type(t.dtype)}){call}")
    e.bind_lanes(op.result, texts, hint="other")
