"""Pass float8-products: products of numbers that were quantised to 8-bit floats multiply these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.costmodel import GpuHardware, load_hardware
from tilewright.ir.nodes import Attr, Level, Module, Op, Value
from tilewright.ir.types import FLOAT8, FLOATS
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module

#: ops that move elements: what was quantised is moved as the numbers that it stands for
_MOVES = ("graph.reshape", "graph.transpose")
_PRODUCTS = frozenset({"graph.dense", "graph.matmul", "graph.batch_matmul", "graph.conv2d"})


@register_pass(Level.GRAPH, requires={"shapes-known"}, establishes={"shapes-known"})
def float8_products(module: Module, ctx: PassContext, *, always: bool = False) -> Module:
    """Multiply the 8-bit floats of dequantised factors, add in float32, and scale the sums.

    rewrite:  graph.dense(sx * float(%x), sw * float(%w))
        -->   (sx sw) * graph.dense(%x, %w, out_dtype = "f32")

    Both are the same real number where scales do not vary along what is summed over: one number, or one per
    row of the data or per output channel. Scales may be computed. 8-bit floats and their products are exact
    in float32, but the tensor cores that multiply them round sums to about 14 bits (docs/adr/0079), so that a
    precision must permit this pass: tf32, fp16 and bf16 do. Weights that are constants must still be so:
    the pass runs before constants are folded. Convolutions in groups stay as they are. always: also on
    devices whose tensor cores multiply no 8-bit floats.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    able = isinstance(hardware, GpuHardware) and hardware.tensor_fma_float8_per_sm_per_clk > 0
    if not always and not able:
        return module
    return rewrite_module(module, [Pattern("float8", _PRODUCTS, _of_float8)], level="graph")


@dataclass(frozen=True)
class _Dequantised:
    """scale * narrow, moved as `moves` say, the last one first."""

    narrow: Value
    scale: Value
    moves: tuple[Op, ...]


def _of_float8(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
    kind = op.result.tensor.dtype
    if kind not in FLOATS or kind == "f64" or op.get("groups", 1) != 1:
        return None
    first, second = (_dequantised(v, rewriter) for v in op.operands)
    if first is None or second is None or first.narrow.tensor.dtype != second.narrow.tensor.dtype:
        return None
    shapes = [_scale_shape(op, operand, factor) for operand, factor in enumerate((first, second))]
    if shapes[0] is None or shapes[1] is None:
        return None
    factors = (_moved(first, rewriter), _moved(second, rewriter))
    attrs: Mapping[str, Attr] = {**dict(op.attrs), "out_dtype": "f32"}
    (sums,) = rewriter.emit(op.name, factors, attrs)
    left, right = _shaped(first.scale, shapes[0], rewriter), _shaped(second.scale, shapes[1], rewriter)
    if not shapes[0] or not shapes[1]:
        out = rewriter.value("graph.multiply", sums, rewriter.value("graph.multiply", left, right))
    else:
        out = rewriter.value("graph.multiply", rewriter.value("graph.multiply", sums, left), right)
    return [out if kind == "f32" else rewriter.value("graph.cast", out, dtype=kind)]


def _dequantised(value: Value, rewriter: Rewriter) -> _Dequantised | None:
    """A value as 8-bit floats that were scaled; None for other values."""
    moves: list[Op] = []
    while (op := rewriter.producer(value)) is not None:
        rounds = op.name == "graph.cast" and op.operands[0].tensor.dtype == "f32"
        if op.name in _MOVES:
            moves.append(op)
        elif not (rounds and value.tensor.dtype in FLOATS):
            break
        value = op.operands[0]
    if op is None or op.name != "graph.multiply" or value.tensor.dtype != "f32":
        return None
    for inner, scale in (op.operands, op.operands[::-1]):
        cast = rewriter.producer(inner)
        if cast is None or cast.name != "graph.cast" or inner.tensor != value.tensor:
            continue
        if cast.operands[0].tensor.dtype in FLOAT8:
            return _Dequantised(cast.operands[0], scale, tuple(moves))
    return None


def _scale_shape(op: Op, operand: int, factor: _Dequantised) -> tuple[int, ...] | None:
    """The shape in which a factor's scale broadcasts to the result; None where it varies along the sum."""
    scale = factor.scale
    if scale.tensor.size == 1:
        return ()
    rank, shape = op.operands[operand].tensor.rank, scale.tensor.shape
    shape = (1,) * (rank - len(shape)) + shape
    if factor.moves:
        return None
    if op.name == "graph.conv2d":
        layout = str(op["kernel_layout"] if operand else op["data_layout"])
        kept = layout.index("O" if operand else "N")
        behind = op.result.tensor.rank - 1 - str(op["data_layout"]).index("C" if operand else "N")
        one = all(n == 1 for d, n in enumerate(shape) if d != kept)
        return (scale.tensor.size, *(1,) * behind) if one else None
    if op.name == "graph.dense":
        wanted = shape if operand == 0 else shape[:1]
        return wanted if shape[-1] == 1 else None
    turned = bool(op["transpose_b" if operand else "transpose_a"])
    summed = rank - 2 if (operand == 1) != turned else rank - 1
    if shape[summed] != 1:
        return None
    return (*shape[:-2], *shape[-2:][::-1]) if turned else shape


def _shaped(scale: Value, shape: tuple[int, ...], rewriter: Rewriter) -> Value:
    if scale.tensor.shape == shape:
        return scale
    return rewriter.value("graph.reshape", scale, newshape=shape)


def _moved(factor: _Dequantised, rewriter: Rewriter) -> Value:
    """The 8-bit floats, moved as the numbers were."""
    x = factor.narrow
    for move in reversed(factor.moves):
        (x,) = rewriter.emit(move.name, (x,), dict(move.attrs))
    return x
