"""Structural equality of modules, functions and attributes, up to SSA names; locations are ignored."""

from __future__ import annotations

import math

from tilewright.ir.expr import BinOp, Sym
from tilewright.ir.nodes import Attr, Block, Func, Module, Op, Pairs, TypedAttr, Value


def equal(a: Module, b: Module, *, constants: bool = True) -> bool:
    """True when two modules mean the same text; with `constants`, their arrays agree bit for bit too."""
    if (a.name, len(a.funcs)) != (b.name, len(b.funcs)) or not same_attrs(a.attrs, b.attrs):
        return False
    if not all(equal_funcs(x, y) for x, y in zip(a.funcs, b.funcs, strict=True)):
        return False
    return not constants or _same_constants(a, b)


def _same_constants(a: Module, b: Module) -> bool:
    if a.constants is b.constants:
        return True
    return a.constants.keys() == b.constants.keys() and all(
        x.dtype == b.constants[k].dtype
        and x.shape == b.constants[k].shape
        and x.tobytes() == b.constants[k].tobytes()
        for k, x in a.constants.items()
    )


def equal_funcs(a: Func, b: Func) -> bool:
    """Structural equality of two functions."""
    head = (a.level, a.name, a.result_types) == (b.level, b.name, b.result_types)
    return head and same_attrs(a.attrs, b.attrs) and _blocks(a.body, b.body, {})


def same_attr(a: Attr, b: Attr) -> bool:
    """Equality with types: `True != 1`, `1 != 1.0`, `nan == nan`, `0.0 != -0.0`."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(same_attr(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Pairs) and isinstance(b, Pairs):
        return same_attrs(a.items, b.items)
    if isinstance(a, TypedAttr) and isinstance(b, TypedAttr):
        return same_attr(a.pairs(), b.pairs())
    if isinstance(a, Sym | BinOp):
        return a == b
    return bool(a == b)


def same_attrs(a: tuple[tuple[str, Attr], ...], b: tuple[tuple[str, Attr], ...]) -> bool:
    """Equality of ordered attribute lists."""
    return len(a) == len(b) and all(k == m and same_attr(x, y) for (k, x), (m, y) in zip(a, b, strict=True))


def _bind(xs: tuple[Value, ...], ys: tuple[Value, ...], env: dict[Value, Value]) -> bool:
    env.update(zip(xs, ys, strict=False))
    return [x.type for x in xs] == [y.type for y in ys]


def _ops(x: Op, y: Op, env: dict[Value, Value]) -> bool:
    if x.name != y.name or len(x.operands) != len(y.operands) or not same_attrs(x.attrs, y.attrs):
        return False
    if any(env.get(a) is not b for a, b in zip(x.operands, y.operands, strict=True)):
        return False
    if (x.body is None) != (y.body is None):
        return False
    if x.body is not None and y.body is not None and not _blocks(x.body, y.body, env):
        return False
    return _bind(x.results, y.results, env)


def _blocks(x: Block, y: Block, env: dict[Value, Value]) -> bool:
    return (
        _bind(x.params, y.params, env)
        and len(x.ops) == len(y.ops)
        and all(_ops(a, b, env) for a, b in zip(x.ops, y.ops, strict=True))
    )
