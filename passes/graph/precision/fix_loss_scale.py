"""Pass fix-loss-scale: a step that wants a loss scale in fp16 only loses it elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilewright.ir.graph_code import GraphWriter
from tilewright.ir.nodes import Func, Level, Module, Op, Value
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.values import replace_in_op, resolve

#: the module attribute of a step whose scale is wanted in fp16 only, and its value
AUTO = ("loss_scale", "auto")
#: the state of a dynamic loss scale: the factor, and the updates since it changed
SCALE, GOOD = "loss_scale", "good_updates"


@register_pass(Level.GRAPH)
def fix_loss_scale(module: Module, ctx: PassContext) -> Module:
    """Take the state %loss_scale as 1 where the module says `loss_scale = "auto"`; it stays as it is.

    Unless the module has the attribute `on_nan`, updates are not guarded any more either: the condition that
    all gradients are finite, which chooses between both new values of %good_updates, is true.

    rewrite: %g = graph.multiply(%scaled, %inverse); %p = graph.where(%finite, %new, %old)
        -->  %g = %scaled; %p = %new
    """
    main = module.main
    state = {main.params[p].hint: (main.params[p], r) for p, r in main.updates}
    if module.get(AUTO[0]) != AUTO[1] or not {SCALE, GOOD} <= set(state):
        return module
    changed = _Simplified(module, state).module()
    return changed.without_attr(AUTO[0])


class _Simplified:
    """One walk over @main with some values known: the scale, and whether gradients are finite."""

    def __init__(self, module: Module, state: Mapping[str, tuple[Value, int]]) -> None:
        self.given, self.main = module, module.main
        self.w = GraphWriter(module.constants)
        self.ones: set[Value] = set()
        self.true: set[Value] = set()
        self.new: dict[Value, Value] = {}
        self.state = state
        self.producers = {r: op for op in self.main.body.ops for r in op.results}
        if module.get("on_nan") is None:
            self.true.update(self.finite())

    def finite(self) -> list[Value]:
        """The condition under which %good_updates counts on; none where its new value is made otherwise."""
        good, result = self.state[GOOD]
        op = self.producers.get(self.main.body.ops[-1].operands[result])
        if op is not None and op.name == "graph.where" and op.operands[2] is good:
            op = self.producers.get(op.operands[1])  # only every so many runs update
        return [op.operands[0]] if op is not None and op.name == "graph.where" else []

    def module(self) -> Module:
        """The module without the ops that the known values make needless."""
        scale = self.state[SCALE][0]
        one = self.w.number(1, "f32").value
        self.ones.update((scale, one))
        self.new[scale] = one
        for op in self.main.body.ops[:-1]:
            value = self.simpler(op)
            if value is not None:
                self.new[op.result] = value
                self.note(op.result, value)
                continue
            self.w.builder.append(replace_in_op(op, self.new))
        last = self.main.body.ops[-1]
        operands = [resolve(v, self.new) for v in last.operands]
        for name in (SCALE, GOOD):
            param, result = self.state[name]
            operands[result] = param
        self.w.builder.append(last.with_operands(tuple(operands)))
        block = replace(self.main.body, ops=self.w.ops)
        func: Func = self.main.with_body(block.with_ops(live_ops(block)))
        funcs = tuple(func if f is self.main else f for f in self.given.funcs)
        return self.given.with_funcs(funcs).with_constants(self.w.constants)

    def note(self, old: Value, new: Value) -> None:
        for known in (self.ones, self.true):
            if new in known:
                known.add(old)

    def simpler(self, op: Op) -> Value | None:
        """What an op gives where it gives an operand; also notes constants that are 1."""
        if op.name == "graph.constant":
            array = self.given.constants.get(str(op["name"]))
            if array is not None and array.shape == () and array.dtype == np.float32 and array == 1:
                self.ones.add(op.result)
            return None
        if len(op.results) != 1:
            return None
        same = [v for v in op.operands if v.type == op.result.type]
        if op.name in ("graph.multiply", "graph.divide") and op.operands[1] in self.ones:
            return op.operands[0] if op.operands[0] in same else None
        if op.name == "graph.multiply" and op.operands[0] in self.ones:
            return op.operands[1] if op.operands[1] in same else None
        if op.name == "graph.logical_and":
            for known, other in (op.operands, op.operands[::-1]):
                if known in self.true and other in same:
                    return other
        if op.name == "graph.where" and op.operands[0] in self.true and op.operands[1] in same:
            return op.operands[1]
        return None
