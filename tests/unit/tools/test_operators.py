"""Operators before fusion: Table III of "Data Movement Is All You Need" from the ops of its encoder layer."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_samples import printed, refused

import tilewright as tw
from tilewright.frontends import zoo
from tilewright.ir import InputError
from tilewright.tools.data_movement.fused_encoder import KERNELS
from tilewright.tools.data_movement.operators import GIGA, operator_text, operators_of, sums_by_class

#: words are in units of b j i: samples, tokens, width
UNIT = 8 * 512 * 1024
#: per operator Gflop of 2^30 (flop per element for what is no contraction), words in and out in units
ROWS = {
    "QKV": (24.0, 1.75, 3), "input bias": (3 * 1, 3, 3), "QKT": (4.0, 2, 8), "softmax": (8 * 6, 8, 24),
    "gamma": (4.0, 9, 1), "out": (8.0, 1.25, 1), "output bias": (1, 1, 1), "dropout 1": (1, 1, 2),
    "residual 1": (1, 2, 1), "layer norm 1": (7, 1, 1), "linear 1": (32.0, 2, 4), "linear 1 bias": (4, 4, 4),
    "ReLU": (0, 4, 4), "dropout 2": (4, 4, 8), "linear 2": (32.0, 5, 1), "linear 2 bias": (1, 1, 1),
    "dropout 3": (1, 1, 2), "residual 2": (1, 2, 1), "layer norm 2": (7, 1, 1),
    "layer norm 2 dW": (4, 2, 0), "layer norm 2 dX": (9, 2, 1), "dropout 3 dX": (1, 2, 1),
    "linear 2 dX": (32.0, 2, 4), "linear 2 dW": (32.0, 5, 1), "linear 2 bias dW": (1, 1, 0),
    "dropout 2 dX": (4, 8, 4), "ReLU dX": (0, 8, 4), "linear 1 bias dW": (4, 4, 0),
    "linear 1 dX": (32.0, 5, 1), "linear 1 dW": (32.0, 5, 1), "residual 2 dX": (1, 2, 1),
    "layer norm 1 dW": (4, 2, 0), "layer norm 1 dX": (9, 2, 1), "dropout 1 dX": (1, 2, 1),
    "output bias dW": (1, 1, 0), "out dX": (8.0, 1.25, 1), "out dW": (8.0, 2, 0.25),
    "gamma dX1": (4.0, 2, 8), "gamma dX2": (4.0, 9, 1), "softmax dX": (8 * 5, 24, 8),
    "QKT dX1": (4.0, 9, 1), "QKT dX2": (4.0, 9, 1), "QKV dX": (24.0, 3.75, 1), "QKV dW": (24.0, 4, 0.75),
    "input bias dW": (3, 3, 0), "residual 1 dX": (1, 2, 1),
}  # fmt: skip
SMALL = "encoder_dataflow{batch=2, sequence=5, heads=2, size=3, hidden=8, dropout=0.0}"


@pytest.fixture(scope="module")
def operators():
    return {o.name: o.work for o in operators_of(zoo.build("encoder_dataflow"))}


def test_there_are_the_46_operators_in_their_order(operators):
    assert list(operators) == list(ROWS)
    assert len(ROWS) == 46


@pytest.mark.parametrize("name", ROWS)
def test_operators_are_those_of_the_table(operators, name):
    work, (flops, words_in, words_out) = operators[name], ROWS[name]
    if isinstance(flops, float):
        assert work.work.value == "tensor contraction"
        assert work.flops == flops * GIGA
    else:
        assert work.flops == pytest.approx(flops * UNIT, rel=2e-3)  # beside it what is done per row
    for words, expected in ((work.words_in, words_in), (work.words_out, words_out)):
        assert words == pytest.approx(expected * UNIT, rel=1e-2, abs=1e-2 * UNIT)  # vectors beside tensors


def test_sums_by_class_are_those_of_the_paper():
    rows = {t["work"]: t for t in sums_by_class(operators_of(zoo.build("encoder_dataflow")))}
    shares = {name: round(t["share"], 3) for name, t in rows.items()}
    # the paper prints 99.80, 0.17 and 0.03, which needs the four sums of biases among the normalisations
    assert shares == {
        "tensor contraction": 99.798,
        "statistical normalisation": 0.171,
        "element-wise": 0.031,
        "all": 100.0,
    }
    assert rows["tensor contraction"]["flops"] == 312 * GIGA
    assert rows["statistical normalisation"]["flops"] / GIGA == pytest.approx(0.53516, rel=2e-3)
    assert rows["element-wise"]["flops"] / GIGA == pytest.approx(0.09766, rel=2e-3)
    assert rows["all"]["flops"] / GIGA == pytest.approx(312.6328, abs=1e-3)
    assert [rows[c]["operators"] for c in rows] == [18, 12, 16, 46]
    assert rows["all"]["words"] == pytest.approx(1216.3e6, rel=2e-4)
    assert rows["tensor contraction"]["words"] == pytest.approx(490.7e6, rel=2e-4)


def test_the_twelve_kernels_move_less_than_the_operators():
    dataflow = zoo.build("encoder_dataflow")
    fused = operators_of(dataflow, KERNELS)
    kernels = [o for o in fused if o.name in KERNELS]
    assert len(KERNELS) == len(kernels) == 14  # two of the twelve are used twice
    assert len(fused) == 14 + 18
    before, after = (
        sum(o.work.words_in + o.work.words_out for o in found) for found in (operators_of(dataflow), fused)
    )
    assert sum(o.work.flops for o in fused) == sum(o.work.flops for o in operators_of(dataflow))
    assert after < before
    with pytest.raises(InputError, match="expected operators of the network in groups, got 'nothing'"):
        operators_of(dataflow, {"a": ("nothing",)})


def test_the_operators_compute_the_layer_and_its_gradients():
    dataflow, layer = (
        zoo.build(SMALL),
        zoo.build("encoder_layer{batch=2, sequence=5, width=6, heads=2, hidden=8, dropout=0.0}"),
    )
    rng = np.random.default_rng(0)
    arrays = {
        n: rng.standard_normal(p.tensor.shape)
        for n, p in zip(dataflow.input_names, dataflow.main.params, strict=True)
        if p.tensor.dtype == "f32"
    }
    results = _run(dataflow, arrays | {"seed": np.zeros(2, np.uint32), "step": np.uint32(0)})
    y, dx, dwqkv, dbqkv, dwo, dbo, ds1, db1, dw1, dbl1, dw2, dbl2, ds2, db2 = results
    root = np.sqrt(3.0)  # of the size of a head, which weights of queries hold
    split = {"query": (0, root), "key": (1, 1.0), "value": (2, 1.0)}
    given = {"x": arrays["x"].transpose(1, 2, 0), "cotangent": arrays["cotangent"].transpose(1, 2, 0)}
    wanted = {"x": dx.transpose(1, 2, 0)}
    for name, (n, scale) in split.items():
        flat = lambda w: w.transpose(1, 0, 2).reshape(6, 6)  # noqa: E731
        given[f"attention.{name}.kernel"] = scale * flat(arrays["wqkv"][n])
        given[f"attention.{name}.bias"] = scale * arrays["bqkv"][n].T.reshape(6)
        wanted[f"attention.{name}.kernel"] = flat(dwqkv[n]) / scale
        wanted[f"attention.{name}.bias"] = dbqkv[n].T.reshape(6) / scale
    joined = {
        "attention.project.kernel": ("wo", dwo), "attention.project.bias": ("bo", dbo),
        "attention.norm.gamma": ("scale1", ds1), "attention.norm.beta": ("shift1", db1),
        "mlp.up.kernel": ("w1", dw1), "mlp.up.bias": ("bias1", dbl1), "mlp.down.kernel": ("w2", dw2),
        "mlp.down.bias": ("bias2", dbl2), "mlp.norm.gamma": ("scale2", ds2), "mlp.norm.beta": ("shift2", db2),
    }  # fmt: skip
    for name, (source, gradient) in joined.items():
        flat = lambda w, s=source: w.transpose(2, 1, 0).reshape(6, 6) if s == "wo" else w  # noqa: E731
        given[name], wanted[name] = flat(arrays[source]), flat(gradient)
    backward = tw.vjp(layer, list(wanted), attention=False)
    found = _run(backward, given)
    np.testing.assert_allclose(found[0], y.transpose(1, 2, 0), rtol=1e-9)
    for name, result in zip(wanted, found[1 : 1 + len(wanted)], strict=True):
        np.testing.assert_allclose(result, wanted[name], rtol=1e-7, atol=1e-10, err_msg=name)


def _run(module, arrays):
    return tw.interpret(module, *(arrays[n] for n in module.input_names), precision="fp64")


def test_the_command_prints_the_operators(capsys):
    text = printed(capsys, "explain", f"zoo:{SMALL}", "--operators")
    assert "softmax dX" in text
    assert "46 operators" in text
    facts = json.loads(printed(capsys, "explain", "zoo:digits", "--operators", "--train", "sgd", "--json"))
    assert any(row["operator"].endswith("'") for row in facts["operators"])
    code, message = refused(capsys, "explain", "zoo:digits", "--operators", "--mue")
    assert code == 2
    assert "--mue" in message
    assert refused(capsys, "explain", "zoo:encoder_dataflow{dropout=1.5}")[0] == 2


def test_the_page_has_the_table_as_it_is_computed(operators):
    page = (Path(__file__).parents[3] / "docs" / "data-movement.md").read_text()
    assert operator_text(operators_of(zoo.build("encoder_dataflow"))) in page
    found = (operators_of(zoo.build("encoder_dataflow"), groups) for groups in (None, KERNELS))
    before, after = (sum(o.work.words_in + o.work.words_out for o in ops) / 1e6 for ops in found)
    less = 100 * (1 - after / before)
    assert f"moves {after:.1f} million words instead of\n  {before:.1f}, which is {less:.1f} %" in page
