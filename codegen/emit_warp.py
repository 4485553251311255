"""Emitters of warp-wide ops: shuffles and matrix fragments (CUDA only)."""

from __future__ import annotations

from tilewright.codegen.dialect import NARROW
from tilewright.codegen.emission import BufferRef, Emission
from tilewright.codegen.emitters import emitter
from tilewright.codegen.fragments import ROLES, lane_elements, registers
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.expr import Expr, Sym
from tilewright.ir.nodes import Op
from tilewright.ir.types import TensorType, itemsize

_SHUFFLES = {
    "down": "__shfl_down_sync",
    "up": "__shfl_up_sync",
    "xor": "__shfl_xor_sync",
    "index": "__shfl_sync",
}
#: elements of a 16-byte row of an 8x8 matrix as ldmatrix takes it
_ROW_ELEMENTS = 8
_LANE = Sym("lane")


def _cuda_only(e: Emission, op: Op) -> None:
    if e.dialect.native_vectors:
        raise UnsupportedError(f"{op.name} needs CUDA; {e.dialect.name} has no warps", where=op.loc)
    if e.block_size % 32:
        raise UnsupportedError(
            f"{op.name}: expected a block of whole warps of 32 threads, got {e.block_size}", where=op.loc
        )


@emitter("thread.shuffle")
def _shuffle(e: Emission, op: Op) -> None:
    _cuda_only(e, op)
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


@emitter("thread.fill_fragment", writes=(0,))
def _fill(e: Emission, op: Op) -> None:
    _cuda_only(e, op)
    b = e.buffer(op.operands[0])
    text = e.dialect.literal(op["value"], b.type.dtype)  # type: ignore[arg-type]
    if b.type.dtype in NARROW:
        text = f"{text} * 0x10001u"
    for i in range(registers(b.type)):
        e.line(f"{b.name}[{i}] = {text};")


@emitter("thread.mma", writes=(2,))
def _mma(e: Emission, op: Op) -> None:
    _cuda_only(e, op)
    a, b, c = (e.buffer(v) for v in op.operands)
    dtype = a.type.dtype
    known: dict[tuple[int, ...], frozenset[str]] = {(16, 8, 16): NARROW, (16, 8, 8): frozenset({"f32"})}
    shape: tuple[int, ...] = op["shape"]  # type: ignore[assignment]
    if dtype not in known.get(shape, ()) or b.type.dtype != dtype or c.type.dtype != "f32":
        raise UnsupportedError(
            "thread.mma: expected [16, 8, 16] of f16 or bf16 or [16, 8, 8] of f32 (as tf32), summed in f32,"
            f" got {list(shape)} of {dtype} and {b.type.dtype} in {c.type.dtype}",
            where=op.loc,
        )
    if op["engine"] != "mma":
        raise UnsupportedError(f"thread.mma: expected engine 'mma', got '{op['engine']}'", where=op.loc)
    function = e.need("mma_tf32" if dtype == "f32" else f"mma_{dtype}")
    e.line(f"{function}({c.name}, {a.name}, {b.name});")


@emitter("thread.load_fragment", writes=(0,))
def _load_fragment(e: Emission, op: Op) -> None:
    _cuda_only(e, op)
    frag, memory = (e.buffer(v) for v in op.operands)
    role, transposed = str(op["role"]), bool(op["transposed"])
    at: tuple[Expr, ...] = op["at"]  # type: ignore[assignment]
    if role not in ROLES or memory.type.rank < 2:
        raise UnsupportedError(
            f"thread.load_fragment: expected role a, b or c and a matrix, got '{role}' of {memory.type}",
            where=op.loc,
        )
    if frag.type.dtype in NARROW and memory.type.space == "shared" and _rows_are_aligned(e, memory, at):
        _ldmatrix(e, frag, memory, at, role, transposed)
    else:
        _load_elements(e, frag, memory, at, role, transposed)


def _rows_are_aligned(e: Emission, memory: BufferRef, at: tuple[Expr, ...]) -> bool:
    pitch = memory.type.shape[-1]
    return pitch % _ROW_ELEMENTS == 0 and e.alignment(memory, at, _ROW_ELEMENTS) == _ROW_ELEMENTS


def _shifted(at: tuple[Expr, ...], row: Expr, column: Expr) -> tuple[Expr, ...]:
    return (*at[:-2], at[-2] + row, at[-1] + column)


def _ldmatrix(
    e: Emission, frag: BufferRef, memory: BufferRef, at: tuple[Expr, ...], role: str, transposed: bool
) -> None:
    """Lane i names the start of row i % 8 of matrix i / 8; the k-th matrix goes to the k-th register."""
    if role == "a":
        high, low = _LANE // 16 * 8, _LANE % 16
        place = (_LANE % 8 + _LANE // 16 * 8, _LANE // 8 % 2 * 8) if transposed else (low, high)
    else:
        place = (_LANE % 8, _LANE // 8 % 2 * 8) if transposed else (_LANE % 16, 0)
    count = registers(frag.type)
    # A register pairs neighbours along k: the columns of `a`, the rows of `b`.
    turned = transposed == (role == "a")
    function = e.need(f"ldmatrix_x{count}{'_trans' if turned else ''}")
    with e.known({"lane": (0, 31)}):
        e.line(f"{function}({frag.name}, &{e.element(memory, _shifted(at, *place))});")


def _load_elements(
    e: Emission, frag: BufferRef, memory: BufferRef, at: tuple[Expr, ...], role: str, transposed: bool
) -> None:
    narrow = frag.type.dtype in NARROW
    with e.known({"lane.row": (0, 7), "lane.pair": (0, 3)}):
        for i, elements in enumerate(lane_elements(frag.type, role)):
            places = [_shifted(at, *((c, r) if transposed else (r, c))) for r, c in elements]
            texts = [e.element(memory, place) for place in places]
            if narrow:
                e.line(f"{frag.name}[{i}] = (unsigned int){texts[0]} | (unsigned int){texts[1]} << 16;")
            else:
                e.line(f"{frag.name}[{i}] = {texts[0]};")


@emitter("thread.store_fragment", writes=(1,))
def _store_fragment(e: Emission, op: Op) -> None:
    """The last two entries of a mask bound row and column of each element, those before hold for all."""
    _cuda_only(e, op)
    frag, memory = (e.buffer(v) for v in op.operands)
    at: tuple[Expr, ...] = op["at"]  # type: ignore[assignment]
    mask: tuple[tuple[Expr, Expr, Expr], ...] = op["mask"]  # type: ignore[assignment]
    if len(mask) == 1 or memory.type.rank < 2 or not _is_accumulator(frag.type):
        raise UnsupportedError(
            "thread.store_fragment: expected an f32 [16, 8] fragment, a matrix and a mask that is empty or "
            f"ends in a row and a column entry, got {frag.type}, {memory.type} and {len(mask)} entries",
            where=op.loc,
        )
    with e.known({"lane.row": (0, 7), "lane.pair": (0, 3)}):
        for i, ((row, column),) in enumerate(lane_elements(frag.type, "c")):
            bounds = list(mask[:-2])
            if mask:
                bounds += [
                    (x + plus, low, high)
                    for (x, low, high), plus in zip(mask[-2:], (row, column), strict=True)
                ]
            condition = e.index.condition(bounds, e.ranges)
            if condition != "0":
                guard = f"if ({condition}) " if condition else ""
                e.line(f"{guard}{e.element(memory, _shifted(at, row, column))} = {frag.name}[{i}];")


def _is_accumulator(t: TensorType) -> bool:
    return t.dtype == "f32" and t.shape == (16, 8)
