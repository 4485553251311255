"""Networks of the zoo that are trained: published sizes, and the recurrence beside its formula in NumPy."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import InputError

zoo = tw.frontends.zoo


def test_bert_base_has_the_published_size():
    """110 M parameters: 512 positions, a pooler and two kinds of segments (Devlin et al. 2019, section 3)."""
    net = zoo.build("bert_base_mlm")
    tw.verify(net)
    sizes = {n: int(np.prod(net.constants.form(n)[0])) for n in net.get("parameters")}
    block = sum(s for n, s in sizes.items() if n.startswith("h0."))
    assert block == 12 * 768**2 + 13 * 768
    assert sum(s for n, s in sizes.items() if n.startswith("h")) - 12 * block == 768**2 + 3 * 768 + 30522
    absent = (512 - 128) * 768 + 2 * 768 + 768**2 + 768  # positions, segments, pooler
    head = 768**2 + 3 * 768 + 30522
    assert sum(sizes.values()) - head + absent == pytest.approx(110e6, rel=0.01)
    assert net.main.result_types[0].shape == (128, 30522)
    assert sum(op.name == "graph.dropout" for op in net.main.body.ops) == 1 + 3 * 12


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("together", [2, 16])
def test_the_recurrence_is_an_lstm(together):
    net = zoo.lstm_classifier(width=8, steps=5, classes=3, batch=2, together=together)
    tw.verify(net)
    c = {n: net.constants[n].astype(np.float64) for n in net.get("parameters")}
    data = np.random.default_rng(0).standard_normal((2, 5, 8))
    x = data
    for layer in ("l0", "l1"):
        h, cell, out = np.zeros((2, 8)), np.zeros((2, 8)), []
        for t in range(5):
            gates = x[:, t] @ c[f"{layer}.input.kernel"].T + c[f"{layer}.input.bias"]
            gates = gates + h @ c[f"{layer}.hidden.kernel"].T
            i, f, g, o = np.split(gates, 4, axis=1)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(cell)
            out.append(h)
        x = np.stack(out, 1)
    expected = x[:, -1] @ c["head.logits.kernel"].T + c["head.logits.bias"]
    np.testing.assert_allclose(tw.interpret(net, data, precision="fp64")[0], expected, rtol=1e-12)


def gated(c, scope, parts, hidden):
    """States of gated recurrent units as in `torch.nn.GRU`'s documentation, step by step."""
    states = []
    for part in parts:
        r, z, n = np.split(part, 3, axis=1)
        recurrent = hidden @ c[f"{scope}.hidden.kernel"].T + c[f"{scope}.hidden.bias"]
        r_hidden, z_hidden, n_hidden = np.split(recurrent, 3, axis=1)
        fresh, kept = np.tanh(n + sigmoid(r + r_hidden) * n_hidden), sigmoid(z + z_hidden)
        hidden = (1 - kept) * fresh + kept * hidden
        states.append(hidden)
    return states


def both_ways(c, scope, steps):
    """States of both directions, each in the order of the steps."""
    states = []
    for way in ("forward", "backward"):
        here = f"{scope}.{way}"
        parts = [x @ c[f"{here}.input.kernel"].T + c[f"{here}.input.bias"] for x in steps]
        turn = -1 if way == "backward" else 1
        start = np.zeros((len(parts[0]), parts[0].shape[1] // 3))
        states.append(gated(c, here, parts[::turn], start)[::turn])
    return states


def test_speech_is_read_in_both_directions():
    net = zoo.deep_speech(layers=2, width=4, channels=2, frequencies=9, frames=6, characters=5, batch=2)
    tw.verify(net)
    c = {n: net.constants[n].astype(np.float64) for n in net.constants}
    assert {n for n in c if n not in net.parameters} == {n for n in c if "moving_" in n}
    data = np.random.default_rng(0).standard_normal((2, 1, 9, 6))

    def norm(x, name, axis):
        parts = ("gamma", "beta", "moving_mean", "moving_var")
        shape = [-1 if i == axis else 1 for i in range(x.ndim)]
        gamma, beta, mean, var = (c[f"{name}.{p}"].reshape(shape) for p in parts)
        return (x - mean) / np.sqrt(var + 1e-5) * gamma + beta

    x = data
    for number, strides in enumerate(((2, 2), (2, 1))):
        kernel = c[f"conv{number}.kernel"]
        around = [(0, 0), (0, 0), *((k // 2, k // 2) for k in kernel.shape[2:])]
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, around), kernel.shape[2:], (2, 3))
        y = np.einsum("nchwij,kcij->nkhw", windows[:, :, :: strides[0], :: strides[1]], kernel)
        x = np.clip(norm(y, f"conv{number}.norm", 1), 0, 20)
    steps = list(x.transpose(3, 0, 1, 2).reshape(3, 2, -1))
    for layer in range(2):
        if layer:
            steps = [norm(s, f"l{layer}.norm", 1) for s in steps]
        steps = [a + b for a, b in zip(*both_ways(c, f"l{layer}", steps), strict=True)]
    flat = norm(np.concatenate(steps), "head.norm", 1)
    expected = flat @ c["head.logits.kernel"].T + c["head.logits.bias"]
    np.testing.assert_allclose(tw.interpret(net, data, precision="fp64")[0], expected, rtol=1e-10, atol=1e-12)


def test_a_translator_looks_where_the_paper_says():
    net = zoo.attention_rnn(width=4, vocabulary=7, source=3, target=2, batch=2)
    tw.verify(net)
    c = {n: net.constants[n].astype(np.float64) for n in net.parameters}
    assert set(c) == set(net.constants)
    rng = np.random.default_rng(0)
    words, before = (rng.integers(0, 7, (2, n)).astype(np.int32) for n in (3, 2))
    forward, backward = both_ways(c, "encoder", [c["encoder.words"][w] for w in words.T])
    memory = np.concatenate([np.stack(forward, 1), np.stack(backward, 1)], 2)
    keys = memory @ c["decoder.attention.memory.kernel"].T + c["decoder.attention.memory.bias"]
    state = np.tanh(backward[0] @ c["decoder.start.kernel"].T + c["decoder.start.bias"])
    rows = []
    for word in c["decoder.words"][before.T]:
        bent = np.tanh(keys + (state @ c["decoder.attention.state.kernel"].T)[:, None])
        scores = np.exp(bent @ c["decoder.attention.score"])
        mixed = np.einsum("bs,bsw->bw", scores / scores.sum(1, keepdims=True), memory)
        gates = word @ c["decoder.input.kernel"].T + c["decoder.input.bias"]
        (state,) = gated(c, "decoder", [gates + mixed @ c["decoder.sum.kernel"].T], state)
        rows.append(np.concatenate([state, mixed, word], 1))
    joint = np.tanh(np.concatenate(rows) @ c["head.hidden.kernel"].T + c["head.hidden.bias"])
    expected = joint @ c["head.logits.kernel"].T + c["head.logits.bias"]
    got = tw.interpret(net, words, before, precision="fp64")[0]
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-12)


def test_the_network_for_digits_trains_no_statistics():
    net = zoo.build("digits{batch=2,width=4}")
    tw.verify(net)
    assert net.main.result_types[0].shape == (2, 10)
    statistics = {n for n in net.constants if "moving_" in n}
    assert len(statistics) == 6
    assert set(net.parameters) == set(net.constants) - statistics
    assert [op["rate"] for op in net.main.body.ops if op.name == "graph.dropout"] == [0.25, 0.5]
    plain = zoo.build("linear_classifier{batch=3}")
    data = np.random.default_rng(0).standard_normal((3, 64))
    c = {n: a.astype(np.float64) for n, a in plain.constants.items()}
    expected = data @ c["logits.kernel"].T + c["logits.bias"]
    np.testing.assert_allclose(tw.interpret(plain, data, precision="fp64")[0], expected, rtol=1e-12)


@pytest.mark.parametrize("lookups", [1, 3])
def test_recommendations_are_those_of_the_paper(lookups):
    net = zoo.dlrm(tables=3, rows=7, width=4, lookups=lookups, dense=5, hidden=6, batch=2)
    tw.verify(net)
    c = {n: net.constants[n].astype(np.float64) for n in net.parameters}
    assert len(c) == 3 + 6 + 6
    rng = np.random.default_rng(0)
    dense, indices = rng.standard_normal((2, 5)), rng.integers(0, 7, (2, 3, lookups)).astype(np.int32)

    def layers(x, part, bent):
        for i in range(3):
            x = x @ c[f"{part}.dense{i}.kernel"].T + c[f"{part}.dense{i}.bias"]
            x = np.maximum(x, 0) if bent or i < 2 else x
        return x

    vectors = [layers(dense, "bottom", True)]
    vectors += [c[f"table{t}.rows"][indices[:, t]].sum(1) for t in range(3)]
    products = [(vectors[i] * vectors[j]).sum(1) for i in range(4) for j in range(i)]
    joint = np.concatenate([vectors[0], np.stack(products, 1)], 1)
    expected = layers(joint, "top", False)[:, 0]
    (got,) = tw.interpret(net, dense, indices, precision="fp64")
    np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("digits{size=7}", "expected an even size, got 7"),
        ("digits{width=0}", "expected width of 1 or more, got 0"),
        ("dlrm{hidden=1}", "expected hidden of 1 or more, got 0"),
        ("bert{heads=3}", "expected width to be a multiple of 3 heads, got 64"),
        ("bert{layers=0}", "expected layers of 1 or more, got 0"),
        ("lstm_classifier{steps=0}", "expected steps of 1 or more, got 0"),
        ("lstm_classifier{together=0}", "expected together of 1 or more, got 0"),
        ("deep_speech{frames=5}", "expected an even number of frames, got 5"),
        ("deep_speech{characters=0}", "expected characters of 1 or more, got 0"),
        ("attention_rnn{source=0}", "expected source of 1 or more, got 0"),
    ],
)
def test_impossible_sizes(text, message):
    with pytest.raises(InputError, match=message):
        zoo.build(text)
