"""Evaluates scalar bodies on whole arrays, and recognises bodies that are one NumPy reduction per result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir.errors import UnsupportedError
from tilewright.ir.expr import evaluate
from tilewright.ir.nodes import Block, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.types import numpy_dtype

Env = dict[Value, np.ndarray]
Axes = Mapping[str, int | np.ndarray]

UFUNCS: dict[str, np.ufunc] = {
    "scalar.add": np.add,
    "scalar.mul": np.multiply,
    "scalar.max": np.maximum,
    "scalar.min": np.minimum,
    "scalar.and": np.logical_and,
    "scalar.or": np.logical_or,
    "scalar.xor": np.logical_xor,
    "scalar.bit_and": np.bitwise_and,
    "scalar.bit_or": np.bitwise_or,
    "scalar.bit_xor": np.bitwise_xor,
}


def bind(block: Block, arrays: Sequence[np.ndarray]) -> Env:
    """The body's parameters with their values."""
    return dict(zip(block.params, arrays, strict=True))


def run_ops(ops: Sequence[Op], env: Env, axes: Axes) -> None:
    """Evaluate scalar ops in order into `env`; `axes` gives the values of iteration dimensions."""
    for op in ops:
        if op.name == "scalar.index":
            value = evaluate(op.expr("at"), axes)
            env[op.result] = np.asarray(value).astype(numpy_dtype(str(op["dtype"])))
            continue
        definition = op_def(op.name)
        if definition.evaluate is None:
            raise UnsupportedError(f"the interpreter does not evaluate {op.name} inside a tensor op")
        outs = definition.evaluate([env[v] for v in op.operands], op.attributes)
        env.update(zip(op.results, map(np.asarray, outs), strict=True))


def run_body(block: Block, arrays: Sequence[np.ndarray], axes: Axes) -> list[np.ndarray]:
    """Values the body yields for the given parameter values (arrays broadcast against each other)."""
    env = bind(block, arrays)
    run_ops(block.ops[:-1], env, axes)
    return [env[v] for v in block.ops[-1].operands]


@dataclass(frozen=True)
class Fold:
    """`accumulator = ufunc(accumulator, product of elements)` for one result."""

    ufunc: np.ufunc
    elements: tuple[Value, ...]


@dataclass(frozen=True)
class Folds:
    """A body of independent NumPy reductions: ops computing the elements, one fold per result."""

    ops: tuple[Op, ...]
    folds: tuple[Fold, ...]


def recognise(block: Block, accumulators: int) -> Folds | None:
    """The folds of a reducing body whose last parameters are `accumulators`; None for general bodies."""
    totals = block.params[len(block.params) - accumulators :]
    tainted, ops, folds = set(totals), [], {}
    for op in block.ops[:-1]:
        if not tainted.intersection(op.operands):
            ops.append(op)
            continue
        fold = _fold(op, totals)
        if fold is None:
            return None
        tainted.add(op.result)
        folds[op.result] = fold
    yielded = block.ops[-1].operands
    for v, total in zip(yielded, totals, strict=True):
        if v not in folds or folds[v][0] is not total:
            return None
    if len(set(yielded)) != len(yielded) or len(folds) != len(yielded):
        return None
    return Folds(tuple(ops), tuple(folds[v][1] for v in yielded))


def _fold(op: Op, totals: Sequence[Value]) -> tuple[Value, Fold] | None:
    if op.name == "scalar.fma":
        a, b, c = op.operands
        return (c, Fold(np.add, (a, b))) if c in totals and not {a, b} & {*totals} else None
    if op.name not in UFUNCS:
        return None
    a, b = op.operands
    if (a in totals) == (b in totals):
        return None
    total, element = (a, b) if a in totals else (b, a)
    return total, Fold(UFUNCS[op.name], (element,))
