"""Differentiates a random graph: compiled gradients and central differences against those in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir import Module, UnsupportedError, Value, WorkError, interpret
from tilewright.ir.graph_code import GraphWriter, Tensor
from tilewright.ir.types import FLOATS, numpy_dtype
from tilewright.passes.graph.gradients.differentiate import backward, with_results

#: step of a central difference relative to the magnitude of what is moved: the cube root of float64's epsilon
STEP = 6e-6
#: share by which elements are moved apart from those that they are equal to, in float64
APART = 1e-3
#: error of a directional derivative relative to the gradient's norm
LIMIT = 1e-6
#: of the largest element of a gradient: what its own dtype gives further from float64 is not compared
ILL_CONDITIONED = 0.05
#: largest element of a gradient that is compared; what cancels leaves less, by rounding alone
LEAST = 1e-6
#: its gradient is not its derivative, on purpose
STOPS = "graph.stop_gradient"


def gradient_module(module: Module, seed: int = 0) -> tuple[Module, list[str]] | None:
    """The gradients of a random weighted sum of all results of floats by each input of floats.

    The first result is that sum; then a gradient per name that is returned beside. None where nothing of
    floats depends on an input of floats, or where an op on the way has no derivative.
    """
    rng = np.random.default_rng(seed)
    inputs = dict(zip(module.input_names, module.main.params, strict=True))
    variables = {n: v for n, v in inputs.items() if v.tensor.dtype in FLOATS}
    w = GraphWriter(module.constants)
    for op in module.main.body.ops[:-1]:
        w.builder.append(op)
    total = _weighted_sum(w, module.main.body.ops[-1].operands, rng)
    if total is None:
        return None
    try:
        back = backward(w, w.ops, {total.value: w.number(1, total.dtype)}, tuple(variables.values()))
    except UnsupportedError as e:
        if "not differentiable" not in str(e):
            raise
        return None
    names = [n for n, v in variables.items() if v in back]
    if not names:
        return None
    return with_results(module, w, [total.value, *(back[variables[n]].value for n in names)]), names


def _weighted_sum(w: GraphWriter, results: Sequence[Value], rng: np.random.Generator) -> Tensor | None:
    floats = [w.tensor(v) for v in results if v.tensor.dtype in FLOATS]
    dtype = "f64" if any(y.dtype == "f64" for y in floats) else "f32"
    total: Tensor | None = None
    for y in floats:
        weights = rng.uniform(0.5, 1.5, y.shape) * rng.choice([-1, 1], y.shape)
        term = (y.cast(dtype) * w.constant(weights.astype(numpy_dtype(dtype)), "weights")).sum()
        total = term if total is None else total + term
    return total


def well_conditioned(module: Module, inputs: Sequence[np.ndarray]) -> Module | None:
    """The gradients of `gradient_module` that their own dtypes are precise enough for; none without one."""
    native, wide = interpret(module, *inputs), interpret(module, *inputs, precision="fp64")
    results = module.main.body.ops[-1].operands
    pairs = list(zip(results, native, wide, strict=True))[1:]
    chosen = [v for v, n, x in pairs if _close(n, x)]
    return _returning(module, chosen) if chosen else None


def _returning(module: Module, results: Sequence[Value]) -> Module:
    """The module with these of its values as results."""
    w = GraphWriter(module.constants)
    for op in module.main.body.ops[:-1]:
        w.builder.append(op)
    return with_results(module, w, results)


def _close(native: np.ndarray, wide: np.ndarray) -> bool:
    if not (np.isfinite(native.astype(np.float64)).all() and np.isfinite(wide).all()):
        return False
    gap, largest = np.abs(native.astype(np.float64) - wide).max(initial=0), np.abs(wide).max(initial=0)
    return bool(largest >= LEAST and gap <= ILL_CONDITIONED * largest)


def check_differences(module: Module, names: Sequence[str], inputs: Sequence[np.ndarray]) -> None:
    """Raise WorkError where a gradient and central differences disagree along a random direction.

    Inputs are moved a little first: elements of 16 bits are often equal, where they are sorted each pair is a
    kink, and many kinks hide each other. Cancellation and what kinks are left show in the differences
    themselves: as much is allowed as those of two steps, and those to both sides, disagree.
    """
    if any(op.name == STOPS for op in module.main.body.ops):
        return
    rng = np.random.default_rng(0)
    inputs = [
        x.astype(np.float64) * rng.uniform(1 - APART, 1 + APART, x.shape) if p.tensor.dtype in FLOATS else x
        for x, p in zip(map(np.asarray, inputs), module.main.params, strict=True)
    ]
    middle, *gradients = interpret(module, *inputs, precision="fp64")
    value = _returning(module, module.main.body.ops[-1].operands[:1])
    order = list(module.input_names)
    for name, g in zip(names, gradients, strict=True):
        at = order.index(name)
        x = inputs[at]
        if not np.isfinite(g).all():
            continue
        direction = rng.standard_normal(x.shape)
        expected = float((g * direction).sum())
        h = STEP * max(1.0, float(np.abs(x).max(initial=0)))
        (up, down), (further_up, further_down) = (
            [_value(value, inputs, at, x + sign * step * direction) for sign in (1, -1)]
            for step in (h, 2.5 * h)
        )
        first, second = (up - down) / (2 * h), (further_up - further_down) / (5 * h)
        sides = abs(up + down - 2 * float(middle)) / h
        norm = float(np.linalg.norm(g) * np.linalg.norm(direction))
        allowed = LIMIT * (norm + abs(expected) + 1) + 10 * abs(first - second) + sides
        if not abs(first - expected) <= allowed:
            raise WorkError(
                f"gradient by {name}: {expected:.9g} along a direction, {first:.9g} by differences, "
                f"{allowed:.3g} allowed"
            )


def _value(module: Module, inputs: Sequence[np.ndarray], at: int, x: np.ndarray) -> float:
    """The only result, in float64, with `x` as input `at`."""
    moved = [x if i == at else other for i, other in enumerate(inputs)]
    return float(interpret(module, *moved, precision="fp64")[0])
