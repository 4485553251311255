"""GPT-style decoders: published sizes, seeded weights, results of a forward pass written here."""

import gc
import pickle

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontends.weights.random_weights import SeededConstants
from tilewright.ir import InputError

gpt, build = tw.frontends.zoo.gpt, tw.frontends.zoo.build


def forward(weights, tokens, layers, heads, *, tied):
    """Logits in float64, as the GPT-2 paper and its published code define them."""
    w = {name: np.asarray(array, np.float64) for name, array in weights.items()}

    def linear(x, name):
        return x @ w[f"{name}.kernel"].T + w[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        spread = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return centred / spread * w[f"{name}.gamma"] + w[f"{name}.beta"]

    sequence = tokens.shape[1]
    x = w["embed.tokens"][tokens] + w["embed.positions"][:sequence]
    for layer in (f"h{i}" for i in range(layers)):
        joint = linear(norm(x, f"{layer}.attention.norm"), f"{layer}.attention.qkv")
        q, k, v = (np.stack(np.split(part, heads, -1), 1) for part in np.split(joint, 3, -1))
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        scores[..., np.triu(np.ones((sequence, sequence), bool), 1)] = -np.inf
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = weight / weight.sum(-1, keepdims=True) @ v
        x = x + linear(np.concatenate(list(mixed.swapaxes(0, 1)), -1), f"{layer}.attention.project")
        hidden = linear(norm(x, f"{layer}.mlp.norm"), f"{layer}.mlp.up")
        bent = hidden / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)))
        x = x + linear(bent, f"{layer}.mlp.down")
    return norm(x, "head.norm") @ w["embed.tokens" if tied else "head.tokens"].T


@pytest.mark.parametrize("tied", [True, False])
def test_results_are_those_of_a_forward_pass(tied):
    module = gpt(width=24, heads=3, vocabulary=50, sequence=7, context=9, batch=2, tied=tied)
    tw.verify(module)
    tokens = np.random.default_rng(1).integers(0, 50, (2, 7)).astype(np.int32)
    wanted = forward(module.constants, tokens, 2, 3, tied=tied)
    np.testing.assert_allclose(
        tw.interpret(module, tokens, precision="fp64")[0], wanted, rtol=1e-5, atol=1e-6
    )
    assert np.ptp(wanted) > 1
    earlier = tokens.copy()
    earlier[:, -1] += 1
    (changed,) = tw.interpret(module, earlier, precision="fp64")
    np.testing.assert_array_equal(changed[:, :-1], tw.interpret(module, tokens, precision="fp64")[0][:, :-1])
    assert not np.array_equal(changed[:, -1], wanted[:, -1])


def test_logits_of_the_last_token_alone():
    size = {"width": 16, "heads": 2, "layers": 1, "sequence": 5}
    tokens = np.arange(5, dtype=np.int32)[None]
    every = tw.interpret(gpt(**size), tokens)[0]
    last = tw.interpret(gpt(logits="last", **size), tokens)[0]
    np.testing.assert_allclose(last, every[:, -1:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("gpt2_small", 124_439_808), ("gpt2_medium", 354_823_168), ("gpt2_xl", 1_557_611_200)],
)
def test_sizes_are_the_published_ones(name, parameters):
    """Weights are only measured here, not made."""
    constants = build(name).constants
    assert sum(int(np.prod(constants.form(n)[0])) for n in constants if "number" not in n) == parameters


def test_weights_follow_the_seed_and_go_when_nobody_holds_them():
    constants = gpt(seed=1).constants
    name = "h0.mlp.up.kernel"
    first = constants[name]
    assert constants[name] is first
    assert first.shape == (256, 64)
    assert not first.flags.writeable
    copy = first.copy()
    del first
    gc.collect()
    np.testing.assert_array_equal(constants[name], copy)
    assert not np.array_equal(gpt(seed=2).constants[name], copy)


def test_constants_that_are_made_are_a_mapping_like_any_other():
    constants = SeededConstants({"a.gamma": (3,), "b": (2, 2)}, 0, {"c": np.ones(1, np.float32)})
    assert list(constants) == ["a.gamma", "b", "c"]
    assert len(constants) == 3
    assert "b" in constants
    assert constants.updated({}) is constants
    assert constants.only(frozenset("bc") | {"a.gamma"}) is constants
    more = constants.updated({"b": np.zeros(1), "d": np.zeros(2)})
    assert set(more) == {"a.gamma", "b", "c", "d"}
    assert more["b"].shape == (1,)
    assert (more.form("d"), more.form("x")) == (((2,), np.float64), None)
    assert more.form("a.gamma") == ((3,), np.float32)
    held = constants["a.gamma"]
    assert more["a.gamma"] is held  # drawn once while it is held
    loaded = pickle.loads(pickle.dumps(more))  # noqa: S301  written here
    assert list(loaded) == list(more)
    assert not loaded["d"].flags.writeable
    np.testing.assert_array_equal(loaded["a.gamma"], held)
    assert list(constants.only(frozenset("b"))) == ["b"]
    with pytest.raises(KeyError):
        constants["x"]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("gpt{width=10, heads=4}", "multiple of 4 heads"),
        ("gpt{layers=0}", "layers of 1 to 1024"),
        ("gpt{sequence=65}", "context of at least the sequence 65"),
        ("gpt{logits=first}", "all or last"),
        ("gpt{tied=1}", "tied to be true or false"),
        ("gpt{depth=3}", "expected options of gpt .*layers.*depth"),
        ("gpt{layers}", "expected options"),
        ("gpt{", "expected a network of the zoo"),
    ],
)
def test_impossible_sizes_are_refused(name, fault):
    with pytest.raises(InputError, match=fault):
        build(name)
