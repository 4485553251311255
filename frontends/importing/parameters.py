"""Which constants of an imported network are parameters: what training may change."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from tilewright.ir.nodes import Module, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.types import FLOATS

#: operands of this name start are running statistics: training updates them, but not along a gradient
STATISTIC = "moving_"
#: operands that an op reads only where an attribute says so, by the name of that attribute
SWITCHED = {"gamma": "scale", "beta": "center"}


def with_parameters(module: Module, weights: Collection[str], numbers: Collection[Value] = ()) -> Module:
    """The module with the attribute `parameters`, the names of `parameter_names`; as it is without any."""
    names = parameter_names(module.main.body.ops, weights, numbers)
    return module.with_attrs(parameters=names) if names else module


def parameter_names(
    ops: Sequence[Op], weights: Collection[str], numbers: Collection[Value] = ()
) -> tuple[str, ...]:
    """The constants among `weights` that are parameters, in the order of the ops.

    Weights that are no floats (tables of indices, quantised values) are none, and neither are weights that
    become a running statistic of a normalisation or one of `numbers` through ops on constants alone, or that
    nothing reads but a normalisation without its factor or its shift.
    """
    others = _sources(ops, numbers)
    used = {v for op in ops for v in _read(op)} - others
    named = {
        str(op["name"]): None
        for op in ops
        if op.name == "graph.constant"
        and op["name"] in weights
        and op.result.tensor.dtype in FLOATS
        and op.result in used
    }
    return tuple(named)


def _sources(ops: Sequence[Op], numbers: Collection[Value]) -> set[Value]:
    """`numbers`, running statistics, and the constants that these are computed from and from nothing else."""
    fixed: set[Value] = set()
    for op in ops:
        if op.name == "graph.constant" or (op.operands and all(v in fixed for v in op.operands)):
            fixed.update(op.results)
    out = {v for v in numbers if v in fixed}
    for op in reversed(ops):
        named = zip(op_def(op.name).operands, op.operands, strict=False)
        out.update(v for name, v in named if name.startswith(STATISTIC) and v in fixed)
        if any(r in out for r in op.results):
            out.update(op.operands)
    return out


def _read(op: Op) -> Iterator[Value]:
    """The operands on which the results of an op depend."""
    names = op_def(op.name).operands
    for place, v in enumerate(op.operands):
        switch = SWITCHED.get(names[place]) if place < len(names) else None
        if switch is None or op.get(switch, True) is not False:
            yield v
