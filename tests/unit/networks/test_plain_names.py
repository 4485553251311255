"""Networks may call their inputs and weights anything; plans hold plain names, users see their own."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.ir import Block, Func, Level, Module, Op, TensorType, Value
from tilewright.tools.cli import main
from tilewright.tools.commands.network import parse_shapes

NAMES = (
    "input ids", "x[0]", "x+1", "f(x)", "a;b", "входной", "y" * 5000, " ", "input_ids", 'a"b\n', "x=1,2",
)  # fmt: skip


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """An ONNX file of one op per odd name of an input and of an initialiser, and inputs for it."""
    floats = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in NAMES]
    weights = [numpy_helper.from_array(np.full((2, 3), i, np.float32), f"w {n}") for i, n in enumerate(NAMES)]
    nodes = [helper.make_node("Mul", [n, f"w {n}"], [f"out {n}"], name=f"node {n}") for n in NAMES]
    outs = [helper.make_tensor_value_info(f"out {n}", TensorProto.FLOAT, [2, 3]) for n in NAMES]
    graph = helper.make_graph(nodes, "a graph", floats, outs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder = tmp_path_factory.mktemp("names")
    onnx.save(model, folder / "net.onnx")
    inputs = [np.random.default_rng(i).standard_normal((2, 3)).astype(np.float32) for i in range(len(NAMES))]
    np.savez(folder / "in.npz", **dict(zip(NAMES, inputs, strict=True)))
    return folder, inputs


@pytest.mark.parametrize(
    "target", ["opencl", pytest.param("emulator", marks=pytest.mark.emulator), "reference"]
)
def test_names_stay_the_networks_own(network, target):
    folder, inputs = network
    exe = tw.compile(tw.frontends.onnx.load(folder / "net.onnx"), target=target)
    assert exe.input_names == NAMES
    for i, (got, x) in enumerate(zip(exe(*inputs), inputs, strict=True)):
        np.testing.assert_allclose(got, x * i, rtol=1e-6)


def test_a_saved_file_keeps_them(network, tmp_path):
    folder, inputs = network
    exe = tw.compile(tw.frontends.onnx.load(folder / "net.onnx"), target="opencl")
    exe.save(tmp_path / "net.tw")
    again = tw.load(tmp_path / "net.tw")
    assert again.input_names == NAMES
    assert again.plan == exe.plan
    np.testing.assert_array_equal(again(*inputs)[3], exe(*inputs)[3])
    with pytest.raises(tw.InputError, match=r"input 'x=1,2': expected shape \[2, 3\], got \[3\]"):
        again(*inputs[:-1], np.zeros(3, np.float32))


def test_cuda_kernels_compile(network):
    pytest.importorskip("cuda.bindings.nvrtc")
    exe = tw.compile(tw.frontends.onnx.load(network[0] / "net.onnx"), target="cuda:sm_90a")
    assert exe.input_names == NAMES


def test_the_commands_take_them(network, tmp_path, capsys):
    folder, _ = network
    net, given = str(folder / "net.onnx"), str(folder / "in.npz")
    run = ["run", net, "--target", "opencl", "--input", given, "--shape", "a;b=2,3", "--repeats", "1"]
    assert main([*run, "--check"]) == 0, capsys.readouterr().err
    assert main(["report", net, "--target", "opencl", "-o", str(tmp_path / "r.html")]) == 0
    assert "входной" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_shapes_of_names_with_semicolons():
    assert parse_shapes("a;b=2,3; x=1;y=") == {"a;b": (2, 3), "x": (1,), "y": ()}


def test_inputs_of_one_name_are_numbered():
    x = Value(TensorType("f32", (4,)), "x")
    again = Value(TensorType("f32", (4,)), "x")
    done = Op("graph.add", (x, again), results=(y := Value(TensorType("f32", (4,)), "y"),))
    block = Block((x, again), (done, Op("graph.return", (y,))))
    module = Module("net", (Func(Level.GRAPH, "main", block, (y.type,)),))
    assert tw.compile(module, target="null").input_names == ("x", "x.1")
