"""Emitters of the scalar ops: arithmetic, selection, conversion, constants, lanes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.codegen.dialect import NARROW
from tilewright.codegen.emit.emission import Emission, EmittedValue, compute_dtype, emitter
from tilewright.codegen.emit.scalar_forms import FORMS, Operands, as_bool, form_of
from tilewright.codegen.emit.vector_access import WORD_BYTES, words_of
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.nodes import Op, Value
from tilewright.ir.simplify import interval
from tilewright.ir.types import FLOAT8, FLOATS, ScalarType, converted, itemsize, storage_dtype


def widened_lanes(e: Emission, v: Value, lanes: int) -> list[str]:
    """The lanes of a value in the dtype arithmetic happens in."""
    dtype = e.scalar_type(v).dtype
    texts = e.lanes_of(v, lanes)
    if dtype not in NARROW:
        return texts
    constant = e.value(v).constant
    if constant is not None:
        rounded = float(_stored(constant, dtype))
        return [e.dialect.literal(rounded, "f32")] * lanes
    return [f"{e.need(f'f32_from_{dtype}', '')}({text})" for text in texts]


def narrowed(e: Emission, text: str, dtype: str) -> str:
    """A text computed in `compute_dtype(dtype)`, converted to `dtype`."""
    return f"{e.need(f'{dtype}_from_f32', '')}({text})" if dtype in NARROW else text


def whole(e: Emission, v: Value, lanes: int) -> str:
    """A value as one native vector of `lanes`."""
    t = e.scalar_type(v)
    text = e.value(v).parts[0]
    return text if t.lanes == lanes else f"({e.dialect.reg_type(t.dtype, lanes)})({text})"


@emitter(*(f"scalar.{name}" for name in sorted({op for op, _ in FORMS})))
def _elementwise(e: Emission, op: Op) -> None:
    name = op.name.removeprefix("scalar.")
    dtype = e.scalar_type(op.operands[0]).dtype
    result = e.scalar_type(op.result)
    form = form_of(name, dtype)
    if form is None:
        raise UnsupportedError(f"{op.name} is not defined for {dtype}", where=op.loc)
    constants = tuple(e.value(v).constant for v in op.operands)
    limits = tuple(e.value(v).limits for v in op.operands)
    compute = compute_dtype(dtype)
    if result.lanes > 1 and e.dialect.native_vectors and form.native and dtype not in NARROW | {"bool"}:
        texts = tuple(whole(e, v, result.lanes) for v in op.operands)
        operands = Operands(e.dialect, e.need, compute, texts, constants, limits, result.lanes)
        e.bind(op.result, [form.text(operands)])
        return
    columns = zip(*(widened_lanes(e, v, result.lanes) for v in op.operands), strict=True)
    lanes = [form.text(Operands(e.dialect, e.need, compute, texts, constants, limits)) for texts in columns]
    e.bind_lanes(op.result, [narrowed(e, text, result.dtype) for text in lanes])


@emitter("scalar.select")
def _select(e: Emission, op: Op) -> None:
    condition, a, b = op.operands
    t = e.scalar_type(op.result)
    if t.lanes > 1 and e.dialect.native_vectors:
        texts = whole(e, a, t.lanes), whole(e, b, t.lanes)
        if e.scalar_type(condition).lanes == 1:
            e.bind(op.result, [f"{e.value(condition).parts[0]} ? {texts[0]} : {texts[1]}"])
            return
        width = {1: "char", 2: "short", 4: "int", 8: "long"}[itemsize(t.dtype)]
        mask = f"-convert_{width}{t.lanes}({e.value(condition).parts[0]})"
        e.bind(op.result, [f"{mask} ? {texts[0]} : {texts[1]}"])
        return
    columns = zip(*(e.lanes_of(v, t.lanes) for v in op.operands), strict=True)
    e.bind(op.result, [f"{c} ? {x} : {y}" for c, x, y in columns])


@emitter("scalar.cast")
def _cast(e: Emission, op: Op) -> None:
    (source,) = op.operands
    held, t = e.value(source), e.scalar_type(op.result)
    dtype = e.scalar_type(source).dtype
    if t.dtype == dtype:
        e.held[op.result] = held
    elif held.constant is not None:
        e.held[op.result] = constant(e, _known(held.constant, dtype, t.dtype), t.dtype)
    elif t.lanes > 1 and e.dialect.native_vectors and not NARROW & {dtype, t.dtype}:
        e.bind(op.result, [_native_cast(e, held.parts[0], dtype, t.dtype, t.lanes)])
    elif _fills_words(e, t) and compute_dtype(dtype) == "f32":
        each = WORD_BYTES // itemsize(t.dtype)
        function = e.need(f"{t.dtype}x{each}_from_f32", "")
        lanes = widened_lanes(e, source, t.lanes)
        words = [f"{function}({', '.join(lanes[i : i + each])})" for i in range(0, t.lanes, each)]
        e.held[op.result] = words_of(e, words, t.dtype, op.result.hint or "v")
    else:
        lanes = widened_lanes(e, source, t.lanes)
        e.bind_lanes(op.result, [_convert(e, text, dtype, t.dtype) for text in lanes])


def _fills_words(e: Emission, t: ScalarType) -> bool:
    """Return whether the lanes of a short float become whole words, in a language without vectors."""
    whole = t.lanes > 1 and t.lanes * itemsize(t.dtype) % WORD_BYTES == 0
    return whole and not e.dialect.native_vectors and t.dtype in NARROW


def _known(value: float | int | bool, dtype: str, to: str) -> float | int | bool:
    """A constant of a dtype, converted to another."""
    out = _stored(_stored(value, dtype), to)
    return float(out) if to in FLOAT8 else out.item()


def _stored(value: object, dtype: str) -> np.ndarray:
    """A number as a dtype holds it, whatever the evaluation precision."""
    x = np.asarray(value)
    return converted(x, dtype) if dtype in FLOAT8 else x.astype(storage_dtype(dtype))


def _native_cast(e: Emission, text: str, dtype: str, to: str, lanes: int) -> str:
    if to == "bool":
        return as_bool(f"{text} != ({e.dialect.reg_type(dtype)})0", lanes)
    return f"convert_{e.dialect.reg_type(to, lanes)}({text})"


def _convert(e: Emission, text: str, dtype: str, to: str) -> str:
    if to == "bool":
        return f"{text} != 0"
    if to in NARROW:
        return narrowed(e, text if compute_dtype(dtype) == "f32" else f"(float){text}", to)
    return f"({e.dialect.reg_type(to)}){text}"


def constant(e: Emission, value: float | int | bool, dtype: str) -> EmittedValue:
    """A constant as a literal."""
    return EmittedValue((e.dialect.literal(value, dtype),), value)


@emitter("scalar.const")
def _const(e: Emission, op: Op) -> None:
    e.held[op.result] = constant(e, op.number("value"), str(op["dtype"]))


@emitter("scalar.index")
def _index(e: Emission, op: Op) -> None:
    dtype = e.scalar_type(op.result).dtype
    text = e.index.render(op.expr("at"), e.ranges)
    if compute_dtype(dtype) in FLOATS:
        e.bind(
            op.result,
            [narrowed(e, f"({e.dialect.reg_type(compute_dtype(dtype))})({text})", dtype)],
            hint="at",
        )
    elif dtype == "bool":
        e.bind(op.result, [f"({text}) != 0"], hint="at")
    else:
        e.bind(op.result, [text], hint="at")
        e.held[op.result] = replace(e.held[op.result], limits=interval(op.expr("at"), e.ranges))


@emitter("scalar.broadcast")
def _broadcast(e: Emission, op: Op) -> None:
    lanes = e.scalar_type(op.result).lanes
    if e.dialect.native_vectors:
        e.bind(op.result, [whole(e, op.operands[0], lanes)])
    else:
        e.held[op.result] = EmittedValue(tuple(e.lanes_of(op.operands[0], lanes)))


@emitter("scalar.extract")
def _extract(e: Emission, op: Op) -> None:
    lanes = e.scalar_type(op.operands[0]).lanes
    lane = op.integer("lane")
    if not 0 <= lane < lanes:
        raise UnsupportedError(f"scalar.extract: expected a lane below {lanes}, got {lane}", where=op.loc)
    e.held[op.result] = EmittedValue((e.lanes_of(op.operands[0], lanes)[lane],))


@emitter("scalar.yield")
def _yield(e: Emission, op: Op) -> None:
    raise UnsupportedError(
        "scalar.yield ends the body of a tensor op, not of a thread-level function", where=op.loc
    )
