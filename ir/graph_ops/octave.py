"""Octave convolution: feature maps in a high frequency and, at half the resolution, a low one.

After Chen et al., Drop an Octave, 2019: high to low passes through a 2 x 2 mean, low to high is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tilewright.ir.builder import Builder
from tilewright.ir.division import undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass
from tilewright.ir.graph_ops.layouts import check_layout
from tilewright.ir.graph_ops.operands import alike, dtype_of, require, require_rank
from tilewright.ir.nodes import Op, Value
from tilewright.ir.opdef import AttrDef, Attrs, define, facts_of, op_def
from tilewright.ir.types import TensorType, Type

#: (op name, operands, attributes) -> results; the emit of a Builder or a Rewriter
Emit = Callable[..., tuple[Value, ...]]


def octave_parts(emit: Emit, operands: Sequence[Value], attrs: Attrs) -> tuple[Value, Value]:
    """The convolution as graph ops: four convolutions, a mean, two repetitions and two additions.

    y_high = conv(high, w_hh) + repeat(conv(low, w_lh)),  y_low = conv(low, w_ll) + conv(mean(high), w_hl)
    """
    high, low, w_hh, w_hl, w_lh, w_ll = operands
    layout = str(attrs["data_layout"])
    rows, columns = layout.index("H"), layout.index("W")

    def value(name: str, *inputs: Value, **more: object) -> Value:
        (out,) = emit(f"graph.{name}", inputs, more)
        return out

    def conv(x: Value, w: Value) -> Value:
        return value("conv2d", x, w, **dict(attrs))

    raised = conv(low, w_lh)
    for axis in (rows, columns):
        raised = value("repeat", raised, repeats=2, axis=axis)
    mean = value("avg_pool2d", high, pool_size=(2, 2), strides=(2, 2), layout=layout)
    y_high = value("add", conv(high, w_hh), raised)
    y_low = value("add", conv(low, w_ll), conv(mean, w_hl))
    return y_high, y_low


def _infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    high, low, *weights = alike(types)
    check_layout(attrs["data_layout"], ("NCHW", "NHWC"), "data_layout")
    for t in (high, low, *weights):
        require_rank(t, 4)
    axes = [str(attrs["data_layout"]).index(d) for d in "HW"]
    halves = all(high.shape[a] == 2 * low.shape[a] for a in axes)
    require(halves, f"expected low-frequency maps of half the extents of {high}, got {low}")
    b = Builder()
    results = octave_parts(b.emit, [Value(t) for t in (high, low, *weights)], attrs)
    return [r.type for r in results]


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    b = Builder()
    operands = [Value(TensorType(dtype_of(x), x.shape)) for x in inputs]
    results = octave_parts(b.emit, operands, attrs)
    env = dict(zip(operands, inputs, strict=True))
    for op in b.ops:
        evaluate = op_def(op.name).evaluate
        assert evaluate is not None
        env.update(zip(op.results, evaluate([env[v] for v in op.operands], op.attributes), strict=True))
    return [env[r] for r in results]


def _flops(op: Op) -> int:
    """Those of its parts."""
    b = Builder()
    octave_parts(b.emit, op.operands, op.attributes)
    return sum(facts_of(part.name).flops(part) for part in b.ops)


define(
    "graph.octave_conv2d",
    ("high", "low", "w_hh", "w_hl", "w_lh", "w_ll"),
    "Convolution of maps in two resolutions; kernels are named by where they read and write.",
    attrs={
        "padding": AttrDef("ints", (0, 0, 0, 0), "top, left, bottom, right; must keep the extents"),
        "data_layout": AttrDef("str", "NCHW", "NCHW or NHWC, of maps and results"),
        "kernel_layout": AttrDef("str", "OIHW", "OIHW, HWIO, OHWI or HWOI"),
    },
    results=2,
    infer=_infer,
    evaluate=_evaluate,
    facts=Facts(
        elements=Elements.CONTRACTS,
        flops=_flops,
        precision=Precision.NARROW,
        division=undivided,
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.RULE,
        exact=False,
    ),
)
