"""softmax and log_softmax; 16-bit floats are computed in float32 and rounded once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.division import along_other_axes
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.operands import axis_of, dtype_of, require_float, tensors, wide
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import Type


def _infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    (x,) = tensors(types)
    require_float(x)
    axis_of(attrs["axis"], x.rank)
    return [x]


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs, logarithm: bool) -> Sequence[np.ndarray]:
    x, axis = wide(inputs[0], dtype_of(inputs[0])), attrs["axis"]
    if x.size == 0:
        return inputs
    with np.errstate(all="ignore"):
        shifted = x - x.max(axis=axis, keepdims=True)
        exponentials = np.exp(shifted)
        total = exponentials.sum(axis=axis, keepdims=True)
        out = shifted - np.log(total) if logarithm else exponentials / total
    return [np.asarray(out).astype(inputs[0].dtype, copy=False)]


#: facts that ops below share; each replaces those that differ
_NORMALISATION = Facts(
    elements=Elements.NORMALISES,
    flops=flops_per_element,
    precision=Precision.FOLLOWS,
    exact=False,
    division=along_other_axes,
    extents=attributes_stay,
    report=ReportClass.SOFTMAX,
    gradient=Gradient.RULE,
)
define(
    "graph.softmax",
    ("x",),
    "exp(x - m) / sum of exp(x - m) along `axis`, m being the largest x there.",
    attrs={"axis": AttrDef("int", -1)},
    infer=_infer,
    evaluate=lambda x, a: _evaluate(x, a, logarithm=False),
    facts=_NORMALISATION,
)
define(
    "graph.log_softmax",
    ("x",),
    "x - m - log(sum of exp(x - m)) along `axis`, m being the largest x there.",
    attrs={"axis": AttrDef("int", -1)},
    infer=_infer,
    evaluate=lambda x, a: _evaluate(x, a, logarithm=True),
    facts=_NORMALISATION,
)
