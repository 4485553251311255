"""Every graph op with a lowering rule: the tensor level computes what the reference computes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.ir import Builder, Func, Level, Module, TensorType, Value, op_defs
from tilewright.ir.graph_ops.binary import BINARY
from tilewright.ir.graph_ops.unary import UNARY
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.lower import rules  # noqa: F401  (registers the rules)
from tilewright.passes.lower.lowering import RULES

INTEGERS = {"bitwise_not", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"}
BOOLS = {"logical_not", "logical_and", "logical_or", "logical_xor"}


def module_of(name, types, **attrs):
    """A module with one graph op on inputs of these types."""
    params = tuple(Value(t, f"x{i}") for i, t in enumerate(types))
    b = Builder("test:op")
    results = b.emit(f"graph.{name}", params, attrs)
    b.emit("graph.return", results)
    func = Func(Level.GRAPH, "main", b.block(params), tuple(r.type for r in results))
    return Module("m", (func,))


def f32(*shape):
    return TensorType("f32", shape)


def values(types, seed=0):
    rng = np.random.default_rng(seed)
    out = []
    for t in types:
        if t.dtype == "bool":
            out.append(rng.integers(0, 2, t.shape).astype(bool))
        elif t.dtype.startswith("i"):
            out.append(rng.integers(1, 9, t.shape).astype({"i32": np.int32, "i64": np.int64}[t.dtype]))
        else:
            out.append(rng.uniform(0.1, 0.9, t.shape).astype(np.float32))
    return out


def agree(module, seed=0, *, compiled=False, tolerance=1e-5):
    tw.verify(module)
    inputs = values([p.tensor for p in module.main.params], seed)
    wanted = tw.interpret(module, *inputs)
    lowered = run_pipeline(
        module, Pipeline.parse("infer-shapes, graph-to-tensor"), PassContext(verify_each=True)
    )
    assert all(op.name.startswith("tensor.") for op in lowered.main.body.ops)
    runs = [tw.interpret(lowered, *inputs)]
    if compiled:
        with tw.compile(module, target="opencl") as exe:
            runs.append(exe(*inputs))
    for got in runs:
        for g, w in zip(got, wanted, strict=True):
            assert (g.shape, g.dtype) == (w.shape, w.dtype)
            np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)


def test_every_op_has_a_rule():
    every = {d.name for d in op_defs() if d.name.startswith("graph.")}
    assert every - set(RULES) == {"graph.constant", "graph.return"}


@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary(name):
    dtype = "i32" if name in INTEGERS else "bool" if name in BOOLS else "f32"
    types = [TensorType(dtype, (3, 5))]
    agree(module_of(name, types)) if name != "acosh" else tw.verify(module_of(name, types))


@pytest.mark.parametrize("name", sorted(BINARY))
def test_binary_broadcasts(name):
    dtype = "i32" if name in INTEGERS else "bool" if name in BOOLS else "f32"
    agree(module_of(name, [TensorType(dtype, (2, 1, 5)), TensorType(dtype, (3, 1))]))


CASES = {
    "conv-strides": (
        "conv2d",
        [f32(2, 5, 9, 8), f32(7, 5, 3, 3)],
        {"strides": (2, 1), "padding": (1, 0, 1, 2)},
    ),
    "conv-dilation": ("conv2d", [f32(1, 3, 11, 11), f32(4, 3, 3, 2)], {"dilation": (2, 3)}),
    "conv-groups": ("conv2d", [f32(1, 6, 7, 7), f32(4, 3, 3, 3)], {"groups": 2}),
    "conv-depthwise": ("conv2d", [f32(2, 6, 7, 7), f32(6, 1, 3, 3)], {"groups": 6, "padding": (1, 1, 1, 1)}),
    "conv-depthwise-twice": ("conv2d", [f32(1, 3, 7, 7), f32(6, 1, 3, 3)], {"groups": 3, "strides": (2, 2)}),
    "conv-nhwc": (
        "conv2d",
        [f32(2, 9, 8, 5), f32(3, 3, 5, 7)],
        {"data_layout": "NHWC", "kernel_layout": "HWIO", "padding": (1, 1, 1, 1)},
    ),
    "dense": ("dense", [f32(5, 12), f32(7, 12)], {}),
    "matmul": ("matmul", [f32(4, 5), f32(6, 4)], {"transpose_a": True, "transpose_b": True}),
    "batch-matmul": ("batch_matmul", [f32(3, 4, 5), f32(1, 5, 6)], {}),
    "bias-add": ("bias_add", [f32(2, 5, 3), f32(5)], {"axis": -2}),
    "batch-norm": ("batch_norm", [f32(2, 5, 3), f32(5), f32(5), f32(5), f32(5)], {"scale": False}),
    "softmax": ("softmax", [f32(3, 7)], {}),
    "softmax-axis-1": ("softmax", [f32(2, 5, 3)], {"axis": 1}),
    "log-softmax": ("log_softmax", [f32(3, 7)], {}),
    "max-pool": (
        "max_pool2d",
        [f32(1, 3, 9, 9)],
        {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)},
    ),
    "max-pool-ceil": (
        "max_pool2d",
        [f32(1, 3, 8, 9)],
        {"pool_size": (3, 2), "strides": (2, 2), "ceil_mode": True},
    ),
    "avg-pool": (
        "avg_pool2d",
        [f32(1, 3, 9, 9)],
        {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)},
    ),
    "avg-pool-with-pad": (
        "avg_pool2d",
        [f32(2, 3, 8, 9)],
        {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 0, 2, 1), "count_include_pad": True},
    ),
    "avg-pool-ceil": (
        "avg_pool2d",
        [f32(1, 3, 8, 8)],
        {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1), "ceil_mode": True},
    ),
    "avg-pool-nhwc": (
        "avg_pool2d",
        [f32(1, 6, 6, 3)],
        {"pool_size": (2, 2), "strides": (2, 2), "layout": "NHWC"},
    ),
    "global-avg-pool": ("global_avg_pool2d", [f32(2, 5, 7, 6)], {}),
    "global-max-pool": ("global_max_pool2d", [f32(2, 7, 6, 5)], {"layout": "NHWC"}),
    "concatenate": ("concatenate", [f32(2, 3, 4), f32(2, 1, 4), f32(2, 5, 4)], {"axis": -2}),
    "stack": ("stack", [f32(2, 3), f32(2, 3), f32(2, 3)], {"axis": 1}),
    "split": ("split", [f32(2, 9, 3)], {"indices": (2, 5), "axis": 1}),
    "reshape": ("reshape", [f32(4, 6, 5)], {"newshape": (3, 8, 5)}),
    "flatten": ("batch_flatten", [f32(2, 3, 4)], {}),
    "expand": ("expand_dims", [f32(2, 3)], {"axis": 1, "num_newaxis": 2}),
    "squeeze": ("squeeze", [f32(2, 1, 3, 1)], {}),
    "clip": ("clip", [f32(3, 4)], {"a_min": 0.3, "a_max": 0.6}),
    "leaky-relu": ("leaky_relu", [f32(3, 4)], {"alpha": 0.1}),
    "sigmoid": ("sigmoid", [f32(3, 4)], {}),
    "cast": ("cast", [f32(3, 4)], {"dtype": "i32"}),
    "where": ("where", [TensorType("bool", (3, 1)), f32(3, 4), f32(4)], {}),
    "dropout": ("dropout", [f32(3, 4)], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_op(name):
    op, types, attrs = CASES[name]
    agree(module_of(op, types, **attrs), compiled=True)


@settings(max_examples=25)
@given(
    st.integers(1, 2),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 2),
    st.integers(3, 9),
    st.integers(0, 1000),
)
def test_convolutions_of_any_shape(n, c, k, taps, stride, pad, size, seed):
    module = module_of(
        "conv2d",
        [f32(n, c, size, size + 1), f32(k, c, taps, taps)],
        strides=(stride, stride),
        padding=(pad,) * 4,
    )
    agree(module, seed)


def test_an_op_without_rule_is_one_clear_error(monkeypatch):
    monkeypatch.delitem(RULES, "graph.lrn")
    module = module_of("lrn", [f32(1, 5, 4, 4)])
    with pytest.raises(tw.UnsupportedError, match=r"graph\.lrn"):
        tw.compile(module, target="opencl")
