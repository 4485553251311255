"""Transposed tensor ops: against dense Jacobians of random ops, and against forward mode."""

import numpy as np
import pytest

from tests.samples.gradient_draws import instances
from tests.samples.random_tensor_ops import random_op
from tests.samples.tangents import FORWARD, push_forward
from tilewright.ir import Block, Builder, Func, Level, Module, TensorType, Value, dtype_name, interpret
from tilewright.ir.types import FLOATS
from tilewright.passes.lower import rules  # noqa: F401  (registers the rules)
from tilewright.passes.lower.adjoint import terms
from tilewright.passes.lower.adjoint.derive import adjoint, transposed
from tilewright.passes.lower.lowering import RULES
from tilewright.tools.fuzz.generate import DRAWERS


def module_of(params, ops, results):
    """A module of tensor ops."""
    b = Builder()
    for op in ops:
        b.append(op)
    b.emit("tensor.return", results, types=())
    block = Block(tuple(params), tuple(b.ops))
    return Module("m", (Func(Level.TENSOR, "main", block, tuple(v.type for v in results)),))


def check_dense(seed):
    """Assert that the adjoint of a random op is its Jacobian, transposed."""
    drawn = random_op(seed)
    b = Builder()
    b.append(drawn.op)
    back = [Value(r.type) for r in drawn.op.results]
    out = transposed(b, "graph.random", list(zip(drawn.op.results, back, strict=True)), drawn.params)
    rng = np.random.default_rng(seed)
    x, u = ([rng.integers(-3, 4, v.tensor.shape).astype(float) for v in vs] for vs in (drawn.params, back))
    gradients = interpret(module_of((*drawn.params, *back), b.ops, out), *x, *u)
    forward = drawn.module()

    def projected(moved):
        return sum((y * c).sum() for y, c in zip(interpret(forward, *moved), u, strict=True))

    for k, own in enumerate(gradients):
        dense = np.zeros_like(own)
        for at in np.ndindex(own.shape):
            step = np.zeros_like(own)
            step[at] = 1  # exact for what is at most quadratic
            up, down = ([*x[:k], x[k] + s * step, *x[k + 1 :]] for s in (1, -1))
            dense[at] = (projected(up) - projected(down)) / 2
        np.testing.assert_allclose(own, dense, rtol=1e-11, atol=1e-11, err_msg=str(drawn.module()))


@pytest.mark.parametrize("seed", range(40))
def test_dense_jacobian(seed):
    check_dense(seed)


def test_a_scatter_is_right_where_an_inverse_read_is(monkeypatch):
    monkeypatch.setattr(terms, "preimage", lambda *_: None)
    for seed in range(10):
        check_dense(seed)


def test_a_wrong_inverse_is_found(monkeypatch):
    real = terms.placed
    monkeypatch.setattr(terms, "placed", lambda r, at, s: real(r, {k: e * 0 for k, e in at.items()}, s))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        check_dense(0)


@pytest.mark.parametrize("drawer", sorted(d for d in DRAWERS if d != "adjoint"))
def test_forward_mode(drawer):
    for instance in instances(drawer, 1):
        if instance.differentiable and instance.op.get("reduction") != "mean":
            check_forward(instance)


def check_forward(instance):
    """Assert <v, J^T u> = <J v, u> for the op on float64."""
    x = [np.asarray(a, np.float64) if dtype_name(a.dtype) in FLOATS else a for a in instance.arrays]
    params = tuple(Value(TensorType(dtype_name(a.dtype), a.shape)) for a in x)
    attrs = instance.op.attributes
    if attrs.get("dtype") in FLOATS:
        attrs["dtype"] = "f64"
    whole, lowered = Builder(), Builder()
    whole.emit(instance.op.name, params, attrs)
    results = RULES[instance.op.name](lowered, whole.ops[0], params)
    if not {op.name for op in lowered.ops} <= FORWARD.keys():
        return  # scatters and recurrences
    wrt = [k for k, a in enumerate(x) if a.dtype == np.float64]
    given = [k for k, r in enumerate(results) if r.tensor.dtype in FLOATS]
    rng = np.random.default_rng(1)
    v = [rng.standard_normal(x[k].shape) for k in wrt]
    try:
        jv = push_forward(lowered.ops, params, [results[k] for k in given], wrt, x, v)
    except NotImplementedError:
        return  # products
    u = [rng.standard_normal(y.shape) for y in jv]
    back = [Value(TensorType("f64", y.shape)) for y in jv]
    b = Builder()
    out = adjoint(b, instance.op.name, attrs, params, dict(zip(given, back, strict=True)), wrt)
    jtu = interpret(module_of((*params, *back), b.ops, out), *x, *u)
    forward = sum(float((a * c).sum()) for a, c in zip(jv, u, strict=True))
    backward = sum(float((a * c).sum()) for a, c in zip(v, jtu, strict=True))
    norm = sum(np.linalg.norm(a) * np.linalg.norm(c) for a, c in zip(jv, u, strict=True))
    assert abs(forward - backward) <= 1e-11 * (abs(forward) + norm + 1)
