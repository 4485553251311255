"""Losses and their gradients against NumPy in float64, and what they refuse."""

import numpy as np
import pytest
from training_steps import interpreted

import tilewright as tw
from tilewright.ir import Constants

RNG = np.random.default_rng(5)


def loss_and_gradient(loss, prediction: np.ndarray, *targets: np.ndarray) -> tuple[float, np.ndarray]:
    """The loss of a prediction that is a parameter, and its gradient: what SGD with rate 1 takes off."""
    shape = ", ".join(map(str, prediction.shape))
    text = f"""module @net(parameters = ["p"]) {{
      graph.func @main() -> f32[{shape}] {{
        %p = graph.constant(name = "p") : f32[{shape}]
        graph.return(%p)
      }}
    }}"""
    module = tw.parse(text).with_constants(Constants({"p": prediction.astype(np.float32)}))
    step = tw.train_step(module, loss, tw.optim.sgd(1.0), loss_scale=None)
    ((value,),), state = interpreted(step, [targets], precision="fp64")
    return float(value), prediction.astype(np.float32) - state["p"]


def differences(value, x: np.ndarray, h: float = 1e-6) -> np.ndarray:
    """The gradient of a function of an array by central differences."""
    x = x.astype(np.float32).astype(np.float64)
    out = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += h
        down[i] -= h
        out[i] = (value(up) - value(down)) / (2 * h)
    return out


def check(loss, value, prediction: np.ndarray, *targets: np.ndarray) -> None:
    got, gradient = loss_and_gradient(loss, prediction, *targets)
    exact = prediction.astype(np.float32).astype(np.float64)
    np.testing.assert_allclose(got, value(exact), rtol=1e-6)
    np.testing.assert_allclose(gradient, differences(value, prediction), rtol=1e-4, atol=1e-7)


def rows_of(x: np.ndarray) -> np.ndarray:
    shifted = x - x.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def cross_entropy(labels, smoothing=0.0, ignored=None, weights=None, total=False):
    """The formula of PyTorch's documentation."""

    def value(x: np.ndarray) -> float:
        logs, classes = rows_of(x), x.shape[-1]
        w = np.ones(classes) if weights is None else np.asarray(weights, np.float64)
        loss, norm = 0.0, 0.0
        for row, label in zip(logs.reshape(-1, classes), labels.ravel(), strict=True):
            if label == ignored:
                continue
            loss -= (1 - smoothing) * w[label] * row[label] + smoothing / classes * (w * row).sum()
            norm += w[label]
        return loss if total else loss / norm

    return value


LABELS = np.array([2, 0, 4, 3, 1, 1], np.int32)
HOLES = np.array([2, -100, 4, -100, 1, 1], np.int32)
WEIGHTS = [0.5, 2.0, 1.0, 0.25, 3.0]


@pytest.mark.parametrize(
    ("labels", "options", "formula"),
    [
        (LABELS, {}, {}),
        (LABELS, {"reduction": "sum"}, {"total": True}),
        (LABELS, {"label_smoothing": 0.25}, {"smoothing": 0.25}),
        (HOLES, {"ignore_index": -100}, {"ignored": -100}),
        (LABELS, {"weights": WEIGHTS}, {"weights": WEIGHTS}),
        (
            HOLES,
            {"weights": WEIGHTS, "ignore_index": -100, "label_smoothing": 0.125},
            {"weights": WEIGHTS, "ignored": -100, "smoothing": 0.125},
        ),
    ],
)
def test_cross_entropy(labels, options, formula):
    x = RNG.standard_normal((6, 5)) * 3
    check(tw.losses.cross_entropy(**options), cross_entropy(labels, **formula), x, labels)


def test_cross_entropy_of_images_and_of_sequences():
    x, labels = RNG.standard_normal((2, 3, 5)), LABELS.reshape(2, 3)
    check("cross_entropy", cross_entropy(labels), x, labels)
    first = loss_and_gradient(tw.losses.cross_entropy(axis=1), np.moveaxis(x, 2, 1), labels)
    last = loss_and_gradient("cross_entropy", x, labels)
    np.testing.assert_allclose(first[0], last[0], rtol=1e-12)
    np.testing.assert_allclose(np.moveaxis(first[1], 1, 2), last[1], rtol=1e-12)


def test_cross_entropy_of_large_logits_is_finite():
    x = np.array([[1e4, -1e4, 0.0], [3e38, 0.0, 0.0]])
    value, gradient = loss_and_gradient("cross_entropy", x, np.array([1, 0], np.int32))
    assert value == 1e4
    assert np.isfinite(gradient).all()


def test_a_label_out_of_range_makes_the_loss_nan_and_moves_nothing():
    x = RNG.standard_normal((3, 5))
    for wrong in (5, -1):
        value, gradient = loss_and_gradient("cross_entropy", x, np.array([0, wrong, 1], np.int32))
        assert np.isnan(value)
        assert not gradient[1].any()
        assert np.isfinite(gradient).all()


def test_squares_and_magnitudes():
    x, t = RNG.standard_normal((4, 3)), RNG.standard_normal((4, 3)).astype(np.float32)
    check("mse", lambda p: ((p - t) ** 2).mean(), x, t)
    check(tw.losses.mse(reduction="sum"), lambda p: ((p - t) ** 2).sum(), x, t)
    check("l1", lambda p: np.abs(p - t).mean(), x, t)

    def huber(p: np.ndarray) -> float:
        d = np.abs(p - t)
        return np.where(d <= 0.5, d * d / 2, 0.5 * (d - 0.25)).mean()

    check(tw.losses.huber(delta=0.5), huber, x, t)


@pytest.mark.parametrize("factor", [1.0, 2.5])
def test_binary_cross_entropy(factor):
    x, t = RNG.standard_normal((4, 3)) * 5, RNG.uniform(0, 1, (4, 3)).astype(np.float32)

    def value(p: np.ndarray) -> float:
        chance = 1 / (1 + np.exp(-p))
        return -(factor * t * np.log(chance) + (1 - t) * np.log(1 - chance)).mean()

    check(tw.losses.bce(pos_weight=factor), value, x, t)


def test_binary_cross_entropy_of_large_logits_is_finite():
    x, t = np.array([[1e4, -1e4]]), np.array([[0.0, 1.0]], np.float32)
    for factor in (1.0, 2.0):
        value, gradient = loss_and_gradient(tw.losses.bce(pos_weight=factor), x, t)
        assert value == 1e4 * (1 + factor) / 2
        assert np.isfinite(gradient).all()


def test_an_own_loss_is_a_function_of_tensors():
    x, t = RNG.standard_normal((4, 3)), RNG.standard_normal((4, 3)).astype(np.float32)

    def quartic(prediction, target):
        return ((prediction - target) ** 4).mean()

    check(quartic, lambda p: ((p - t) ** 4).mean(), x, t)


def test_what_is_refused():
    x = RNG.standard_normal((4, 3))
    for loss, sentence in [
        ("entropy", "expected a loss among cross_entropy, .*, got 'entropy'"),
        (3, "expected a loss or its name, got int"),
        (lambda p, t: p - t, r"expected a loss that is one number, a scalar of floats, got f32\[4, 3\]"),
        (lambda p: p.sum(), "expected the loss '<lambda>' to take 2 tensors"),
        (lambda p, t: 3.0, "expected a tensor from the loss '<lambda>', got float"),
        (lambda p, t: (p @ t).sum(), "the loss '<lambda>': .*inner extents"),
        (tw.losses.cross_entropy(weights=[1, 2]), "expected 3 class weights, one per class, got 2"),
        (tw.losses.cross_entropy(axis=2), r"expected logits with a dimension 2, got f32\[4, 3\]"),
    ]:
        with pytest.raises(tw.InputError, match=sentence):
            loss_and_gradient(loss, x, x.astype(np.float32))
    for make, sentence in [
        (
            lambda: tw.losses.cross_entropy(label_smoothing=1.0),
            "expected label_smoothing from 0 to less than 1",
        ),
        (lambda: tw.losses.mse(reduction="max"), "expected the reduction mean or sum, got 'max'"),
        (lambda: tw.losses.huber(delta=0), "expected a positive delta"),
        (lambda: tw.losses.bce(pos_weight=-1), "expected a positive pos_weight"),
        (lambda: tw.losses.cross_entropy(weights=[[1]]), "expected class weights as a vector"),
    ]:
        with pytest.raises(tw.InputError, match=sentence):
            make()
