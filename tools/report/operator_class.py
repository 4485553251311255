"""Names of a network's ops as a person reads them, and the classes of operators whose times are summed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tilewright.ir import Func, Module, Op
from tilewright.ir.facts import ReportClass
from tilewright.ir.opdef import facts_of

_CONVOLUTIONS = (ReportClass.CONVOLUTION, ReportClass.TRANSPOSED_CONVOLUTION)


def ops_by_location(graph: Module) -> dict[str, list[Op]]:
    """The graph ops of @main by their origin; constants and the return are left out."""
    out: dict[str, list[Op]] = {}
    for op in graph.main.body.ops:
        if op.loc and op.name.startswith("graph.") and op.name not in ("graph.constant", "graph.return"):
            out.setdefault(op.loc, []).append(op)
    return out


def op_title(location: str, ops: Iterable[Op] = ()) -> str:
    """`conv2d #4 3x3 /2` of `relay:nn.conv2d#4 net.relay:22` and its graph ops, where they are known."""
    name = location.split(" ")[0].partition(":")[2] or location
    name, _, number = name.partition("#")
    name = re.sub(r"^(nn|image|vision)\.", "", name)
    graph_ops = list(ops)
    parts = [name, f"#{number}" if number else "", *(d for d in map(_detail, graph_ops[:1]) if d)]
    inside = [op.name.removeprefix("graph.") for op in graph_ops]
    if inside and inside != [name]:
        parts.append(f"({', '.join(dict.fromkeys(inside))})")
    return " ".join(p for p in parts if p)


def class_of(kernel: Func, ops: Iterable[Op], operations: int) -> str:
    """The class of a kernel: that of its weightiest graph op, else by what its tensor ops do."""
    by_class = {facts_of(op.name).report: op for op in reversed(list(ops))}
    main = next((c for c in ReportClass if c in by_class), ReportClass.OF_KERNEL)
    if main not in (ReportClass.REDUCTION, ReportClass.OF_KERNEL):
        return _class_of_op(by_class[main])
    names = {op.name for op in kernel.body.ops}
    if "tensor.contract" in names:
        return ReportClass.MATRIX_PRODUCT.value
    if names & {"tensor.reduce", "tensor.window"} or main is ReportClass.REDUCTION:
        return ReportClass.REDUCTION.value
    if names & {"tensor.scan", "tensor.recur"}:
        return ReportClass.SCAN.value
    return "elementwise" if operations else "data movement"


def _class_of_op(op: Op) -> str:
    report = facts_of(op.name).report
    return _convolution(op) if report is ReportClass.CONVOLUTION else report.value


def _convolution(op: Op) -> str:
    groups, channels = op.get("groups"), _kernel_extents(op, "I")
    if isinstance(groups, int) and groups > 1 and channels == [1]:
        return "depthwise convolution"
    window = _kernel_extents(op, "DHW")
    return f"convolution {'x'.join(map(str, window))}" if window else "convolution"


def _kernel_extents(op: Op, letters: str) -> list[int]:
    """Extents of the kernel's dimensions that `letters` name in its layout."""
    layout = op.get("kernel_layout")
    if not isinstance(layout, str) or len(op.operands) < 2:
        return []
    shape = op.operands[1].tensor.shape
    return [n for d, n in zip(layout, shape, strict=False) if d in letters]


def _detail(op: Op) -> str:
    if facts_of(op.name).report not in _CONVOLUTIONS:
        return ""
    window = "x".join(map(str, _kernel_extents(op, "DHW")))
    strides = op.get("strides")
    steps = [str(s) for s in strides] if isinstance(strides, tuple) else []
    stride = "" if set(steps) <= {"1"} else "/" + (steps[0] if len(set(steps)) == 1 else "x".join(steps))
    algorithm = op.get("algorithm")
    by = f"by {algorithm}" if algorithm not in (None, "direct") else ""
    return " ".join(p for p in (window, stride, by) if p)
