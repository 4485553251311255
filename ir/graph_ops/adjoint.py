"""graph.adjoint: the gradient of a graph op without a rule of its own, derived from what it is lowered to."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir.division import undivided
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.operands import require
from tilewright.ir.opdef import AttrDef, Attrs, Evaluate, define, op_def
from tilewright.ir.types import FLOATS, TensorType, Type

_EVALUATE: list[Evaluate] = []


def evaluate_with(evaluate: Evaluate) -> None:
    """Make `evaluate` the semantics of graph.adjoint; lowering rules, which stand above the IR, have them."""
    _EVALUATE[:] = [evaluate]


def _infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    definition = op_def(str(attrs["of"]))
    smooth = definition.facts is not None and definition.facts.gradient in (Gradient.RULE, Gradient.DERIVED)
    require(smooth, f"expected a graph op that is differentiable, got {attrs['of']}")
    require(definition.infer is not None, f"expected an op whose results are inferred, got {attrs['of']}")
    assert definition.infer is not None
    given, count = attrs["given"], len(types) - len(attrs["given"])
    require(count >= 0, f"expected {len(given)} cotangents behind the operands, got {len(types)} tensors")
    for key in ("given", "wrt"):
        require(len(set(attrs[key])) == len(attrs[key]), f"expected distinct positions in '{key}'")
    operands, cotangents = types[:count], types[count:]
    results = definition.infer(operands, dict(definition.complete(attrs["attrs"].as_dict())))
    for position, t in zip(given, cotangents, strict=True):
        require(0 <= position < len(results), f"{attrs['of']} has {len(results)} results, not {position}")
        require(
            t == results[position],
            f"expected the cotangent of result {position} to be {results[position]}, got {t}",
        )
        require(t.dtype in FLOATS, f"expected cotangents of results of floats, result {position} is {t}")
    out = []
    for position in attrs["wrt"]:
        require(0 <= position < count, f"{attrs['of']} has {count} operands, not {position}")
        t = operands[position]
        require(isinstance(t, TensorType) and t.dtype in FLOATS, f"expected an operand of floats, got {t}")
        out.append(t)
    return out


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    if not _EVALUATE:
        raise UnsupportedError(
            f"the gradient of {attrs['of']} is derived from its lowering; use tilewright.interpret, which "
            "knows lowerings"
        )
    return _EVALUATE[0](inputs, attrs)


define(
    "graph.adjoint",
    ("x*",),
    "Cotangents of operands `wrt` of the op `of` with attributes `attrs`: operands are those of the op, then "
    "the cotangents of its results `given` (the others' are zero).",
    attrs={
        "of": AttrDef("str"),
        "attrs": AttrDef("pairs"),
        "wrt": AttrDef("ints", doc="positions of operands of floats, one result for each"),
        "given": AttrDef("ints", doc="positions of results whose cotangents follow the operands"),
    },
    results=None,
    infer=_infer,
    evaluate=_evaluate,
    facts=Facts(
        elements=Elements.COMPUTES,
        flops=flops_per_element,
        precision=Precision.WIDE,
        exact=False,
        division=undivided,
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.DERIVED,
    ),
)
