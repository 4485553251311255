"""Emitters of shuffles between the lanes of a warp, and of ops of a warpgroup (CUDA only)."""

from __future__ import annotations

from tilewright.codegen.emit.emission import BufferRef, Emission, emitter
from tilewright.codegen.emit.fragments import registers, tile_text
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.expr import Expr
from tilewright.ir.hardware_facts import MMA_K_BYTES
from tilewright.ir.nodes import Op
from tilewright.ir.thread.warpgroup_ops import GROUP_M
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
    offset = e.index.render(op.expr("offset"), e.ranges)
    texts = []
    for text in e.lanes_of(op.operands[0], t.lanes):
        sent = text if t.dtype == "bool" or itemsize(t.dtype) >= 4 else f"(int){text}"
        call = f"{_SHUFFLES[kind]}(0xffffffffu, {sent}, {offset}, {width})"
        texts.append(call if sent is text else f"({e.dialect.reg_type(t.dtype)}){call}")
    e.bind_lanes(op.result, texts, hint="other")


#: bytes of a descriptor's unit of addresses
_UNIT_BYTES = 16


@emitter("thread.warpgroup_mma", writes=(2,))
def _multiply(e: Emission, op: Op) -> None:
    """All instructions of one group: every 64 rows by every step along the tiles' rows."""
    cuda_only(e, op)
    a, b, c = (e.buffer(v) for v in op.operands)
    if op["engine"] != "wgmma":
        raise UnsupportedError(
            f"thread.warpgroup_mma: expected engine 'wgmma', got '{op['engine']}'", where=op.loc
        )
    held = a.type.space == "frag"
    if not b.swizzled or not (a.swizzled or held):
        raise UnsupportedError("thread.warpgroup_mma: expected swizzled tiles", where=op.loc)
    rows, columns = c.type.shape[:2]
    row = b.type.shape[-1] * itemsize(b.type.dtype)
    function = e.need(f"wgmma_{a.type.dtype}{'_held' if held else ''}_{columns * c.type.shape[3]}")
    e.line("{")
    right = _tile(e, "right", b, op.exprs("b_at"))
    left = "" if held else _tile(e, "left", a, op.exprs("a_at"))
    e.line(f"{e.need('wgmma_begin')}();")
    for step in range(1 if held else row // MMA_K_BYTES):
        along = step * MMA_K_BYTES // _UNIT_BYTES
        for i in range(rows):
            down = i * GROUP_M * row // _UNIT_BYTES
            first = tile_text(e, a, (*op.exprs("a_at"), i)) if held else f"{left} + {down + along}"
            e.line(f"{function}({tile_text(e, c, (i, 0))}, {first}, {right} + {along});")
    e.line(f"{e.need('wgmma_commit')}();")
    e.line("}")


def _tile(e: Emission, name: str, memory: BufferRef, at: tuple[Expr, ...]) -> str:
    """The descriptor of a tile from an index on; where rows start, nothing is permuted."""
    size = itemsize(memory.type.dtype)
    function, last = e.need(f"tile_{memory.type.shape[-1] * size}"), at[-1]
    assert isinstance(last, int)
    start = e.element(memory, (*at[:-1], 0))
    e.line(f"const unsigned long long {name} = {function}(&{start}) + {last * size // _UNIT_BYTES};")
    return name


@emitter("thread.warpgroup_wait", writes=(0,))
def _wait(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    sums, pending = e.buffer(op.operands[0]), op.integer("pending")
    e.line(f"{e.need('wgmma_wait', '')}<{pending}>();")
    if not pending:
        tiles = sums.type.size // (sums.type.shape[-1] * sums.type.shape[-2])
        e.line(f"{e.need('finished', '')}<{tiles * registers(sums.type)}>({sums.name});")


@emitter("thread.fence_async_proxy")
def _publish(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    e.line(f"{e.need('publish_shared')}();")


@emitter("thread.round_shared", writes=(0,))
def _round(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    tile, lanes = e.buffer(op.operands[0]), op.integer("lanes")
    function = e.need("round_tf32")
    for lane in range(lanes):
        place = e.element(tile, op.exprs("at"), lane)
        e.line(f"{place} = {function}({place});")
