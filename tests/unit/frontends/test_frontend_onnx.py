"""ONNX models end to end: a convolutional network, a transformer block, recurrent layers, against ONNX's own
reference evaluator; what folds away; control flow; shapes; the command line."""

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.tools.cli import main


def a_model(nodes, inputs, outputs, constants=None, opset=20, functions=(), domains=()):
    """A model of one graph. inputs: shape, or (element type, shape), by name."""
    kinds = {n: v if isinstance(v, tuple) else (TensorProto.FLOAT, v) for n, v in inputs.items()}
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in kinds.items()],
        [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outputs],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=10)


def agrees(model, *inputs, shapes=None, target="reference", tolerance=1e-5):
    """The module of a model whose results are those of ONNX's reference evaluator."""
    names = [i.name for i in model.graph.input]
    wanted = ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True)))
    module = tw.frontends.onnx.load(model, shapes=shapes)
    got = tw.compile(module, target=target, progress=False)(*inputs)
    for g, w in zip(got, wanted, strict=True):
        assert (g.dtype, g.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)
    return module


def op_names(module):
    return [op.name.removeprefix("graph.") for op in module.main.body.ops]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(np.float32)


def conv_net(rng):
    node = helper.make_node
    constants = {
        "w1": normal(rng, 8, 3, 3, 3), "b1": normal(rng, 8), "w2": normal(rng, 8, 1, 3, 3),
        "scale": normal(rng, 8), "shift": normal(rng, 8), "mean": normal(rng, 8),
        "var": np.abs(normal(rng, 8)) + 0.5, "low": np.float32(0), "high": np.float32(6),
        "fc": normal(rng, 10, 8 * 9), "fcb": normal(rng, 10),
    }  # fmt: skip
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["c1", "scale", "shift", "mean", "var"], ["n1"]),
        node("Clip", ["n1", "low", "high"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], group=8, auto_pad="SAME_UPPER", kernel_shape=[3, 3]),
        node("HardSwish", ["c2"], ["h2"]),
        node("Add", ["h2", "r1"], ["sum"]),
        node("MaxPool", ["sum"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "fc", "fcb"], ["y"], transB=1),
        node("Softmax", ["y"], ["out"]),
    ]
    return a_model(nodes, {"x": ["batch", 3, 10, 10]}, ["out"], constants)


def test_a_convolutional_network(rng):
    agrees(conv_net(rng), normal(rng, 2, 3, 10, 10), shapes={"batch": 2})


def transformer_block(rng, heads=2, width=8):
    """Attention with shapes computed from the input, as exporters write them; tokens are data."""
    node = helper.make_node
    weights = {n: normal(rng, width, width) / 3 for n in ("wq", "wk", "wv", "wo")}
    constants = {
        **weights, "table": normal(rng, 20, width),
        "up": normal(rng, width, 16), "down": normal(rng, 16, width),
        "gamma": normal(rng, width), "beta": normal(rng, width), "axis0": np.array([0]),
        "zero": np.array(0), "one": np.array(1), "split": np.array([heads, width // heads]),
        "minus": np.array([-1]), "root": np.float32(np.sqrt(width // heads)),
    }  # fmt: skip
    nodes = [
        node("Gather", ["table", "ids"], ["x"]),
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch0"]),
        node("Unsqueeze", ["batch0", "axis0"], ["batch"]),
        node("Slice", ["shape", "one_", "two_"], ["time"]),
        node("Concat", ["batch", "time", "split"], ["apart"], axis=0),
        node("Concat", ["batch", "time", "minus"], ["together"], axis=0),
    ]
    constants |= {"one_": np.array([1]), "two_": np.array([2])}
    for name in "qkv":
        nodes += [
            node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            node("Reshape", [f"{name}0", "apart"], [f"{name}1"]),
            node("Transpose", [f"{name}1"], [name], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["scores"]),
        node("Div", ["scores", "root"], ["scaled"]),
        node("Softmax", ["scaled"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["mixed"]),
        node("Transpose", ["mixed"], ["back"], perm=[0, 2, 1, 3]),
        node("Reshape", ["back", "together"], ["flat"]),
        node("MatMul", ["flat", "wo"], ["attended"]),
        node("Add", ["attended", "x"], ["residual"]),
        node("LayerNormalization", ["residual", "gamma", "beta"], ["normal"], epsilon=1e-6),
        node("MatMul", ["normal", "up"], ["wide"]),
        node("Gelu", ["wide"], ["active"]),
        node("MatMul", ["active", "down"], ["out"]),
    ]
    return a_model(nodes, {"ids": (TensorProto.INT64, ["batch", 5])}, ["out"], constants)


@pytest.mark.parametrize("target", ["reference", "opencl"])
def test_a_transformer_block_folds_its_shapes(rng, target):
    ids = rng.integers(0, 20, (3, 5))
    module = agrees(transformer_block(rng), ids, shapes={"ids": (3, 5)}, target=target)
    names = op_names(module)
    assert not {"concatenate", "strided_slice", "expand_dims"} & set(names)
    assert names.count("take") == 1
    assert sum(n == "constant" for n in names) == len(module.constants) <= 16


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm_with_states_and_peepholes(rng, direction):
    count, hidden, width, batch, time = 1 + (direction == "bidirectional"), 4, 3, 2, 5
    constants = {
        "w": normal(rng, count, 4 * hidden, width), "r": normal(rng, count, 4 * hidden, hidden),
        "b": normal(rng, count, 8 * hidden), "h": normal(rng, count, batch, hidden),
        "c": normal(rng, count, batch, hidden), "p": normal(rng, count, 3 * hidden),
    }  # fmt: skip
    node = helper.make_node(
        "LSTM", ["x", "w", "r", "b", "", "h", "c", "p"], ["y", "last", "cell"], hidden_size=hidden,
        direction=direction,
    )  # fmt: skip
    model = a_model([node], {"x": [time, batch, width]}, ["y", "last", "cell"], constants, opset=14)
    x = normal(rng, time, batch, width)
    if direction == "forward":
        agrees(model, x)
        return
    each = [{k: v[d] for k, v in constants.items()} for d in range(count)]
    wanted = [own_lstm(x, weights, d == count - 1) for d, weights in enumerate(each)]
    got = tw.interpret(tw.frontends.onnx.load(model), x)
    np.testing.assert_allclose(got[0], np.stack([w[0] for w in wanted], 1), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[1], np.stack([w[1] for w in wanted]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[2], np.stack([w[2] for w in wanted]), rtol=1e-5, atol=1e-5)


def own_lstm(x, weights, backwards):
    """One direction of an LSTM with peepholes: outputs in order of time, last state, last cell."""
    h, c, p = (weights[k].astype(np.float64) for k in "hcp")
    n = h.shape[1]
    out = np.zeros((len(x), *h.shape))
    for t in reversed(range(len(x))) if backwards else range(len(x)):
        gates = x[t] @ weights["w"].T + h @ weights["r"].T + weights["b"].reshape(2, -1).sum(0)
        i, o, f, g = np.split(gates, 4, axis=1)
        i, f = (1 / (1 + np.exp(-(v + p[k * n : (k + 1) * n] * c))) for v, k in ((i, 0), (f, 2)))
        c = f * c + i * np.tanh(g)
        h = np.tanh(c) / (1 + np.exp(-(o + p[n : 2 * n] * c)))
        out[t] = h
    return out, h, c


def test_gru_of_unequal_lengths_keeps_its_state(rng):
    """Behind the end of a sequence outputs are zero, and the last state is that of its own end."""
    constants = {"w": normal(rng, 1, 12, 3), "r": normal(rng, 1, 12, 4), "lens": np.array([5, 2], np.int32)}
    node = helper.make_node(
        "GRU", ["x", "w", "r", "", "lens"], ["y", "last"], hidden_size=4, linear_before_reset=1
    )
    x = normal(rng, 5, 2, 3)
    model = a_model([node], {"x": [5, 2, 3]}, ["y", "last"], constants, opset=14)
    y, last = tw.interpret(tw.frontends.onnx.load(model), x)
    assert (y[2:, 0, 1] == 0).all()
    np.testing.assert_array_equal(last[0, 1], y[1, 0, 1])
    np.testing.assert_array_equal(last[0, 0], y[4, 0, 0])


def subgraph(nodes, outputs, inputs=()):
    infos = [helper.make_tensor_value_info(n, kind, shape) for n, kind, shape in inputs]
    return helper.make_graph(nodes, "sub", infos, [helper.make_empty_tensor_value_info(n) for n in outputs])


def test_if_takes_the_branch_or_chooses_by_data(rng):
    node = helper.make_node
    branches = {
        "then_branch": subgraph([node("Relu", ["x"], ["a"])], ["a"]),
        "else_branch": subgraph([node("Neg", ["x"], ["b"])], ["b"]),
    }
    by_data = [
        node("ReduceSum", ["x"], ["total"], keepdims=0),
        node("Greater", ["total", "zero"], ["c"]),
        node("If", ["c"], ["y"], **branches),
    ]
    x = normal(rng, 3, 4)
    model = a_model(by_data, {"x": [3, 4]}, ["y"], {"zero": np.float32(0)})
    assert "where" in op_names(agrees(model, x))
    agrees(model, -x)
    fixed = a_model([node("If", ["c"], ["y"], **branches)], {"x": [3, 4]}, ["y"], {"c": np.array(False)})
    assert op_names(agrees(fixed, x)) == ["negative", "return"]


def test_loop_is_unrolled(rng):
    """Counts, carries a tensor, collects one, and stops by a condition that folds."""
    node = helper.make_node
    body = subgraph(
        [
            node("Mul", ["v", "x"], ["w"]),
            node("Less", ["i", "last"], ["go"]),
            node("ReduceSum", ["w"], ["s"], keepdims=1),
        ],
        ["go", "w", "s"],
        [("i", TensorProto.INT64, []), ("c", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, [2])],
    )
    nodes = [node("Loop", ["trips", "go0", "x"], ["end", "sums"], body=body)]
    constants = {"trips": np.array(10), "go0": np.array(True), "last": np.array(2)}
    names = op_names(agrees(a_model(nodes, {"x": [2]}, ["end", "sums"], constants), normal(rng, 2)))
    assert names.count("multiply") == 3


def test_functions_of_the_model_and_of_the_standard(rng):
    """A local function with an attribute that it passes on; Mish comes as a function of the standard."""
    node = helper.make_node
    inner = node("LeakyRelu", ["a"], ["b"])
    inner.attribute.append(
        onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    )
    function = helper.make_function(
        "own", "Twice", ["a"], ["c"], [inner, node("Add", ["b", "b"], ["c"])],
        [helper.make_opsetid("", 16)], ["slope"],
    )  # fmt: skip
    nodes = [node("Twice", ["x"], ["t"], domain="own", slope=0.3), node("Mish", ["t"], ["y"])]
    model = a_model(nodes, {"x": [4]}, ["y"], functions=[function], domains=["own"])
    module = tw.frontends.onnx.load(model)
    assert op_names(module)[0] == "leaky_relu"
    x = normal(rng, 4)
    t = 2 * np.where(x > 0, x, np.float32(0.3) * x)
    wanted = t * np.tanh(np.log1p(np.exp(t)))
    np.testing.assert_allclose(tw.interpret(module, x)[0], wanted, rtol=1e-5)


def test_quantised_layers_agree(rng):
    node = helper.make_node
    constants = {
        "s": np.float32(0.02), "z": np.uint8(128), "ws": np.float32(0.01), "wz": np.int8(0),
        "w": rng.integers(-128, 128, (4, 3)).astype(np.int8),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        node("MatMul", ["d", "wd"], ["m"]),
        node("DynamicQuantizeLinear", ["m"], ["y", "scale", "zero"]),
    ]
    agrees(a_model(nodes, {"x": [2, 4]}, ["y", "scale", "zero"], constants), normal(rng, 2, 4))


def test_external_data_lies_beside_the_model(rng, tmp_path):
    model = a_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, 3]}, ["y"], {"w": normal(rng, 3, 4)}
    )
    path = tmp_path / "m.onnx"
    onnx.save_model(onnx.ModelProto.FromString(model.SerializeToString()), path, save_as_external_data=True,
                    location="m.bin", size_threshold=0)  # fmt: skip
    x = normal(rng, 2, 3)
    (got,) = tw.interpret(tw.frontends.onnx.load(path), x)
    np.testing.assert_allclose(got, ReferenceEvaluator(model).run(None, {"x": x})[0], rtol=1e-6)


def test_the_command_line_runs_a_file(rng, tmp_path, capsys):
    path = str(tmp_path / "net.onnx")
    onnx.save_model(conv_net(rng), path)
    arguments = [
        "run",
        path,
        "--shape",
        "batch=2",
        "--target",
        "opencl",
        "--check",
        "--json",
        "--repeats",
        "1",
    ]
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["outputs"][0]["shape"] == [2, 10]
    assert main(["run", path, "--target", "null"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"warning: {path}: 'batch' is taken as 1; --shape batch=... sets it"


def test_unrolling_shares_what_is_cut_from_weights(rng):
    """As many constants for twenty steps as for two."""
    counts = []
    for time in (2, 20):
        constants = {"w": normal(rng, 1, 12, 3), "r": normal(rng, 1, 12, 4), "b": normal(rng, 1, 24)}
        node = helper.make_node("GRU", ["x", "w", "r", "b"], ["y"], hidden_size=4)
        model = a_model([node], {"x": [time, 2, 3]}, ["y"], constants, opset=14)
        counts.append(len(agrees(model, normal(rng, time, 2, 3)).constants))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", [TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN])
def test_narrow_weights_are_dequantised_in_blocks(rng, kind):
    packed = helper.make_tensor("w", kind, [4, 6], rng.integers(0, 7, 24).tolist())
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=2)
    nodes = [node, helper.make_node("MatMul", ["x", "d"], ["y"])]
    model = a_model(nodes, {"x": [3, 4]}, ["y"], {"s": np.abs(normal(rng, 2, 6))}, opset=21)
    model.graph.initializer.append(packed)
    agrees(model, normal(rng, 3, 4))


def test_names_of_a_file_stay_apart_from_those_made_here(rng):
    """An initializer of a subgraph has the name that the next constant made here would get."""
    node = helper.make_node
    branch = subgraph([node("Add", ["x", "const_2"], ["t"]), node("Elu", ["t"], ["a"])], ["a"])
    branch.initializer.append(onnx.numpy_helper.from_array(normal(rng, 2), "const_2"))
    nodes = [node("If", ["c"], ["e"], then_branch=branch, else_branch=branch), node("Selu", ["e"], ["y"])]
    agrees(a_model(nodes, {"x": [2]}, ["y"], {"c": np.array(True)}), normal(rng, 2))


def test_sequences_pass_through(rng):
    node = helper.make_node
    nodes = [
        node("SplitToSequence", ["x"], ["s"], axis=1),
        node("Identity", ["s"], ["t"]),
        node("SequenceAt", ["t", "at"], ["a"]),
        node("ConcatFromSequence", ["t"], ["all"], axis=0),
        node("Concat", ["a", "all"], ["y"], axis=0),
    ]
    agrees(a_model(nodes, {"x": [2, 3]}, ["y"], {"at": np.array(-1)}), normal(rng, 2, 3))


@pytest.mark.parametrize(
    ("shape", "other", "axis"),
    [
        ((1, 2, 3, 3), (2,), 1),
        ((2, 3, 4), (2,), 0),
        ((2, 3, 4), (3,), 1),
        ((2, 3, 4), (4,), 2),
        ((2, 3), (3,), None),
    ],
)
def test_broadcasts_of_old_versions_begin_at_their_axis(rng, shape, other, axis):
    given = {} if axis is None else {"axis": axis}
    node = helper.make_node("Mul", ["x", "b"], ["y"], broadcast=1, **given)
    b, x = normal(rng, *other), normal(rng, *shape)
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in (("x", x), ("b", b))]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    graph = helper.make_graph([node], "old", values, outputs, [onnx.numpy_helper.from_array(b, "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)
    (got,) = tw.interpret(tw.frontends.onnx.load(model), x)
    place = len(shape) - len(other) if axis is None else axis
    behind = len(shape) - place - len(other)
    np.testing.assert_array_equal(got, x * b.reshape(*other, *(1,) * behind))


def test_an_old_op_without_its_result_is_refused():
    node = helper.make_node("Sqrt", ["x"], [])
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (2,)) for n in "xy"]
    graph = helper.make_graph([node], "old", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)], ir_version=3)
    with pytest.raises(tw.UnsupportedError, match=r"which ONNX does not convert.*out of bounds"):
        tw.frontends.onnx.load(model)


@pytest.mark.parametrize(("opset", "rate"), [(7, 0.3), (20, 0.3), (20, None), (20, 0.0)])
def test_dropout_is_kept_with_its_ratio(rng, opset, rate):
    constants, given, operands = {}, {}, ["x"]
    if rate is not None and opset < 12:
        given = {"ratio": rate}
    elif rate is not None:
        constants, operands = {"ratio": np.float32(rate)}, ["x", "ratio"]
    node = helper.make_node("Dropout", operands, ["y"], **given)
    model = a_model([node], {"x": [2, 3]}, ["y"], constants, opset)
    x = normal(rng, 2, 3)
    module = tw.frontends.onnx.load(model)
    np.testing.assert_array_equal(tw.interpret(module, x)[0], x)
    rates = [op["rate"] for op in module.main.body.ops if op.name == "graph.dropout"]
    np.testing.assert_allclose(rates, [] if rate == 0 else [0.5 if rate is None else rate], rtol=1e-6)
