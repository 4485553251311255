"""Pass excess-precision: values of 16-bit floats stay in float32 until they are stored to memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.ir.modules.compare import equal_funcs
from tilewright.ir.nodes import Block, Func, Level, Op, Value, walk
from tilewright.ir.opdef import op_def
from tilewright.ir.types import ScalarType, storage_dtype
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.values import resolve

NARROW = frozenset({"f16", "bf16"})
_COMPARISONS = frozenset(f"scalar.{name}" for name in ("eq", "ne", "lt", "le", "gt", "ge"))
#: ops that pass a value on as it is
_MOVES = frozenset({"scalar.broadcast", "scalar.extract", "thread.shuffle"})


@register_pass(Level.THREAD)
def excess_precision(func: Func, ctx: PassContext) -> Func:
    """Round 16-bit floats where they are stored to memory, not after every op that computes one.

    rewrite:  %a = load(%x) : f16; %b = mul(%a, %a) : f16; %c = add(%b, %a) : f16; store(%c, %y)
        -->   %a = load(%x) : f16; %w = cast(%a) : f32; %b = mul(%w, %w) : f32; %c = add(%b, %w) : f32;
              %n = cast(%c) : f16; store(%n, %y)

    Loads are widened, what is stored (to registers too) is rounded once; values that loops carry are float32.
    Rounded first as before: what becomes an integer or a truth value, what is tested for being infinite, and
    both sides of a comparison of two values, so that a value still equals what was stored of it. Errors
    against exact arithmetic do not grow by more than ties of such comparisons.
    """
    if not any(map(_is_narrow, (r for op in walk(func.body) for r in op.results))):
        return func
    new = func.with_body(_Widening().block(func.body))
    return func if equal_funcs(new, func) else new


def _is_narrow(v: Value) -> bool:
    return isinstance(v.type, ScalarType) and v.type.dtype in NARROW


def _in_f32(v: Value) -> Value:
    """A new value of the same lanes and name in float32."""
    assert isinstance(v.type, ScalarType)
    return Value(ScalarType("f32", v.type.lanes), v.hint)


def _cast(source: Value, to: Value) -> Op:
    return Op("scalar.cast", (source,), (("dtype", to.type.dtype),), (to,))


class _Widening:
    """Rebuilds blocks: every narrow value keeps its identity and has a float32 twin; unused ones go."""

    def __init__(self) -> None:
        #: the twin of each narrow value
        self.wide: dict[Value, Value] = {}
        #: casts to float32 that are the twin itself
        self.new: dict[Value, Value] = {}
        self.constants: set[Value] = set()

    def block(self, block: Block, first: tuple[Op, ...] = ()) -> Block:
        out = list(first)
        for op in block.ops:
            changed = self.op(op.with_operands(tuple(resolve(v, self.new) for v in op.operands)))
            out += [o if o.loc == op.loc else replace(o, loc=op.loc) for o in changed]
        return block.with_ops(live_ops(Block(block.params, tuple(out))))

    def op(self, op: Op) -> tuple[Op, ...]:
        if op.name == "thread.loop":
            return self.loop(op)
        if op.body is not None:
            body = self.block(op.body)
            return (op if body is op.body else replace(op, body=body),)
        if op.name == "scalar.cast":
            return self.cast(op)
        if any(map(_is_narrow, op.results)):
            return self.narrow(op)
        if self.reads_twins(op):
            return (self.with_twins(op),)
        return (op,)

    def reads_twins(self, op: Op) -> bool:
        """Return whether an op that gives no narrow value may read its narrow operands unrounded."""
        if op.name in _COMPARISONS:
            return any(v in self.constants for v in op.operands)
        return op.name == "scalar.isnan"

    def with_twins(self, op: Op) -> Op:
        return op.with_operands(tuple(self.wide.get(v, v) for v in op.operands))

    def narrow(self, op: Op) -> tuple[Op, ...]:
        """An op that gives one narrow value, and what makes its twin (or the value of its twin)."""
        old = op.result
        new = self.wide[old] = _in_f32(old)
        if op.name == "scalar.const":
            self.constants.add(old)
            value = float(np.asarray(op["value"]).astype(storage_dtype(str(op["dtype"]))))
            return op, replace(op, results=(new,)).with_attrs(value=value, dtype="f32")
        if op.name == "scalar.index":
            return op, replace(op, results=(new,)).with_attrs(dtype="f32")
        if op.name in _MOVES or (op_def(op.name).elementwise and any(map(_is_narrow, op.operands))):
            if op.name in _MOVES and op.operands[0] in self.constants:
                self.constants.add(old)
            return replace(self.with_twins(op), results=(new,)), _cast(new, old)
        return op, _cast(old, new)

    def cast(self, op: Op) -> tuple[Op, ...]:
        (source,), old = op.operands, op.result
        if _is_narrow(old):
            if source.type.dtype == "f32":
                self.wide[old] = source
                return (op,)
            self.wide[old] = self.wide.get(source) or _in_f32(old)
            if _is_narrow(source):
                return (_cast(self.wide[source], old),)
            return op, _cast(source, self.wide[old])
        if _is_narrow(source) and op["dtype"] == "f32":
            self.new[old] = self.wide[source]
            return ()
        return (self.with_twins(op) if op["dtype"] == "f64" else op,)

    def loop(self, op: Op) -> tuple[Op, ...]:
        """A loop that carries the twins of narrow values."""
        assert op.body is not None
        params, results = list(op.body.params), list(op.results)
        entering: list[Op] = []
        leaving: list[Op] = []
        for values, casts in ((params, entering), (results, leaving)):
            for i, old in enumerate(values):
                if _is_narrow(old):
                    values[i] = self.wide[old] = _in_f32(old)
                    casts.append(_cast(values[i], old))
        body = self.block(op.body, tuple(entering))
        if not entering:
            return (op if body is op.body else replace(op, body=body),)
        ops = (*body.ops[:-1], self.with_twins(body.ops[-1]))
        body = Block(tuple(params), live_ops(Block(tuple(params), ops)))
        return replace(self.with_twins(op), body=body, results=tuple(results)), *leaving
