"""Emitters of asynchronous multiplications by warpgroups (CUDA, sm_90a only)."""

from __future__ import annotations

from tilewright.codegen.emission import Emission
from tilewright.codegen.emit_warp import cuda_only
from tilewright.codegen.emitters import emitter
from tilewright.codegen.fragments import registers, tile_text
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.nodes import Op
from tilewright.ir.thread_warpgroup_ops import GROUP_M
from tilewright.ir.types import itemsize

#: bytes along the reduced dimension that one instruction multiplies, and of a descriptor's unit of addresses
_DEPTH_BYTES, _UNIT_BYTES = 32, 16


@emitter("thread.warpgroup_mma", writes=(2,))
def _multiply(e: Emission, op: Op) -> None:
    """All instructions of one group: every 64 rows by every step along the tiles' rows."""
    cuda_only(e, op)
    a, b, c = (e.buffer(v) for v in op.operands)
    if op["engine"] != "wgmma":
        raise UnsupportedError(
            f"thread.warpgroup_mma: expected engine 'wgmma', got '{op['engine']}'", where=op.loc
        )
    row = a.type.shape[-1] * itemsize(a.type.dtype)
    if not (a.swizzled and b.swizzled):
        raise UnsupportedError("thread.warpgroup_mma: expected swizzled tiles", where=op.loc)
    rows, columns = c.type.shape[:2]
    function = e.need(f"wgmma_{a.type.dtype}_{columns * c.type.shape[3]}")
    tile = e.need(f"tile_{row}")
    e.line("{")
    for name, memory, key in (("left", a, "a_at"), ("right", b, "b_at")):
        at = op[key]
        e.line(f"const unsigned long long {name} = {tile}(&{e.element(memory, at)});")  # type: ignore[arg-type]
    e.line(f"{e.need('wgmma_begin')}();")
    for step in range(row // _DEPTH_BYTES):
        along = step * _DEPTH_BYTES // _UNIT_BYTES
        for i in range(rows):
            down = i * GROUP_M * row // _UNIT_BYTES
            e.line(f"{function}({tile_text(e, c, (i, 0))}, left + {down + along}, right + {along});")
    e.line(f"{e.need('wgmma_commit')}();")
    e.line("}")


@emitter("thread.warpgroup_wait", writes=(0,))
def _wait(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    sums, pending = e.buffer(op.operands[0]), int(op["pending"])  # type: ignore[arg-type]
    e.line(f"{e.need('wgmma_wait', '')}<{pending}>();")
    if not pending:
        tiles = sums.type.size // (sums.type.shape[-1] * sums.type.shape[-2])
        e.line(f"{e.need('finished', '')}<{tiles * registers(sums.type)}>({sums.name});")


@emitter("thread.publish_shared")
def _publish(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    e.line(f"{e.need('publish_shared')}();")
