"""Rows of ops that treat every element, or every line along one axis, by itself."""

from __future__ import annotations

from tilewright.ir.facts import Elements
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import op_defs
from tilewright.passes.graph.distribute.distribution import Need, Sliced, along, slice_rule


def _that(elements: Elements) -> tuple[str, ...]:
    """Names of the graph ops that do this to elements."""
    found = (d.name.removeprefix("graph.") for d in op_defs() if d.facts and d.facts.elements is elements)
    return tuple(found)


@slice_rule(*_that(Elements.MAPS), *_that(Elements.KEEPS))
def elementwise_rows(op: Op, axis: int, start: int, end: int) -> Sliced:
    """The same rows of every operand that is not repeated along them."""
    result = op.result.tensor
    needs = []
    for v in op.operands:
        at = along(v.tensor.rank, result.rank, axis)
        repeated = at is None or (v.tensor.shape[at] == 1 and result.shape[axis] != 1)
        needs.append(None if at is None or repeated else Need(at, start, end))
    return Sliced(tuple(needs))


@slice_rule(*_that(Elements.MAPS_PER_CHANNEL))
def vector_rows(op: Op, axis: int, start: int, end: int) -> Sliced:
    """Rows of x; where they lie along the axis of the vectors, the same entries of those."""
    same = axis == op.integer("axis") % op.result.tensor.rank
    vector = Need(0, start, end) if same else None
    return Sliced((Need(axis, start, end), *(vector for _ in op.operands[1:])))


@slice_rule("softmax", "log_softmax", "layer_norm", "l2_normalize", "lrn")
def line_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Rows along every axis but those that the op sums over."""
    given, rank = op["axis"], op.result.tensor.rank
    summed = given if isinstance(given, tuple) else (given,)
    if not summed or axis in {a % rank for a in summed if isinstance(a, int)}:
        return None
    return Sliced((Need(axis, start, end), *(None for _ in op.operands[1:])))


@slice_rule("instance_norm", "group_norm")
def image_norm_rows(op: Op, axis: int, start: int, end: int) -> Sliced | None:
    """Samples; of instance norms also channels."""
    channels = op.integer("axis") % op.result.tensor.rank
    if axis == 0 and channels != 0:
        return Sliced((Need(0, start, end), *(None for _ in op.operands[1:])))
    if axis == channels and op.name == "graph.instance_norm":
        return Sliced((Need(axis, start, end), *(Need(0, start, end) for _ in op.operands[1:])))
    return None
