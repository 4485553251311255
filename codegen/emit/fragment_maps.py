"""Emitters of ops on elements and rows of accumulator fragments (CUDA only)."""

from __future__ import annotations

from math import e as euler
from math import log2, prod

import numpy as np

from tilewright.codegen.emit.emission import BufferRef, Emission, emitter
from tilewright.codegen.emit.fragments import register_text
from tilewright.codegen.emit.warp import cuda_only
from tilewright.ir.nodes import Op

#: registers of a lane in a 16 x 8 tile: two rows of two columns
_REGISTERS = 4
#: magnitude of a largest score up to which the rounding of its product with a scale changes the weights of a
#: row by a factor within 1e-4 of 1; beyond it by any factor
_FOLDED_UP_TO = "1024.0f"


def _element(e: Emission, op: Op, frag: BufferRef) -> str:
    half, pair = op.exprs("at")
    return register_text(e, frag, op.exprs("item"), half * 2 + pair)


@emitter("thread.get_fragment")
def _get(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    e.bind(op.result, [_element(e, op, e.buffer(op.operands[0]))], hint="element")


@emitter("thread.set_fragment", writes=(1,))
def _set(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    value, frag = op.operands
    e.line(f"{_element(e, op, e.buffer(frag))} = {e.value(value).parts[0]};")


@emitter("thread.power")
def _power(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    e.bind(op.result, [f"{e.need('power')}({e.value(op.operands[0]).parts[0]})"], hint="power")


def _loops(e: Emission, op: Op) -> tuple[int, int, BufferRef]:
    """Tiles of rows and columns of the fragment an op works on as a whole."""
    cuda_only(e, op)
    frag = e.buffer(op.operands[0])
    *outer, columns = frag.type.shape[:-2]
    return prod(outer), columns, frag


def _row(e: Emission, rows: BufferRef, i: int, half: int) -> str:
    """The lvalue of what belongs to a row: of tile `i` where there are several."""
    return e.element(rows, (i, half) if len(rows.type.shape) > 1 else (half,))


@emitter("thread.max_rows", writes=(1,))
def _max_rows(e: Emission, op: Op) -> None:
    rows, columns, frag = _loops(e, op)
    largest, larger = e.buffer(op.operands[1]), e.need("larger")
    for i in range(rows):
        for half in (0, 1):
            name = _row(e, largest, i, half)
            with e.braces(""):
                top = e.name("top")
                e.line(f"float {top} = {name};")
                e.line("#pragma unroll")
                first = f"{frag.name}[{_REGISTERS * columns * i + 2 * half} + {_REGISTERS} * j"
                both = f"{larger}({first}], {first} + 1])"
                e.line(f"for (int j = 0; j < {columns}; ++j) {top} = {larger}({top}, {both});")
                for lanes in (1, 2):
                    e.line(f"{top} = {larger}({top}, __shfl_xor_sync(0xffffffffu, {top}, {lanes}, 32));")
                e.line(f"{name} = {top};")


@emitter("thread.exp_rows", writes=(0, 2))
def _exp_rows(e: Emission, op: Op) -> None:
    rows, columns, frag = _loops(e, op)
    largest, sums = (e.buffer(v) for v in op.operands[1:])
    power, scale = e.need("power"), _in_powers_of_two(e, op)
    apart, folded = f"{power}(({{0}} - {{1}}) * {scale})", f"{power}(fmaf({{0}}, {scale}, -{{1}}))"
    for i in range(rows):
        for half in (0, 1):
            name, total = _row(e, largest, i, half), _row(e, sums, i, half)
            first = f"{frag.name}[{_REGISTERS * columns * i + 2 * half} + {_REGISTERS} * j"
            elements, top = (f"{first}]", f"{first} + 1]"), e.name("top")
            finite = f"{name} == __int_as_float(0xff800000) ? 0.0f : {name}"
            ways = [("else" if op["folded"] else "", finite, apart)]
            if op["folded"]:
                # Of a large product its rounding is large: of rows that a mask of -1e30 hides it overflows.
                ways.insert(0, (f"if (fabsf({name}) <= {_FOLDED_UP_TO})", f"{name} * {scale}", folded))
            for condition, subtracted, form in ways:
                with e.braces(condition):
                    e.line(f"const float {top} = {subtracted};")
                    e.line("#pragma unroll")
                    with e.braces(f"for (int j = 0; j < {columns}; ++j)"):
                        for element in elements:
                            e.line(f"{element} = {form.format(element, top)};")
                        e.line(f"{total} += {elements[0]} + {elements[1]};")


def _in_powers_of_two(e: Emission, op: Op) -> str:
    """The op's scale of powers of e as a factor of powers of two."""
    return e.dialect.literal(op.number("scale") * log2(euler), "f32")


@emitter("thread.settle")
def _settle(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    sums = e.buffer(op.operands[0])
    terms = [e.element(sums, at) for at in np.ndindex(*sums.type.shape)]
    e.line(f"{e.need('settled')}({' + '.join(terms)});")


@emitter("thread.rescale_factors", writes=(0, 1))
def _rescale_factors(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    before, largest = (e.buffer(v) for v in op.operands)
    function, scale = e.need("renewed"), _in_powers_of_two(e, op)
    for i in range(prod(before.type.shape[:-1])):
        for half in (0, 1):
            one, other = (_row(e, b, i, half) for b in (before, largest))
            e.line(f"{one} = {function}({one}, &{other}, {scale});")


@emitter("thread.scale_rows", writes=(0,))
def _scale_rows(e: Emission, op: Op) -> None:
    rows, columns, frag = _loops(e, op)
    factors = e.buffer(op.operands[1])
    for i in range(rows):
        both = [_row(e, factors, i, half) for half in (0, 1)]
        with e.braces(f"if ({both[0]} != 1.0f || {both[1]} != 1.0f)" if op["skip_if_one"] else ""):
            e.line("#pragma unroll")
            with e.braces(f"for (int j = 0; j < {_REGISTERS * columns}; ++j)"):
                e.line(f"{frag.name}[{_REGISTERS * columns * i} + j] *= j % 4 < 2 ? {' : '.join(both)};")


@emitter("thread.pack_fragment", writes=(1,))
def _pack(e: Emission, op: Op) -> None:
    cuda_only(e, op)
    sums, factor = (e.buffer(v) for v in op.operands)
    item, to = op.exprs("item"), op.exprs("to")
    if factor.type.dtype == "f32":
        # columns 2t and 2t + 1 of a lane become t and t + 4: no element moves to another lane
        rounded = e.need("round_tf32")
        for i, source in enumerate((0, 2, 1, 3)):
            element = register_text(e, sums, item, source)
            e.line(f"{register_text(e, factor, to, i)} = {rounded}({element});")
        return
    pair = e.need(f"pair_{factor.type.dtype}")
    for i in range(_REGISTERS):
        low, high = (register_text(e, sums, item, 2 * i + k) for k in (0, 1))
        e.line(f"{register_text(e, factor, to, i)} = {pair}({low}, {high});")
