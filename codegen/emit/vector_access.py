"""Short vectors in memory: CUDA's aligned vector words taken apart lane by lane, or OpenCL's native ones."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.codegen.emit.emission import BufferRef, Emission, EmittedValue
from tilewright.ir.expr import Expr
from tilewright.ir.hardware_facts import VECTOR_BYTES
from tilewright.ir.types import itemsize

_LETTERS = "xyzw"
WORD_BYTES = 4
#: CUDA vector types of elements of 4 and 8 bytes, by lanes
_NATIVE = {
    "f32": {2: "float2", 4: "float4"},
    "i32": {2: "int2", 4: "int4"},
    "u32": {2: "uint2", 4: "uint4"},
    "f64": {2: "double2"},
    "i64": {2: "longlong2"},
    "u64": {2: "ulonglong2"},
}
_PACKED = {2: "unsigned short", 4: "unsigned int", 8: "uint2", 16: "uint4"}


def chunk_lanes(e: Emission, b: BufferRef, at: Sequence[Expr], lanes: int) -> int:
    """Lanes one access may move: as many as alignment proves and 16 bytes hold."""
    return e.alignment(b, at, min(lanes, VECTOR_BYTES // itemsize(b.type.dtype)))


def chunk_type(dtype: str, lanes: int) -> str:
    """The CUDA type that moves `lanes` elements at once."""
    return _NATIVE[dtype][lanes] if dtype in _NATIVE else _PACKED[lanes * itemsize(dtype)]


def lane_texts(e: Emission, chunk: str, dtype: str, lanes: int) -> list[str]:
    """The elements inside a chunk variable."""
    if dtype in _NATIVE:
        return [f"{chunk}.{_LETTERS[i]}" for i in range(lanes)]
    size = itemsize(dtype)
    out = []
    for i in range(lanes):
        word, bit = divmod(i * size, WORD_BYTES)
        source = f"{chunk}.{_LETTERS[word]}" if lanes * size > WORD_BYTES else chunk
        shifted = f"{source} >> {8 * bit}" if bit else source
        element = f"(({e.dialect.mem_type(dtype)})({shifted}))"
        out.append(f"({element} != 0)" if dtype == "bool" else element)
    return out


def packed(dtype: str, texts: Sequence[str]) -> str:
    """A chunk made of single elements."""
    kind = chunk_type(dtype, len(texts))
    if dtype in _NATIVE:
        return f"{kind}{{{', '.join(texts)}}}"
    size = itemsize(dtype)
    per_word = max(1, min(len(texts), WORD_BYTES // size))
    unsigned = "unsigned char" if size == 1 else "unsigned short"
    words = []
    for start in range(0, len(texts), per_word):
        parts = [
            f"(unsigned int)({unsigned}){text}" + (f" << {8 * size * i}" if i else "")
            for i, text in enumerate(texts[start : start + per_word])
        ]
        words.append(" | ".join(parts))
    return f"{kind}{{{', '.join(words)}}}" if len(words) > 1 else f"({kind})({words[0]})"


def words_of(e: Emission, words: Sequence[str], dtype: str, hint: str) -> EmittedValue:
    """Lanes of a short dtype declared from texts of 32 bits, which hold several each, as memory has them."""
    each = WORD_BYTES // itemsize(dtype)
    parts: list[str] = []
    chunks: list[tuple[str, str]] = []
    step = min(len(words), VECTOR_BYTES // WORD_BYTES)
    for start in range(0, len(words), step):
        texts = words[start : start + step]
        kind, name = chunk_type(dtype, each * step), e.name(hint)
        whole = texts[0] if step == 1 else f"{kind}{{{', '.join(texts)}}}"
        e.line(f"const {kind} {name} = {whole};")
        parts += lane_texts(e, name, dtype, each * step)
        chunks.append((kind, name))
    return EmittedValue(tuple(parts), chunks=tuple(chunks))


_ADDRESS_SPACE = {"global": "__global", "shared": "__local", "reg": "__private"}


def native_pointer(e: Emission, b: BufferRef, lanes: int) -> str:
    """Pointer type through which OpenCL moves `lanes` elements with the alignment of one.

    A cast instead of vload and vstore: PoCL calls those as functions and spills every vector register.
    """
    return f"{_ADDRESS_SPACE[b.type.space]} {e.need(f'unaligned{lanes}', b.type.dtype)}*"


def load_chunks(
    e: Emission, b: BufferRef, at: Sequence[Expr], lanes: int, hint: str, condition: str | None, other: str
) -> EmittedValue:
    """Lanes read through aligned words of provable width; `other` (a literal) in all of them where masked."""
    step = chunk_lanes(e, b, at, lanes)
    elements = [e.element(b, at, start) for start in range(0, lanes, step)]
    return _read(e, b.type.dtype, elements, step, hint, condition, other)


def gather_chunks(
    e: Emission, b: BufferRef, offset: str, lanes: int, hint: str, condition: str | None, other: str
) -> EmittedValue:
    """Lanes from an offset (a text), a multiple of their number, as `load_chunks` reads them."""
    step = min(lanes, VECTOR_BYTES // itemsize(b.type.dtype))
    elements = [f"{b.name}[{offset} + {start}]" for start in range(0, lanes, step)]
    return _read(e, b.type.dtype, elements, step, hint, condition, other)


def _read(
    e: Emission, dtype: str, elements: Sequence[str], step: int, hint: str, condition: str | None, other: str
) -> EmittedValue:
    """Words of `step` lanes each from the elements that they begin at."""
    parts: list[str] = []
    chunks: list[tuple[str, str]] = []
    for element in elements:
        name = e.name(hint)
        if step == 1:
            kind = e.dialect.reg_type(dtype)
            text = f"{element} != 0" if dtype == "bool" else element
            fallback = other
        else:
            kind = chunk_type(dtype, step)
            text, fallback = f"*(const {kind}*)&{element}", packed(dtype, [other] * step)
        e.line(f"const {kind} {name} = {f'{condition} ? {text} : {fallback}' if condition else text};")
        parts += [name] if step == 1 else lane_texts(e, name, dtype, step)
        chunks.append((kind, name))
    return EmittedValue(tuple(parts), chunks=tuple(chunks) if step > 1 else ())


def store_chunks(
    e: Emission, b: BufferRef, at: Sequence[Expr], held: EmittedValue, lanes: Sequence[str]
) -> None:
    """Lanes written through aligned words of provable width."""
    step = chunk_lanes(e, b, at, len(lanes))
    dtype = b.type.dtype
    for index, start in enumerate(range(0, len(lanes), step)):
        element = e.element(b, at, start)
        if step == 1:
            e.line(f"{element} = {lanes[start]};")
            continue
        kind = chunk_type(dtype, step)
        whole = len(held.chunks) * step == len(lanes) and held.chunks[0][0] == kind
        text = held.chunks[index][1] if whole else packed(dtype, lanes[start : start + step])
        e.line(f"*({kind}*)&{element} = {text};")
