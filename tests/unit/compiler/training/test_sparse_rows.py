"""Sparse parameters: only rows that a run reads change, by the whole gradient of each."""

import numpy as np
import pytest
from training_steps import first_state, interpreted

import tilewright as tw
from tilewright.ir import Constants, Module

ROWS, WIDTH = 12, 3
TEXT = """module @net(parameters = ["table", "w"]) {
  graph.func @main(%ids: i32[5], %others: i32[2, 2]) -> f32[9, 2] {
    %table = graph.constant(name = "table") : f32[12, 3]
    %w = graph.constant(name = "w") : f32[2, 3]
    %0 = graph.take(%table, %ids, axis = 0, mode = "clip", batch_dims = 0) : f32[5, 3]
    %1 = graph.take(%table, %others, axis = 0, mode = "wrap", batch_dims = 0) : f32[2, 2, 3]
    %2 = graph.reshape(%1, newshape = [4, 3]) : f32[4, 3]
    %3 = graph.concatenate(%0, %2, axis = 0) : f32[9, 3]
    %4 = graph.dense(%3, %w) : f32[9, 2]
    graph.return(%4)
  }
}"""


def network(text: str = TEXT) -> Module:
    rng = np.random.default_rng(0)
    shapes = {"table": (ROWS, WIDTH), "w": (2, WIDTH)}
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    return tw.parse(text).with_constants(Constants(arrays))


def batches(count: int) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(1)
    return [
        [
            rng.integers(0, 6, 5).astype(np.int32),
            rng.integers(-3, 0, (2, 2)).astype(np.int32),
            rng.standard_normal((9, 2)).astype(np.float32),
        ]
        for _ in range(count)
    ]


def touched(batch: list[np.ndarray]) -> set[int]:
    return {int(i) % ROWS for part in batch[:2] for i in part.ravel()}


def dense_gradient(state: dict[str, np.ndarray], batch: list[np.ndarray]) -> np.ndarray:
    """The gradient of the mean square by the table."""
    places = np.concatenate([batch[0], batch[1].ravel() % ROWS])
    apart = 2 * (state["table"][places].astype(np.float64) @ state["w"].T - batch[2]) / batch[2].size
    out = np.zeros((ROWS, WIDTH))
    np.add.at(out, places, apart @ state["w"])
    return out


def test_sgd_and_adagrad_are_as_dense_ones():
    """Rows without a gradient stay as they are in both."""
    for optimizer in (tw.optim.sgd(0.1), tw.optim.adagrad(0.1)):
        for options in ({}, {"clip_norm": 0.5}, {"loss_scale": "dynamic"}):
            _, dense = interpreted(tw.train_step(network(), "mse", optimizer, **options), batches(8))
            sparse = tw.train_step(network(), "mse", optimizer, sparse="table", **options)
            _, state = interpreted(sparse, batches(8))
            for name, value in dense.items():
                np.testing.assert_allclose(state[name], value, rtol=1e-5, atol=1e-6)


def test_adam_changes_rows_that_are_read_and_no_other():
    """The formula of SparseAdam: moments of other rows do not decay either."""
    step = tw.train_step(network(), "mse", tw.optim.adam(0.1), sparse=["tab*"], loss_scale=None)
    state = first_state(step)
    p, m, v = state["table"].astype(np.float64), np.zeros((ROWS, WIDTH)), np.zeros((ROWS, WIDTH))
    for t, batch in enumerate(batches(8), 1):
        g = dense_gradient({**state, "table": p}, batch)
        for i in touched(batch):
            m[i] = 0.9 * m[i] + 0.1 * g[i]
            v[i] = 0.999 * v[i] + 0.001 * g[i] ** 2
            p[i] -= 0.1 * m[i] / (1 - 0.9**t) / (np.sqrt(v[i] / (1 - 0.999**t)) + 1e-8)
        _, state = interpreted(step, [batch], state, precision="fp64")
        np.testing.assert_allclose(state["table"], p, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(state["table.v"], v, rtol=1e-5, atol=1e-8)


def test_a_compiled_step_follows_the_interpreter():
    step = tw.train_step(network(), "mse", tw.optim.adam(0.01), sparse="table", clip_norm=1.0)
    with tw.compile(step, "opencl") as exe:
        for batch in batches(6):
            exe.step(*batch)
        got = dict(exe.state)
    _, wanted = interpreted(step, batches(6))
    for name in ("table", "table.m", "w"):
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-4, atol=1e-5)


def test_what_is_refused():
    for options, sentence in [
        (
            {"sparse": "tables"},
            "expected names of trained parameters to be sparse, got 'tables' .did you mean",
        ),
        (
            {"sparse": "w"},
            "expected a sparse parameter of which graph.take reads rows .* 'w' is read by graph.dense",
        ),
        (
            {"optimizer": tw.optim.lion()},
            "expected an optimizer that can leave rows of 'table' alone .* got lion$",
        ),
        ({"optimizer": tw.optim.adamw()}, "got adamw with weight_decay"),
        ({"accumulate": 2}, "expected no sparse parameters with accumulate, 'table' is sparse"),
    ]:
        with pytest.raises(tw.InputError, match=sentence):
            tw.train_step(network(), "mse", **{"optimizer": "adam", "sparse": "table", **options})
