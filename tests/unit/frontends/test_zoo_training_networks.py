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
    sizes = {n: int(np.prod(net.constants.shape_of(n))) for n in net.get("parameters")}
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


def test_the_recurrence_is_an_lstm():
    net = zoo.lstm_classifier(width=8, steps=5, classes=3, batch=2)
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
    ],
)
def test_impossible_sizes(text, message):
    with pytest.raises(InputError, match=message):
        zoo.build(text)
