"""Emitters of matrix fragments: ldmatrix or element loads, mma.sync, stores of accumulators (CUDA only)."""

from __future__ import annotations

from tilewright.codegen.dialect import HALVES
from tilewright.codegen.emit.emission import BufferRef, Emission, emitter
from tilewright.codegen.emit.fragments import ROLES, lane_elements, register_text, registers, tile_text
from tilewright.codegen.emit.warp import cuda_only
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.expr import Expr, Sym
from tilewright.ir.nodes import Op
from tilewright.ir.types import BYTES, FLOAT8, TensorType, itemsize

#: bytes of a row of an 8x8 matrix of 16-bit elements as ldmatrix takes it
_ROW_BYTES = 16
_LANE = Sym("lane")
#: shapes [m, n, k] of the instructions, by the dtypes of their factors
_SHAPES: dict[tuple[int, ...], frozenset[str]] = {
    (16, 8, 16): HALVES,
    (16, 8, 8): frozenset({"f32"}),
    (16, 8, 32): frozenset({*BYTES, *FLOAT8}),
}

Index = tuple[Expr, ...]


@emitter("thread.fill_fragment", writes=(0,))
def _fill(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    b = e.buffer(op.operands[0])
    text = e.dialect.literal(op.number("value"), b.type.dtype)
    if b.type.dtype in HALVES:
        text = f"{text} * 0x10001u"
    tiles = b.type.size // (b.type.shape[-1] * b.type.shape[-2])
    count = tiles * registers(b.type)
    if tiles == 1:
        for i in range(count):
            e.line(f"{b.name}[{i}] = {text};")
        return
    e.line("#pragma unroll")
    e.line(f"for (int i = 0; i < {count}; ++i) {b.name}[i] = {text};")


@emitter("thread.mma", writes=(2,))
def _mma(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    a, b, c = (e.buffer(v) for v in op.operands)
    dtype = a.type.dtype
    shape = op.integers("shape")
    sums = "i32" if dtype in BYTES else "f32"
    alike = b.type.dtype == dtype or {dtype, b.type.dtype} <= {*BYTES}
    if dtype not in _SHAPES.get(shape, ()) or not alike or c.type.dtype != sums:
        raise UnsupportedError(
            "thread.mma: expected [16, 8, 16] of f16 or bf16 or [16, 8, 8] of f32 (as tf32), summed in f32,"
            " or [16, 8, 32] of i8 or u8, summed in i32, or of f8e4m3 in f32,"
            f" got {list(shape)} of {dtype} and {b.type.dtype} in {c.type.dtype}",
            where=op.loc,
        )
    if op["engine"] != "mma":
        raise UnsupportedError(f"thread.mma: expected engine 'mma', got '{op['engine']}'", where=op.loc)
    kind = "_".join(dict.fromkeys((dtype, b.type.dtype)))
    if dtype == "f32":
        kind = "tf32_rounded" if op["rounded"] else "tf32"
    tiles = [tile_text(e, f, op.exprs(f"{role}_item")) for f, role in ((c, "c"), (a, "a"), (b, "b"))]
    e.line(f"{e.need(f'mma_{kind}')}({', '.join(tiles)});")


@emitter("thread.load_fragment", writes=(0,))
def _load_fragment(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    frag, memory = (e.buffer(v) for v in op.operands)
    role, transposed, count = str(op["role"]), bool(op["transposed"]), op.integer("count")
    if role not in ROLES or memory.type.rank < 2:
        raise UnsupportedError(
            f"thread.load_fragment: expected role a, b or c and a matrix, got '{role}' of {memory.type}",
            where=op.loc,
        )
    if count > 1 and role != "b":
        raise UnsupportedError(f"thread.load_fragment: expected one tile of role {role}", where=op.loc)
    if _by_rows(e, frag, memory, op):
        _ldmatrix(e, frag, memory, op)
        return
    for tile in range(count):
        at, item = op.exprs("at"), op.exprs("item")
        if tile:
            step = frag.type.shape[-1]
            at = _shifted(at, step if transposed else 0, 0 if transposed else step)
            item = (*item[:-1], item[-1] + 1)
        _load_elements(e, frag, memory, op, at, item)


def _by_rows(e: Emission, frag: BufferRef, memory: BufferRef, op: Op) -> bool:
    """Return whether ldmatrix serves: 16-byte rows in shared memory, of other than 16 bits along k only."""
    role, dtype = str(op["role"]), frag.type.dtype
    if memory.type.space != "shared" or role == "c" or dtype not in HALVES | {"f32", *BYTES, *FLOAT8}:
        return False
    if dtype not in HALVES and (op["paired"] or bool(op["transposed"]) == (role == "a")):
        return False
    row = _ROW_BYTES // itemsize(dtype)
    return memory.type.shape[-1] % row == 0 and e.alignment(memory, op.exprs("at"), row) == row


def _shifted(at: Index, row: Expr, column: Expr) -> Index:
    return (*at[:-2], at[-2] + row, at[-1] + column)


def _ldmatrix(e: Emission, frag: BufferRef, memory: BufferRef, op: Op) -> None:
    """Lane i names the start of row i % 8 of matrix i / 8; the k-th matrix goes to the k-th register."""
    role, transposed, count = str(op["role"]), bool(op["transposed"]), op.integer("count")
    half = _ROW_BYTES // itemsize(frag.type.dtype)  # elements of one row of a matrix
    low, high = _LANE % 8, _LANE // 16 * 8
    place: tuple[Expr, Expr]
    if role == "a":
        place = (low + high, _LANE // 8 % 2 * 8) if transposed else (_LANE % 16, _LANE // 16 * half)
    elif transposed:
        place = (low + high if count == 2 else low, _LANE // 8 % 2 * half)
    else:
        place = (_LANE % 16, high if count == 2 else 0)
    registers_filled = registers(frag.type) * count
    # A register pairs neighbours along k: the columns of `a`, the rows of `b`.
    turned = transposed == (role == "a")
    kind = f"{'_trans' if turned else ''}{'_f32' if frag.type.dtype == 'f32' else ''}"
    if op["rounding"]:
        kind += "_tf32"
    function = e.need(f"ldmatrix_x{registers_filled}{kind}")
    with e.known({"lane": (0, 31)}):
        source = e.element(memory, _shifted(op.exprs("at"), *place))
        e.line(f"{function}({tile_text(e, frag, op.exprs('item'))}, &{source});")


def _load_elements(e: Emission, frag: BufferRef, memory: BufferRef, op: Op, at: Index, item: Index) -> None:
    narrow, transposed = frag.type.dtype in HALVES, bool(op["transposed"])
    rounding = e.need("round_tf32") if op["rounding"] else ""
    with e.known({"lane.row": (0, 7), "lane.pair": (0, 3)}):
        for i, elements in enumerate(lane_elements(frag.type, str(op["role"]), bool(op["paired"]))):
            places = [_shifted(at, *((c, r) if transposed else (r, c))) for r, c in elements]
            texts = [e.element(memory, place) for place in places]
            target = register_text(e, frag, item, i)
            if len(texts) == 4:
                parts = (f"(unsigned int)(unsigned char){t} << {8 * i}" for i, t in enumerate(texts))
                e.line(f"{target} = {' | '.join(parts)};")
            elif narrow:
                e.line(f"{target} = (unsigned int){texts[0]} | (unsigned int){texts[1]} << 16;")
            else:
                e.line(f"{target} = {f'{rounding}({texts[0]})' if rounding else texts[0]};")


@emitter("thread.store_fragment", writes=(1,))
def _store_fragment(e: Emission, op: Op) -> None:
    """The last two entries of a mask bound row and column of each element, those before hold for all."""
    cuda_only(e, op)
    frag, memory = (e.buffer(v) for v in op.operands)
    mask: tuple[tuple[Expr, Expr, Expr], ...] = op["mask"]  # type: ignore[assignment]
    if len(mask) == 1 or memory.type.rank < 2 or not _is_accumulator(frag.type):
        raise UnsupportedError(
            "thread.store_fragment: expected an f32 or i32 [16, 8] fragment, a matrix and a mask "
            "that is empty or ends in a row and a column entry, "
            f"got {frag.type}, {memory.type} and {len(mask)} entries",
            where=op.loc,
        )
    at, transposed = op.exprs("at"), bool(op["transposed"])
    with e.known({"lane.row": (0, 7), "lane.pair": (0, 3)}):
        places = [place for (place,) in lane_elements(frag.type, "c")]
        if not mask and not transposed and e.alignment(memory, _shifted(at, *places[0]), 2) == 2:
            _store_pairs(e, frag, memory, op, places)
            return
        for i, (row, column) in enumerate(places):
            bounds = list(mask[:-2])
            if mask:
                bounds += [
                    (x + plus, low, high)
                    for (x, low, high), plus in zip(mask[-2:], (row, column), strict=True)
                ]
            condition = e.index.condition(bounds, e.ranges)
            if condition != "0":
                guard = f"if ({condition}) " if condition else ""
                target = e.element(memory, _shifted(at, *((column, row) if transposed else (row, column))))
                e.line(f"{guard}{target} = {register_text(e, frag, op.exprs('item'), i)};")


def _store_pairs(
    e: Emission, frag: BufferRef, memory: BufferRef, op: Op, places: list[tuple[Expr, Expr]]
) -> None:
    """Two neighbouring columns, which a lane holds, in one access."""
    at, item = op.exprs("at"), op.exprs("item")
    for i in range(0, len(places), 2):
        both = [register_text(e, frag, item, i + k) for k in (0, 1)]
        target = e.element(memory, _shifted(at, *places[i]))
        pair = "int2" if frag.type.dtype == "i32" else "float2"
        e.line(f"*({pair}*)&{target} = {pair}{{{both[0]}, {both[1]}}};")


def _is_accumulator(t: TensorType) -> bool:
    return t.dtype in ("f32", "i32") and t.shape[-2:] == (16, 8)
