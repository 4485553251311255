"""Pass mixed-precision: 16-bit storage where it saves traffic, float32 where range or rounding would hurt."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from tilewright.ir.builder import Builder
from tilewright.ir.errors import InputError
from tilewright.ir.facts import Elements, Precision
from tilewright.ir.nodes import Func, Level, Op, Value
from tilewright.ir.opdef import facts_of, op_def
from tilewright.ir.types import TensorType
from tilewright.passes.analysis.backward_pass import forward_ops
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass


@register_pass(Level.GRAPH, requires={"shapes-known"})
def mixed_precision(func: Func, ctx: PassContext, *, dtype: str = "f16") -> Func:
    """Store float32 tensors as `dtype` (f16 or bf16) between ops, with explicit casts where types meet.

    rewrite: %0 = graph.dense(%x, %w); %1 = graph.exp(%0)
        -->   %0 = graph.dense(graph.cast(%x, f16), graph.cast(%w, f16)); %1 = graph.exp(graph.cast(%0, f32))

    Products always take narrow operands and give narrow results; ops sensitive to range or rounding stay in
    float32; all others follow the tensors they read (constants follow the op, and tables of constants that
    data picks rows from are weights: narrow). Norms, softmax, pooling and
    reductions accumulate in float32 whatever they read: that is their lowering's business. What a norm of a
    float32 tensor gives is stored narrow for all but the function's results and ops that must see float32, so
    that sums behind norms are narrow; sums before norms, which may grow from layer to layer, are not.
    Parameters and results of the function keep their types. In a function with state, a product from which
    the new value of a state of its type is made element by element, a gradient of a weight, gives its sum
    where only explicit casts to float32 read it.
    Its forward pass takes state as constants are taken, so that a bias follows the product that it is added
    to; its backward pass reads what is stored of the forward pass, which is narrow, and never asks for the
    number before it was rounded. Nor does it ask for that of a gradient that a product takes narrow, or a
    window that gives it back to an image (of a pooling): sums of gradients along residual connections are
    stored once, and narrow, as the values are that they belong to.
    """
    if dtype not in ("f16", "bf16"):
        raise InputError(f"expected dtype f16 or bf16, got {dtype!r}")
    return narrowed(func, dtype)


def narrowed(func: Func, dtype: str, *, interface: bool = False) -> Func:
    """The function with tensors stored as `dtype`; see the pass.

    interface: whether parameters and results of float32 are stored so, too.
    """
    return _Narrower(dtype, interface).func(func)


class _Narrower:
    def __init__(self, dtype: str, interface: bool = False) -> None:
        self.dtype, self.interface = dtype, interface
        self.b = Builder()
        self.home: dict[Value, Value] = {}  # a value of the old function -> where its result is kept
        #: kept value, dtype, whether from the kept value at any rate -> the same numbers so typed
        self.versions: dict[tuple[Value, str, bool], Value] = {}
        self.constants: set[Value] = set()
        self.state: set[Value] = set()
        self.forward: Collection[Op] = frozenset()  # none in functions without a backward pass
        self.in_backward = False  # whether the op at hand is of the backward pass
        self.rounded: set[Value] = set()  # narrow values that the backward pass reads as they are stored
        self.wide: set[Op] = set()  # products that give float32
        self.factors: set[Value] = set()  # what products and windows of the backward pass read narrow

    def func(self, func: Func) -> Func:
        self.wide = _sums(func) if func.updates else set()
        self.forward = forward_ops(func)
        self.state = {func.params[p] for p, _ in func.updates}
        if self.forward:
            self.factors = _stored(op for op in func.body.ops if op not in self.forward)
        params = tuple(map(self.outer, func.params))
        self.home.update(zip(func.params, params, strict=True))
        for op in func.body.ops:
            self.in_backward = bool(self.forward) and op not in self.forward
            with self.b.at(op.loc):
                self.op(op)
        if self.interface:
            types = tuple(v.type for v in self.b.ops[-1].operands)
            return replace(func, body=self.b.block(params), result_types=types)
        return func.with_body(self.b.block(params)) if self.versions else func

    def outer(self, p: Value) -> Value:
        """The parameter that takes the place of `p`."""
        if not self.interface or not isinstance(p.type, TensorType) or p.tensor.dtype != "f32":
            return p
        return Value(TensorType(self.dtype, p.tensor.shape), p.hint)

    def op(self, op: Op) -> None:
        if op.name == "graph.return":
            kinds = {"f32": self.dtype} if self.interface else {}
            operands = [self.typed(v, kinds.get(v.tensor.dtype, v.tensor.dtype)) for v in op.operands]
            self.b.emit(op.name, operands)
            return
        operands = [self.typed(v, self.wanted(op, v)) for v in op.operands]
        types = [r.type for r in op.results] if op.name == "graph.constant" else None
        hint = op.results[0].hint if op.results else ""
        attrs = dict(op.attrs)
        if op in self.wide and operands[0].tensor.dtype == self.dtype:
            attrs["out_dtype"] = "f32"
        results = self.b.emit(op.name, operands, attrs, types=types, hint=hint)
        self.home.update(zip(op.results, results, strict=True))
        if facts_of(op.name).precision is Precision.BOUNDED or (
            self.in_backward and op.results and op.results[0] in self.factors
        ):
            self.narrow(op.results[0])
        if op.name == "graph.constant" or (operands and all(v in self.constants for v in operands)):
            self.constants.update(results)

    def narrow(self, v: Value) -> None:
        """Keep a value narrow; what asks for float32 still gets the value before it was rounded."""
        wide = self.home[v]
        if wide.tensor.dtype == "f32":
            self.home[v] = self.typed(v, self.dtype)
            self.versions[self.home[v], "f32", False] = wide
            if not self.in_backward or v in self.factors:
                self.rounded.add(self.home[v])

    def wanted(self, op: Op, v: Value) -> str:
        """The dtype in which `op` reads operand `v`."""
        dtype, precision = self.home[v].tensor.dtype, facts_of(op.name).precision
        if dtype not in ("f32", self.dtype) or precision is Precision.ANY:
            return dtype
        if precision is Precision.NARROW:
            return self.dtype
        if precision is Precision.NARROW_MATRICES:
            return self.dtype if v.tensor.rank == op.operands[0].tensor.rank else dtype
        if precision is Precision.WIDE:
            return "f32"
        floats = [self.home[x] for x in op.operands]
        floats = [x for x in floats if x.tensor.dtype in ("f32", self.dtype)]
        moving = [x for x in floats if x not in self.constants]
        if op in self.forward and precision is Precision.FOLLOWS:
            moving = [x for x in moving if x not in self.state] or moving  # no step rounds a whole table
        if not moving and "communicate" in op_def(op.name).effects:
            return self.dtype  # a rank without rows gives a constant of none to those that have narrow ones
        if not moving and self.looks_up(op):
            return self.dtype
        return self.dtype if moving and all(x.tensor.dtype == self.dtype for x in moving) else "f32"

    def looks_up(self, op: Op) -> bool:
        """Whether an op picks rows of constants by data, as embeddings do."""
        by_data = any(v not in self.constants for v in op.operands)
        return facts_of(op.name).elements is Elements.LOOKS_UP and by_data

    def typed(self, v: Value, dtype: str) -> Value:
        """The kept form of `v` as `dtype`; each conversion is made once, and never back and forth."""
        stored = self.home[v]
        if not isinstance(stored.type, TensorType) or stored.tensor.dtype == dtype:
            return stored
        key = (stored, dtype, self.in_backward and stored in self.rounded)
        if key not in self.versions:
            self.versions[key] = self.b.value("graph.cast", stored, dtype=dtype)
            if stored in self.constants:
                self.constants.add(self.versions[key])
        return self.versions[key]


def _stored(ops: Iterable[Op]) -> set[Value]:
    """Return what products and windows among the ops read, each element several times."""
    return {v for op in ops if _reads_again(op) for v in op.operands}


def _reads_again(op: Op) -> bool:
    facts = facts_of(op.name)
    if facts.precision is Precision.NARROW:
        return True
    return facts.precision is Precision.FOLLOWS and facts.elements is Elements.SLIDES


def _sums(func: Func) -> set[Op]:
    """The products that are gradients of weights and that nothing reads but casts to float32.

    The new value of a state of their type is made of them, element by element; what comes back to an
    activation may have the type of some state, but leads to new values by another product or a reduction.
    """
    readers: dict[Value, list[Op]] = {}
    for op in func.body.ops:
        for v in op.operands:
            readers.setdefault(v, []).append(op)
    leading = _leading_to_state(func)
    return {
        op
        for op in func.body.ops
        if facts_of(op.name).precision is Precision.NARROW
        and op.get("out_dtype", "") is None
        and op.results[0] in leading
        and all(x.name == "graph.cast" and x["dtype"] == "f32" for x in readers.get(op.results[0], [op]))
    }


def _leading_to_state(func: Func) -> set[Value]:
    """Values from which a new value of a state of their type is made, through values of its shape alone."""
    maker = {r: op for op in func.body.ops for r in op.results}
    returned = func.body.ops[-1].operands
    leading: set[Value] = set()
    for p, r in func.updates:
        state = func.params[p]
        if not isinstance(state.type, TensorType):
            continue
        seen: set[Value] = set()
        todo = [returned[r]]
        while todo:
            v = todo.pop()
            if v in seen or not isinstance(v.type, TensorType) or v.tensor.shape != state.tensor.shape:
                continue
            seen.add(v)
            op = maker.get(v)
            if op is not None and facts_of(op.name).precision is not Precision.NARROW:
                todo += op.operands
        leading |= {v for v in seen if v.type == state.type}
    return leading
