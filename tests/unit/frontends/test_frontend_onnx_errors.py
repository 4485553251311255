"""What is wrong with an ONNX model comes as one clear sentence, and what is unsupported all at once."""

import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import tilewright as tw
from tilewright.frontends.onnx.emission import NotConstant
from tilewright.tools.cli import main


def a_model(nodes, inputs, constants=None, opset=20, domains=()):
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()],
        [helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


X = {"x": (TensorProto.FLOAT, [2, 3])}
node = helper.make_node


def fault(model, error=tw.InputError, **options):
    with pytest.raises(error) as caught:
        tw.frontends.onnx.load(model, **options)
    return str(caught.value)


def test_everything_unsupported_is_listed_at_once():
    nodes = [
        node("Gone", ["x"], ["a"], domain="mine"),
        node("Gone", ["a"], ["b"], domain="mine"),
        node("RandomUniformLike", ["x"], ["c"]),
        node("NonZero", ["x"], ["d"]),
        node("Reshape", ["b", "n"], ["e"]),
        node("Reshape", ["x", "n"], ["f"]),
        node("Sum", ["e", "c", "f"], ["y0"]),
        node("Cast", ["d"], ["d0"], to=1),
        node("Add", ["y0", "d0"], ["y"]),
    ]
    model = a_model(nodes, {**X, "n": (TensorProto.INT64, [1])}, domains=["mine"])
    message = fault(model, tw.UnsupportedError)
    assert "mine.Gone (at mine.Gone number 0, mine.Gone number 1)" in message
    assert "RandomUniformLike (at RandomUniformLike number 0)" in message
    assert "NonZero: expected the operand" in message
    assert "Reshape: expected the shape to be constant, got a value that depends on 'n'" in message
    assert "\n" not in message


def test_values_make_inputs_constant():
    model = a_model([node("Reshape", ["x", "n"], ["y"])], {**X, "n": (TensorProto.INT64, [1])})
    with pytest.raises(NotConstant) as caught:
        tw.frontends.onnx.load(model)
    assert caught.value.inputs == ("n",)
    module = tw.frontends.onnx.load(model, constants={"n": np.array([6])})
    assert module.input_names == ("x",)
    assert module.main.result_types[0].shape == (6,)


def test_unsupported_nodes_that_nothing_uses_do_no_harm():
    nodes = [node("RandomUniformLike", ["x"], ["r"]), node("Relu", ["x"], ["y"])]
    assert len(tw.frontends.onnx.load(a_model(nodes, X)).main.body.ops) == 2


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (node("Relu", ["z"], ["y"]), "expected a value named 'z' before its use"),
        (node("Add", ["x"], ["y"]), "expected from 2 to 2 inputs, got 1"),
        (node("Relu", ["x"], ["y"], slope=1.0), "unknown attribute 'slope'"),
        (node("Flatten", ["x"], ["y"], axis=7), r"expected 'axis' in \[-2, 2\], got 7"),
        (
            node("Softmax", ["x"], ["y"], axis="last"),
            "expected attribute 'axis' to be an integer, got 'last'",
        ),
        (node("Cast", ["x"], ["y"]), "expected attribute 'to', got none"),
        (node("Conv", ["x", "x"], ["y"]), r"expected \[N, C, spatial dimensions...\], got \(2, 3\)"),
        (node("Relu", ["x"], ["y"], domain="other"), "import a version of the domain 'other'"),
        (node("Gelu", ["x"], ["y"]), "operator of version 7, which has no Gelu"),
    ],
)
def test_malformed_nodes_are_named(broken, message):
    opset = 7 if broken.op_type == "Gelu" else 20
    with pytest.raises(tw.InputError, match=message) as caught:
        tw.frontends.onnx.load(a_model([broken], X, opset=opset))
    assert f"{broken.op_type} number 0" in str(caught.value)


def test_files_that_are_no_models(tmp_path, capsys):
    missing, empty, noise, folder = (tmp_path / n for n in ("no.onnx", "empty.onnx", "noise.onnx", "d.onnx"))
    empty.write_bytes(b"")
    noise.write_bytes(b"\xff\x07 this is not a model" * 9)
    folder.mkdir()
    for path in (missing, empty, noise, folder):
        assert main(["run", str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ")
        assert error.count("\n") == 1
    with pytest.raises(tw.InputError, match=r"expected a path, bytes or an onnx\.ModelProto, got int"):
        tw.frontends.onnx.load(3)


def external(tmp_path):
    model = a_model([node("Add", ["x", "w"], ["y"])], X, {"w": np.ones((2, 3), np.float32)})
    path = tmp_path / "m.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    return path


def test_external_data_that_is_missing_short_or_elsewhere(tmp_path):
    path = external(tmp_path)
    data = path.with_name("m.bin")
    data.write_bytes(data.read_bytes()[:-4])
    assert "expected 24 bytes of f32[2, 3]" in fault(path)
    data.unlink()
    assert "cannot read tensor 'w': expected its external data in" in fault(path)
    assert "only a model loaded from a path" in fault(path.read_bytes())
    model = onnx.load_model(path, load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "../m.bin"
    path.write_bytes(model.SerializeToString())
    assert "expected external data in the folder of the model, got '../m.bin'" in fault(path)


def test_foreign_types_are_named():
    message = fault(
        a_model([node("Identity", ["x"], ["y"])], {"x": (TensorProto.STRING, [2])}), tw.UnsupportedError
    )
    assert "got x (STRING)" in message
    constant = helper.make_tensor("c", TensorProto.STRING, [1], [b"a"])
    nodes = [node("Constant", [], ["c"], value=constant), node("Identity", ["c"], ["y"])]
    assert "got tensor 'c' of STRING elements" in fault(a_model(nodes, X), tw.UnsupportedError)


def test_a_damaged_tensor(tmp_path):
    model = a_model([node("Add", ["x", "w"], ["y"])], X, {"w": np.ones((2, 3), np.float32)})
    model.graph.initializer[0].raw_data = b"1234"
    assert "cannot read tensor 'w'" in fault(model)


def test_the_package_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(tw.InputError, match=r"pip install tilewright\[onnx\]"):
        tw.frontends.onnx.load("net.onnx")


def test_endless_loops_are_refused():
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), node("Add", ["v", "v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, [2, 3]),
        ],
        [helper.make_empty_tensor_value_info(n) for n in ("d", "w")],
    )
    model = a_model([node("Loop", ["n", "go", "x"], ["y"], body=body)], X, {"n": 10**9, "go": np.array(True)})
    assert "expected at most 4096 trips, got 1000000000" in fault(model, tw.UnsupportedError)
