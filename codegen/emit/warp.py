"""Emitters of shuffles between the lanes of a warp, and of ops of a warpgroup (CUDA only)."""

from __future__ import annotations

from tilewright.codegen.emit.emission import BufferRef, Emission, emitter
from tilewright.codegen.emit.fragments import registers, tile_text
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.expr import Expr
from tilewright.ir.hardware_facts import MMA_K_BYTES
from tilewright.ir.nodes import Op
from tilewright.ir.thread.warpgroup_ops import GROUP_M, TURNED, TURNED_STEP, TURNED_WORDS, depth_of
from tilewright.ir.types import TensorType, itemsize

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


@emitter("thread.warp_barrier")
def _warp_barrier(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    e.line("__syncwarp();")


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
    a_turned, b_turned = (bool(op[key]) for key in TURNED)
    depth = MMA_K_BYTES // itemsize(b.type.dtype)
    kind = "_held" if held else ""
    kind += "".join((*["_"][: a_turned or b_turned], *"a"[:a_turned], *"b"[:b_turned]))
    width = columns * c.type.shape[3]
    kind = "_".join(dict.fromkeys((a.type.dtype, b.type.dtype))) + kind
    function = e.need(f"wgmma_{kind}_{width}")
    first_function = e.need(f"wgmma_{kind}_fresh_{width}") if op["fresh"] else function
    e.line("{")
    right = _tile(e, "right", b, op.exprs("b_at"), b_turned)
    left = "" if held else _tile(e, "left", a, op.exprs("a_at"), a_turned)
    if op["opens"]:
        e.line(f"{e.need('wgmma_begin')}();")
    for step in range(op.integer("steps") or (1 if held else depth_of(b.type, b_turned) // depth)):
        for i in range(rows):
            if held:
                *outer, number = op.exprs("a_at")
                first = tile_text(e, a, (*outer, number + step, i))
            else:
                first = f"{left} + {_rows_on(a.type, i * GROUP_M, a_turned) + _along(a.type, step, a_turned)}"
            second = f"{right} + {_along(b.type, step, b_turned)}"
            e.line(f"{function if step else first_function}({tile_text(e, c, (i, 0))}, {first}, {second});")
    if op["closes"]:
        e.line(f"{e.need('wgmma_commit')}();")
    e.line("}")


def _along(t: TensorType, step: int, turned: bool) -> int:
    """From the start of a tile to a step along the reduced dimension, in units of descriptors."""
    nbytes = step * MMA_K_BYTES
    return (nbytes * t.shape[-1] if turned else nbytes) // _UNIT_BYTES


def _rows_on(t: TensorType, rows: int, turned: bool) -> int:
    """From the start of a tile to a later row (a column of panels), in units of descriptors."""
    nbytes = rows * itemsize(t.dtype)
    return nbytes * (t.shape[-2] if turned else t.shape[-1]) // _UNIT_BYTES


def _tile(e: Emission, name: str, memory: BufferRef, at: tuple[Expr, ...], turned: bool) -> str:
    """The descriptor of a tile from an index on; where rows start, nothing is permuted."""
    size = itemsize(memory.type.dtype)
    row, last = memory.type.shape[-1] * size, at[-1]
    assert isinstance(last, int)
    start = e.element(memory, (*at[:-1], 0))
    if turned:
        call = f"{e.need(f'panels_{row}')}<{memory.type.shape[-2] * row}>(&{start})"
    else:
        call = f"{e.need(f'tile_{row}')}(&{start})"
    e.line(f"const unsigned long long {name} = {call} + {last * size // _UNIT_BYTES};")
    return name


@emitter("thread.warpgroup_wait", writes=(0,))
def _wait(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    sums, pending = e.buffer(op.operands[0]), op.integer("pending")
    e.line(f"{e.need('wgmma_wait', '')}<{pending}>();")
    if not pending or op["done"]:
        tiles = sums.type.size // (sums.type.shape[-1] * sums.type.shape[-2])
        e.line(f"{e.need('finished', '')}<{tiles * registers(sums.type)}>({sums.name});")


@emitter("thread.fence_async_proxy")
def _publish(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    e.line(f"{e.need('publish_shared')}();")


@emitter("thread.turn_shared", writes=(1,))
def _turn(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    tile, rows = (e.buffer(v) for v in op.operands)
    src, dst = op.exprs("src"), op.exprs("dst")
    if any(e.alignment(b, at, TURNED_WORDS) < TURNED_WORDS for b, at in ((tile, src), (rows, dst))):
        raise UnsupportedError("thread.turn_shared: expected aligned vectors", where=op.loc)
    places = [
        f"&{e.element(b, (*at[:-2], at[-2] + i * step, at[-1]))}"
        for b, at, step in ((tile, src, TURNED_STEP), (rows, dst, 1))
        for i in range(TURNED_WORDS)
    ]
    e.line(f"{e.need('turn_words')}({', '.join(places)});")


@emitter("thread.round_shared", writes=(0,))
def _round(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    tile, lanes = e.buffer(op.operands[0]), op.integer("lanes")
    function = e.need("round_tf32")
    for lane in range(lanes):
        place = e.element(tile, op.exprs("at"), lane)
        e.line(f"{place} = {function}({place});")
