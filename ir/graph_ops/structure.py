"""graph.constant and graph.return, and ops that are the identity at inference."""

from __future__ import annotations

from tilewright.ir.division import kept, undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Precision, ReportClass, no_flops
from tilewright.ir.graph_ops.operands import tensors
from tilewright.ir.opdef import AttrDef, OpDef, define

define(
    OpDef(
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
            exact=True,
        ),
    )
)
define(
    OpDef(
        "graph.return",
        ("values*",),
        "Results of the function.",
        results=0,
        infer=lambda t, a: [],
        effects=frozenset({"terminator"}),
        facts=Facts(
            elements=Elements.RETURNS,
            flops=no_flops,
            precision=Precision.FOLLOWS,
            division=undivided,
            extents=attributes_stay,
            report=ReportClass.OF_KERNEL,
            exact=True,
        ),
    )
)
define(
    OpDef(
        "graph.dropout",
        ("x",),
        "x: dropout does nothing at inference.",
        attrs={"rate": AttrDef("float", 0.5)},
        infer=lambda t, a: tensors(t, "graph.dropout"),
        evaluate=lambda x, a: [x[0]],
        facts=Facts(
            elements=Elements.KEEPS,
            flops=no_flops,
            precision=Precision.FOLLOWS,
            division=kept,
            extents=attributes_stay,
            report=ReportClass.OF_KERNEL,
            exact=True,
        ),
    )
)
define(
    OpDef(
        "graph.copy",
        ("x",),
        "x.",
        infer=lambda t, a: tensors(t, "graph.copy"),
        evaluate=lambda x, a: [x[0]],
        facts=Facts(
            elements=Elements.KEEPS,
            flops=no_flops,
            precision=Precision.FOLLOWS,
            division=kept,
            extents=attributes_stay,
            report=ReportClass.OF_KERNEL,
            exact=True,
        ),
    )
)
