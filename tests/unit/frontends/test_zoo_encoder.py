"""The layer of a transformer in the zoo: its size, its formula in NumPy, gradients, and refused options."""

import math

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import InputError

zoo = tw.frontends.zoo
SMALL = {"batch": 2, "sequence": 5, "width": 8, "heads": 2, "hidden": 12}
DATA = np.random.default_rng(0).standard_normal((2, 5, 8))


def test_the_defaults_are_those_of_the_paper():
    net = zoo.build("encoder_layer")
    tw.verify(net)
    assert net.main.params[0].type == net.main.result_types[0]
    assert net.main.result_types[0].shape == (8, 512, 1024)
    sizes = {n: int(np.prod(net.constants.form(n)[0])) for n in net.parameters}
    assert sum(sizes.values()) == 12 * 1024**2 + 13 * 1024
    assert [op["rate"] for op in net.main.body.ops if op.name == "graph.dropout"] == [0.1] * 4


def layer(c, x, activation, norm, causal):
    """The layer in NumPy, without dropout."""

    def linear(z, name):
        return z @ c[f"{name}.kernel"].T + c[f"{name}.bias"]

    def normed(z, name):
        z = z - z.mean(-1, keepdims=True)
        return z / np.sqrt((z * z).mean(-1, keepdims=True) + 1e-5) * c[f"{name}.gamma"] + c[f"{name}.beta"]

    def attention(z):
        q, k, v = (
            linear(z, f"attention.{n}").reshape(2, 5, 2, 4).swapaxes(1, 2) for n in ("query", "key", "value")
        )
        weights = np.exp(q @ k.swapaxes(2, 3) / 2)
        weights = np.tril(weights) if causal else weights
        mixed = weights / weights.sum(-1, keepdims=True) @ v
        return linear(mixed.swapaxes(1, 2).reshape(2, 5, 8), "attention.project")

    def network(z):
        u = linear(z, "mlp.up")
        bent = np.maximum(u, 0) if activation == "relu" else u / 2 * (1 + np.vectorize(math.erf)(u / 2**0.5))
        return linear(bent, "mlp.down")

    for name, part in (("attention.norm", attention), ("mlp.norm", network)):
        x = normed(x + part(x), name) if norm == "post" else x + part(normed(x, name))
    return x


@pytest.mark.parametrize(
    ("activation", "norm", "causal"), [("relu", "post", False), ("gelu", "pre", True), ("gelu", "post", True)]
)
def test_the_layer_is_its_formula(activation, norm, causal):
    net = zoo.encoder_layer(**SMALL, activation=activation, norm=norm, causal=causal)
    tw.verify(net)
    c = {n: a.astype(np.float64) for n, a in net.constants.items()}
    (got,) = tw.interpret(net, DATA, precision="fp64")
    np.testing.assert_allclose(got, layer(c, DATA, activation, norm, causal), rtol=1e-7, atol=1e-9)


def test_joined_projections_are_the_same_layer():
    net, joined = (zoo.encoder_layer(**SMALL, projections=p) for p in ("apart", "joined"))
    c = dict(net.constants.items())
    parts = ("query", "key", "value")
    whole = {f"attention.joined.{w}": np.concatenate([c[f"attention.{p}.{w}"] for p in parts])
             for w in ("kernel", "bias")}  # fmt: skip
    shared = {n: c[n] for n in joined.parameters if n not in whole}
    assert len(shared) == len(joined.parameters) - 2
    (wanted,) = tw.interpret(net, DATA, precision="fp64")
    joined = joined.with_constants({**joined.constants, **shared, **whole})
    (got,) = tw.interpret(joined, DATA, precision="fp64")
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


def test_a_step_of_the_layer_trains_all_its_parameters():
    net = zoo.encoder_layer(**SMALL)
    step = tw.train_step(net, "mse", tw.optim.sgd(lr=1.0))
    x, y = DATA.astype(np.float32), DATA[::-1].astype(np.float32)
    _, state = tw.interpret_step(step, [x, y])
    unmoved = {n for n in net.parameters if np.array_equal(state[n], net.constants[n])}
    assert unmoved == set()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("heads=3", "expected width to be a multiple of 3 heads, got 1024"),
        ("hidden=0", "expected hidden of 1 or more, got 0"),
        ("activation=tanh", "expected activation relu or gelu"),
        ("norm=both", "norm post or pre"),
        ("causal=1", "causal true or false"),
        ("projections=both", "expected projections apart or joined, got 'both'"),
        ("dropout=1.0", "expected a rate of dropout from 0 to less than 1, got 1.0"),
        ("dropout=0.5x", "expected a rate of dropout from 0 to less than 1, got '0.5x'"),
    ],
)
def test_refused_options(options, message):
    with pytest.raises(InputError, match=message):
        zoo.build(f"encoder_layer{{{options}}}")
