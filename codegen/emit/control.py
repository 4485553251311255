"""Emitters of control flow: loops, conditions, barriers, ends."""

from __future__ import annotations

from tilewright.codegen.emit.emission import Emission, EmittedValue, emitter
from tilewright.ir.expr import Expr, Sym
from tilewright.ir.nodes import Block, Op, Value
from tilewright.ir.thread.role_ops import roles_of, threads_of


@emitter("thread.loop")
def _loop(e: Emission, op: Op) -> None:
    var, extent, unroll = op["var"].name, op.integer("extent"), op.integer("unroll")  # type: ignore[union-attr]
    body = op.body
    assert body is not None
    carried = _declare_carried(e, op)
    if extent > 0:
        if unroll == 1 and extent > 1 and e.dialect.unrolls_as_text(extent, _cost(body)):
            for i in range(extent):
                with e.braces(""), e.known({var: (i, i)}):
                    _iteration(e, body, carried)
        elif extent == 1:
            with e.braces(""), e.known({var: (0, 0)}):
                _iteration(e, body, carried)
        else:
            _counted(e, body, carried, var, extent, unroll)
    for result, held in zip(op.results, carried, strict=True):
        e.held[result] = held


def _declare_carried(e: Emission, op: Op) -> tuple[EmittedValue, ...]:
    """Mutable variables that hold the loop-carried values."""
    out = []
    for start, result in zip(op.operands, op.results, strict=True):
        t = e.scalar_type(result)
        name = e.name(result.hint or "carried")
        parts = e.value(start).parts
        names = (name,) if len(parts) == 1 else tuple(e.name(f"{name}_{i}") for i in range(len(parts)))
        lanes = t.lanes if len(parts) == 1 else 1
        for n, text in zip(names, parts, strict=True):
            e.line(f"{e.dialect.reg_type(t.dtype, lanes)} {n} = {text};")
        out.append(EmittedValue(names))
    return tuple(out)


def _counted(
    e: Emission, body: Block, carried: tuple[EmittedValue, ...], var: str, extent: int, unroll: int
) -> None:
    name = e.name(var)
    pragmas = e.dialect.unroll(unroll, subtracts=subtracts_from_a_sum(body))
    e.lines += ["    " * e.indent + text for text in pragmas]
    outer = e.loop_names
    e.loop_names = {**outer, var: name}
    with e.braces(f"for (int {name} = 0; {name} < {extent}; ++{name})"), e.known({var: (0, extent - 1)}):
        _iteration(e, body, carried)
    e.loop_names = outer


def subtracts_from_a_sum(body: Block) -> bool:
    """Whether a value that the loop carries on, in a buffer or from turn to turn, has something taken off it.

    `sum - x`, and what compilers make of it: `sum + (-x)` and `sum + x * -1`.
    """
    made_by = {r: op for op in body.ops for r in op.results}
    stored = {op.operands[1] for op in body.ops if op.name == "thread.store"}

    def carried(v: Value) -> bool:
        op = made_by.get(v)
        return v in body.params or (op is not None and op.name == "thread.load" and op.operands[0] in stored)

    def negated(v: Value) -> bool:
        op = made_by.get(v)
        if op is None or op.name != "scalar.mul":
            return op is not None and op.name == "scalar.neg"
        factors = (made_by.get(x) for x in op.operands)
        return any(f is not None and f.name == "scalar.const" and f["value"] == -1 for f in factors)

    for op in body.ops:
        if op.name == "scalar.sub" and carried(op.operands[0]):
            return True
        if op.name == "scalar.add":
            a, b = op.operands
            if (carried(a) and negated(b)) or (carried(b) and negated(a)):
                return True
    return False


def _iteration(e: Emission, body: Block, carried: tuple[EmittedValue, ...]) -> None:
    for param, held in zip(body.params, carried, strict=True):
        e.bind(param, held.parts, hint="previous")
    e.carried.append(carried)
    e.ops(body)
    e.carried.pop()


def _cost(body: Block) -> int:
    """Ops of a body once the fully unrolled loops inside are written out."""
    total = 0
    for op in body.ops:
        inner = _cost(op.body) if op.body is not None else 0
        times = op.integer("extent") if op.name == "thread.loop" and op["unroll"] == 1 else 1
        total += 1 + inner * times
    return total


@emitter("thread.yield")
def _yield(e: Emission, op: Op) -> None:
    carried = e.carried[-1] if e.carried else ()
    for value, held in zip(op.operands, carried, strict=True):
        for name, text in zip(held.parts, e.value(value).parts, strict=True):
            e.line(f"{name} = {text};")


@emitter("thread.if")
def _if(e: Emission, op: Op) -> None:
    condition = e.condition(op)
    assert op.body is not None
    if condition == "0":
        return
    if op.operands:
        flag = e.value(op.operands[0]).parts[0]
        condition = f"{condition} && {flag}" if condition else flag
    with e.braces(f"if ({condition})" if condition else ""), e.known(_narrowed(e, op)):
        e.ops(op.body)


def _narrowed(e: Emission, op: Op) -> dict[str, tuple[int, int]]:
    """Return what the mask says about single symbols."""
    out: dict[str, tuple[int, int]] = {}
    mask: tuple[tuple[Expr, Expr, Expr], ...] = op["mask"]  # type: ignore[assignment]
    for expr, low, high in mask:
        if isinstance(expr, Sym) and isinstance(low, int) and isinstance(high, int):
            lo, hi = out.get(expr.name, e.ranges[expr.name])
            out[expr.name] = max(lo, low), min(hi, high - 1)
    return out


@emitter("thread.return")
def _return(e: Emission, op: Op) -> None:
    """The closing brace ends the kernel."""


@emitter("thread.barrier")
def _barrier(e: Emission, op: Op) -> None:
    if e.role is None:
        e.line(e.dialect.barrier)
    else:  # the first named barrier is that of the whole block
        number = 1 + roles_of(e.func).index(e.role)
        e.line(f"{e.need('named_barrier')}<{number}, {threads_of(e.role)}>();")
