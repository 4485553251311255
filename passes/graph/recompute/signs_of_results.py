"""Pass signs-of-results: a backward pass takes signs and masks from what dropout gave."""

from __future__ import annotations

from math import isfinite

from tilewright.ir.graph_code import GraphWriter
from tilewright.ir.nodes import Level, Module, Op, Value
from tilewright.passes.analysis.backward_pass import LOSS
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.values import producers, replace_in_op


@register_pass(Level.GRAPH, requires={"shapes-known"}, establishes={"shapes-known"})
def signs_of_results(module: Module, ctx: PassContext) -> Module:
    """Choose by the sign of dropped elements where the sign of what was dropped and the mask are asked for.

    rewrite:  %d = where(%kept, %y * 1.1, 0); ...; %e = where(%y > 0, where(%kept, %g, 0) * 1.1, 0)
        -->   %d = where(%kept, %y * 1.1, 0); ...; %e = where(%d > 0, %g * 1.1, 0)

    An element of %d is positive just where that of %y is and was kept, since a factor of at least 1 neither
    turns signs nor loses small numbers. The product behind reads %d anyway, so neither %y nor the mask is
    saved or computed again. Functions without a backward pass stay as they are.
    """
    main = module.main
    if main.level is not Level.GRAPH or main.get(LOSS) is None:
        return module
    numbers = _numbers(module)
    made = producers(main.body)
    dropped: dict[tuple[Value, Value], Value] = {}
    for op in main.body.ops:
        found = _dropped(op, made, numbers)
        if found is not None:
            dropped.setdefault(found, op.result)
    if not dropped:
        return module
    w = GraphWriter(module.constants)
    new: dict[Value, Value] = {}
    for op in main.body.ops:
        with w.at(op.loc):
            match = _masked(op, made, numbers)
            stored = None if match is None else dropped.get(match[:2])
            if match is None or stored is None:
                w.builder.append(replace_in_op(op, new))
                continue
            through, kept = match[2], match[1]
            d = w.tensor(new.get(stored, stored))
            opened = _opened(w, through, kept, made, numbers, new)
            zero = w.tensor(new.get(op.operands[2], op.operands[2]))
            result = w.op("where", w.op("greater", d, zero.cast(d.dtype)), w.tensor(opened), zero)
            new[op.result] = result.value
    if not new:
        return module
    block = main.body.with_ops(w.ops)
    func = main.with_body(block.with_ops(live_ops(block)))
    funcs = tuple(func if f is main else f for f in module.funcs)
    return module.with_funcs(funcs).with_constants(w.constants)


def _numbers(module: Module) -> dict[Value, float]:
    """The constants of @main that hold one number, also as another dtype."""
    numbers: dict[Value, float] = {}
    for op in module.main.body.ops:
        if op.name == "graph.constant" and op.result.tensor.size == 1:
            numbers[op.result] = float(module.constants[str(op["name"])].reshape(-1)[0])
        elif op.name == "graph.cast" and op.operands[0] in numbers:
            numbers[op.result] = numbers[op.operands[0]]
    return numbers


def _chosen_or_zero(op: Op | None, numbers: dict[Value, float]) -> bool:
    """Return whether an op chooses between a value of its own shape and zero."""
    if op is None or op.name != "graph.where":
        return False
    return numbers.get(op.operands[2]) == 0.0 and op.operands[1].tensor.shape == op.result.tensor.shape


def _factor(op: Op | None, numbers: dict[Value, float]) -> tuple[Value, float] | None:
    """What an op multiplies, and the number by which it does."""
    if op is None or op.name != "graph.multiply":
        return None
    for v, other in (op.operands, op.operands[::-1]):
        if other in numbers and v.tensor.shape == op.result.tensor.shape:
            return v, numbers[other]
    return None


def _dropped(op: Op, made: dict[Value, Op], numbers: dict[Value, float]) -> tuple[Value, Value] | None:
    """What a dropout drops and its mask: where(mask, value * factor, 0) with a factor of at least 1."""
    if not _chosen_or_zero(op, numbers):
        return None
    found = _factor(made.get(op.operands[1]), numbers)
    if found is None or not (isfinite(found[1]) and found[1] >= 1.0):
        return None
    return found[0], op.operands[0]


def _masked(op: Op, made: dict[Value, Op], numbers: dict[Value, float]) -> tuple[Value, Value, Value] | None:
    """(value, mask, masked) of where(value > 0, masked, 0), whose `masked` is 0 where the mask is false."""
    if not _chosen_or_zero(op, numbers):
        return None
    test = made.get(op.operands[0])
    if test is None or test.name != "graph.greater" or numbers.get(test.operands[1]) != 0.0:
        return None
    inner = made.get(op.operands[1])
    while (found := _factor(inner, numbers)) is not None:
        inner = made.get(found[0])
    if inner is None or not _chosen_or_zero(inner, numbers):
        return None
    return test.operands[0], inner.operands[0], op.operands[1]


def _opened(
    w: GraphWriter,
    v: Value,
    mask: Value,
    made: dict[Value, Op],
    numbers: dict[Value, float],
    new: dict[Value, Value],
) -> Value:
    """The masked value without its mask, multiplied by the same numbers."""
    op = made[v]
    if op.name == "graph.where" and op.operands[0] is mask:
        return new.get(op.operands[1], op.operands[1])
    found = _factor(op, numbers)
    assert found is not None
    inner = _opened(w, found[0], mask, made, numbers, new)
    operands = tuple(inner if x is found[0] else new.get(x, x) for x in op.operands)
    return w.builder.emit(op.name, operands, dict(op.attrs))[0]
