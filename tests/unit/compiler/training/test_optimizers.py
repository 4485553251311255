"""Optimizers against their formulas in NumPy and float64, over 50 updates."""

from collections.abc import Callable

import numpy as np
import pytest
from training_steps import interpreted

import tilewright as tw
from tilewright.ir import Constants, Module

SHAPE = (4, 3)
STEPS = 50
#: loss = sum(p * x), so that each batch x is the gradient by p
LINEAR = """module @net(parameters = ["p"]) {
  graph.func @main(%x: f32[4, 3]) -> f32[] {
    %p = graph.constant(name = "p") : f32[4, 3]
    %0 = graph.multiply(%p, %x) : f32[4, 3]
    %1 = graph.sum(%0, axis = [0, 1], keepdims = false) : f32[]
    graph.return(%1)
  }
}"""
Rule = Callable[[np.ndarray, np.ndarray, dict[str, np.ndarray], int], np.ndarray]


def network() -> Module:
    p = np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)
    return tw.parse(LINEAR).with_constants(Constants({"p": p}))


def gradients(steps: int = STEPS) -> list[np.ndarray]:
    rng = np.random.default_rng(4)
    return [rng.standard_normal(SHAPE).astype(np.float32) for _ in range(steps)]


def parameters(optimizer, rule: Rule, **options) -> tuple[np.ndarray, np.ndarray]:
    """The parameter after all updates, by the step in float64 and by the rule."""
    step = tw.train_step(network(), None, optimizer, loss_scale=None, **options)
    _, state = interpreted(step, [(g,) for g in gradients()], precision="fp64")
    p, slots = network().constants["p"].astype(np.float64), {}
    for t, g in enumerate(gradients(), 1):
        p = rule(p, g.astype(np.float64), slots, t)
    return state["p"], p


def sgd(momentum=0.0, dampening=0.0, nesterov=False, decay=0.0, lr=0.1) -> Rule:
    def rule(p, g, s, t):
        g = g + decay * p
        if momentum:
            s["v"] = g if t == 1 else momentum * s["v"] + (1 - dampening) * g
            g = g + momentum * s["v"] if nesterov else s["v"]
        return p - lr * g

    return rule


def adam(b1=0.9, b2=0.999, eps=1e-8, decay=0.0, decoupled=0.0, lr=1e-3, trust=False) -> Rule:
    def rule(p, g, s, t):
        g = g + (0 if trust else decay) * p
        s["m"] = b1 * s.get("m", 0) + (1 - b1) * g
        s["v"] = b2 * s.get("v", 0) + (1 - b2) * g * g
        r = s["m"] / (1 - b1**t) / (np.sqrt(s["v"] / (1 - b2**t)) + eps)
        if trust:
            r = r + decay * p
            return p - lr * np.linalg.norm(p) / np.linalg.norm(r) * r
        return p * (1 - lr * decoupled) - lr * r

    return rule


def rmsprop(alpha=0.99, eps=1e-8, decay=0.0, momentum=0.0, centered=False, lr=1e-2) -> Rule:
    def rule(p, g, s, t):
        g = g + decay * p
        s["v"] = alpha * s.get("v", 0) + (1 - alpha) * g * g
        s["mean"] = alpha * s.get("mean", 0) + (1 - alpha) * g
        r = g / (np.sqrt(s["v"] - (s["mean"] ** 2 if centered else 0)) + eps)
        s["b"] = momentum * s.get("b", 0) + r
        return p - lr * s["b"]

    return rule


def adagrad(decay=0.0, lr_decay=0.0, start=0.0, eps=1e-10, lr=1e-2) -> Rule:
    def rule(p, g, s, t):
        g = g + decay * p
        s["sum"] = s.get("sum", start) + g * g
        return p - lr / (1 + (t - 1) * lr_decay) * g / (np.sqrt(s["sum"]) + eps)

    return rule


def lion(b1=0.9, b2=0.99, decay=0.0, lr=1e-4) -> Rule:
    def rule(p, g, s, t):
        m = s.get("m", np.zeros_like(p))
        s["m"] = b2 * m + (1 - b2) * g
        return p * (1 - lr * decay) - lr * np.sign(b1 * m + (1 - b1) * g)

    return rule


o = tw.optim
CASES = {
    "sgd": (o.sgd(0.1), sgd()),
    "sgd decay": (o.sgd(0.1, weight_decay=0.01), sgd(decay=0.01)),
    "momentum": (o.sgd(0.1, momentum=0.9, weight_decay=0.01), sgd(0.9, decay=0.01)),
    "dampening": (o.sgd(0.1, momentum=0.9, dampening=0.5), sgd(0.9, 0.5)),
    "nesterov": (o.sgd(0.1, momentum=0.9, nesterov=True), sgd(0.9, nesterov=True)),
    "adam": (o.adam(), adam()),
    "adam decay": (
        o.adam(1e-2, betas=(0.8, 0.9), weight_decay=0.1, eps=1e-3),
        adam(0.8, 0.9, 1e-3, 0.1, lr=1e-2),
    ),
    "adam without a mean": (o.adam(betas=(0.0, 0.99)), adam(0.0, 0.99)),
    "adamw": (o.adamw(1e-2, weight_decay=0.1), adam(decoupled=0.1, lr=1e-2)),
    "lamb": (o.lamb(1e-2, weight_decay=0.1), adam(eps=1e-6, decay=0.1, lr=1e-2, trust=True)),
    "rmsprop": (o.rmsprop(), rmsprop()),
    "rmsprop centered": (
        o.rmsprop(momentum=0.5, centered=True, weight_decay=0.1, alpha=0.9),
        rmsprop(0.9, decay=0.1, momentum=0.5, centered=True),
    ),
    "adagrad": (o.adagrad(), adagrad()),
    "adagrad decay": (
        o.adagrad(0.1, lr_decay=0.1, weight_decay=0.1, initial_accumulator_value=0.5, eps=1e-3),
        adagrad(0.1, 0.1, 0.5, 1e-3, 0.1),
    ),
    "lion": (o.lion(1e-2, weight_decay=0.1), lion(decay=0.1, lr=1e-2)),
}


@pytest.mark.parametrize("name", CASES)
def test_it_equals_its_formula(name):
    got, wanted = parameters(*CASES[name])
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)


def test_a_bound_of_the_norm():
    rule = sgd(0.9)

    def clipped(p, g, s, t):
        return rule(p, g * min(1, 2 / (np.linalg.norm(g) + 1e-6)), s, t)

    got, wanted = parameters(o.sgd(0.1, momentum=0.9), clipped, clip_norm=2.0)
    assert any(np.linalg.norm(g) > 2 for g in gradients())
    np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=2e-6)
