"""graph.constant and graph.return, and ops that are the identity at inference."""

from __future__ import annotations

from tilewright.ir.division import same_dimensions, undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, movement, no_flops
from tilewright.ir.graph_ops.operands import tensors
from tilewright.ir.opdef import AttrDef, define, no_results

define(
    "graph.constant",
    (),
    "A named constant of the module.",
    attrs={"name": AttrDef("str")},
    facts=Facts(
        elements=Elements.CREATES,
        flops=no_flops,
        precision=Precision.FOLLOWS,
        division=undivided,
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.NONE,
        exact=True,
    ),
)
define(
    "graph.return",
    ("values*",),
    "Results of the function.",
    results=0,
    infer=no_results,
    effects=frozenset({"terminator"}),
    facts=Facts(
        elements=Elements.RETURNS,
        flops=no_flops,
        precision=Precision.FOLLOWS,
        division=undivided,
        extents=attributes_stay,
        report=ReportClass.OF_KERNEL,
        gradient=Gradient.NONE,
        exact=True,
    ),
)
define(
    "graph.dropout",
    ("x",),
    "x: dropout does nothing at inference.",
    attrs={"rate": AttrDef("float", 0.5)},
    infer=lambda t, a: tensors(t),
    evaluate=lambda x, a: [x[0]],
    facts=movement(Elements.KEEPS, same_dimensions, attributes_stay, gradient=Gradient.RULE),
)
define(
    "graph.copy",
    ("x",),
    "x.",
    infer=lambda t, a: tensors(t),
    evaluate=lambda x, a: [x[0]],
    facts=movement(Elements.KEEPS, same_dimensions, attributes_stay, gradient=Gradient.RULE),
)
define(
    "graph.stop_gradient",
    ("x",),
    "x, which counts as a constant where the function is differentiated.",
    infer=lambda t, a: tensors(t),
    evaluate=lambda x, a: [x[0]],
    facts=movement(Elements.KEEPS, same_dimensions, attributes_stay, gradient=Gradient.NONE),
)
