"""Inputs of ONNX models: open extents, batches nobody names, and inputs fixed to values."""

import json
import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.frontends.onnx import ImportNote
from tilewright.tools.cli import main
from tilewright.tools.irdump.command import main as irdump

F32, I64 = TensorProto.FLOAT, TensorProto.INT64


def a_model(nodes, inputs, outputs=("y",), constants=None):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(n, F32, None) for n in outputs],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def relu(shape, *more):
    """A model of one input `x` of a shape, beside others that it returns as they are."""
    inputs = {"x": (F32, shape)} | {f"x{i}": (F32, s) for i, s in enumerate(more)}
    return a_model(
        [helper.make_node("Relu", [n], [f"y{n}"]) for n in inputs], inputs, [f"y{n}" for n in inputs]
    )


def shapes_of(model, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ImportNote)
        return [t.shape for t in tw.frontends.onnx.load(model, **options).input_types]


@pytest.mark.parametrize("mark", ["?", "*", "-1", "None"])
def test_marks_without_a_name_stand_for_extents_of_their_own(mark):
    assert shapes_of(relu([mark, 3, mark, mark]), shapes={"x": (1, 3, 48, 192)}) == [(1, 3, 48, 192)]


@pytest.mark.parametrize("name", ["batch", "batch_size", "N", "unk__214", "s77", "p2o.DynamicDimension.0"])
def test_a_batch_that_nobody_gives_is_one_and_said(name):
    model = relu([name, 3], [2, name, 4])
    with pytest.warns(ImportNote) as notes:
        module = tw.frontends.onnx.load(model)
    assert [t.shape for t in module.input_types] == [(1, 3), (2, 1, 4)]
    assert [str(n.message) for n in notes] == [f"graph: '{name}' is taken as 1; --shape {name}=... sets it"]
    assert notes[0].filename == __file__
    assert shapes_of(model, shapes={name: 5}) == [(5, 3), (2, 5, 4)]


def test_a_batch_without_a_name_is_one_and_said():
    with pytest.warns(ImportNote, match=r"the batch of x is taken as 1; --shape x=\.\.\.,3 sets it"):
        assert tw.frontends.onnx.load(relu([None, 3])).input_types[0].shape == (1, 3)


@pytest.mark.parametrize(
    ("model", "got", "options", "python"),
    [
        (relu(["n", 3, "h", "w"]), "x (n, 3, h, w)", "--shape h=... --shape w=...", "'h': ..., 'w': ..."),
        (relu(["batch", "?", "w"]), "x (batch, ?, w)", "--shape x=1,...,...", "'x': (1,...,...)"),
        (relu(["samples"]), "x (samples)", "--shape samples=...", "'samples': ..."),
        (relu(["seq_len", 8]), "x (seq_len, 8)", "--shape seq_len=...", "'seq_len': ..."),
        (relu([None]), "x (?)", "--shape x=...", "'x': ..."),
        (relu(None), "x of unknown rank", "--shape x=...,", "'x': (...,)"),
        (relu([2, "t"], [2, "t"]), "x (2, t), x0 (2, t)", "--shape t=...", "'t': ..."),
    ],
)  # fmt: skip
def test_other_open_extents_are_asked_for_all_at_once(model, got, options, python):
    with pytest.raises(tw.InputError) as caught:
        tw.frontends.onnx.load(model)
    assert str(caught.value) == (
        f"graph: expected static shapes, got {got}; give {options} (in Python shapes={{{python}}})"
    )


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": (2, 4)}, r"expected a shape for x that fits \(batch, 3\), got \(2, 4\)"),
        ({"z": (2, 3)}, r"inputs or symbolic dimensions of the model \(batch, x\), got z"),
        ({"x": (2, 3), "batch": 4}, "expected one extent of 'batch', got 4 and 2"),
        ({"batch": (1, 2)}, "expected one extent for the dimension 'batch'"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(shapes, message):
    with pytest.raises(tw.InputError, match=message):
        tw.frontends.onnx.load(relu(["batch", 3]), shapes=shapes)


def rate_model():
    """Two networks in one: `sr` says which, and each branch takes rows of its own length alone."""
    branches = {}
    for key, rate in (("then_branch", 16000), ("else_branch", 8000)):
        name = f"y{rate}"
        reshape = helper.make_node("Reshape", ["x", f"s{rate}"], [name])
        constant = onnx.numpy_helper.from_array(np.array([rate // 4000, -1]), f"s{rate}")
        out = helper.make_tensor_value_info(name, F32, None)
        branches[key] = helper.make_graph([reshape], key, [], [out], [constant])
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["is"]),
        helper.make_node("If", ["is"], ["y"], **branches),
    ]
    return a_model(nodes, {"x": (F32, [6]), "sr": (I64, [])}, constants={"rate": np.array(16000)})


def test_a_branch_that_an_input_chooses_asks_for_its_value():
    with pytest.raises(tw.UnsupportedError) as caught:
        tw.frontends.onnx.load(rate_model())
    message = str(caught.value)
    assert "If: expected the condition, whose then_branch cannot be computed (" in message
    assert "), to be constant, got a value that depends on 'sr'" in message
    assert message.endswith("--constant sr=... fixes a value at import (in Python constants={'sr': ...})")


def test_constants_choose_a_branch():
    module = tw.frontends.onnx.load(rate_model(), constants={"sr": 8000})
    assert module.input_names == ("x",)
    assert module.main.result_types[0].shape == (2, 3)


def test_branches_of_two_types_ask_for_the_value_that_chooses():
    model = rate_model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 8
    with pytest.raises(tw.UnsupportedError, match=r"branches give f32\[4, 2\] and f32\[2, 4\],.* sr="):
        tw.frontends.onnx.load(model)


def test_what_depends_on_data_is_not_offered_as_a_constant():
    model = a_model([helper.make_node("NonZero", ["x"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=1)],
                    {"x": (F32, [3, 32])})  # fmt: skip
    with pytest.raises(tw.UnsupportedError) as caught:
        tw.frontends.onnx.load(model)
    assert "--constant" not in str(caught.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0.5, "expected a value of i64 for the constant sr, got 0.5"),
        ([1, 2], r"expected a shape for sr that fits \(\), got \(2,\)"),
        ("fast", "expected a number or an array for the constant sr, got 'fast'"),
        ([[1], [2, 3]], "expected a number or an array for the constant sr"),
    ],
)
def test_constants_that_do_not_fit_are_refused(value, message):
    with pytest.raises(tw.InputError, match=message):
        tw.frontends.onnx.load(rate_model(), constants={"sr": value})


@pytest.mark.parametrize("command", [["run", "--target", "reference"], ["compile", "--target", "null"], []])
def test_commands_fix_inputs(command, tmp_path, capsys):
    path = str(tmp_path / "net.onnx")
    onnx.save(rate_model(), path)
    run = irdump if not command else main
    assert run([*command, path]) == 2
    assert "--constant sr=..." in capsys.readouterr().err
    assert run([*command, path, "--constant", "sr=16k"]) == 2
    assert "expected NAME=V,V,... with numbers, got 'sr=16k'" in capsys.readouterr().err
    assert run([*command, path, "--constant", "sr=8000", *(["--json"] if command else [])]) == 0
    out = capsys.readouterr().out
    if command[:1] == ["run"]:
        assert json.loads(out)["outputs"][0]["shape"] == [2, 3]


def test_networks_of_other_formats_take_no_constants(tmp_path, capsys):
    path = tmp_path / "net.ir"
    path.write_text("module @m {\n  graph.func @main(%x: f32[2]) -> f32[2] {\n    graph.return(%x)\n  }\n}\n")
    assert main(["run", str(path), "--constant", "x=1,2"]) == 2
    assert "--constant: expected an ONNX file" in capsys.readouterr().err
    assert main(["run", "zoo:nasnet_mobile", "--constant", "x=1,2"]) == 2
    assert irdump([str(path), "--constant", "x=1,2"]) == 2
