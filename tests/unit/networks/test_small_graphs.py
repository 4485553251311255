"""Unusual graphs end to end: identities, views returned, rank 0, no elements, other dtypes and layouts."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Constants

CASES = {
    "identity": ("%x: f32[2, 3]", "graph.return(%x)", "f32[2, 3]"),
    "same-value-twice": (
        "%x: f32[2, 3]",
        "%y = graph.relu(%x) : f32[2, 3] graph.return(%y, %y)",
        "f32[2, 3], f32[2, 3]",
    ),
    "input-too": (
        "%x: f32[2, 3]",
        "%y = graph.relu(%x) : f32[2, 3] graph.return(%y, %x)",
        "f32[2, 3], f32[2, 3]",
    ),
    "constant": ("%x: f32[2, 3]", '%c = graph.constant(name = "c") : f32[3] graph.return(%c)', "f32[3]"),
    "reshape": (
        "%x: f32[2, 3]",
        "%y = graph.reshape(%x, newshape = [3, 2]) : f32[3, 2] graph.return(%y)",
        "f32[3, 2]",
    ),
    "view-of-a-result": (
        "%x: f32[2, 3]",
        "%y = graph.relu(%x) : f32[2, 3] %z = graph.reshape(%y, newshape = [6]) : f32[6]"
        " graph.return(%z, %y)",
        "f32[6], f32[2, 3]",
    ),
    "rank-0": ("%x: f32[]", "%y = graph.exp(%x) : f32[] graph.return(%y)", "f32[]"),
    "no-elements": ("%x: f32[0, 3]", "%y = graph.relu(%x) : f32[0, 3] graph.return(%y)", "f32[0, 3]"),
    "int64": ("%x: i64[4], %z: i64[4]", "%y = graph.add(%x, %z) : i64[4] graph.return(%y)", "i64[4]"),
    "bool": ("%x: f32[4], %z: f32[4]", "%y = graph.less(%x, %z) : bool[4] graph.return(%y)", "bool[4]"),
    "groups": (
        "%x: f32[1, 8, 6, 6], %w: f32[8, 4, 3, 3]",
        "%y = graph.conv2d(%x, %w, groups = 2, padding = [1, 1, 1, 1]) : f32[1, 8, 6, 6] graph.return(%y)",
        "f32[1, 8, 6, 6]",
    ),
    "nhwc": (
        "%x: f32[1, 6, 6, 8], %w: f32[3, 3, 8, 4]",
        '%y = graph.conv2d(%x, %w, data_layout = "NHWC", kernel_layout = "HWIO", padding = [1, 1, 1, 1])'
        " : f32[1, 6, 6, 4] graph.return(%y)",
        "f32[1, 6, 6, 4]",
    ),
    "f16": (
        "%x: f16[5, 8], %w: f16[4, 8]",
        "%y = graph.dense(%x, %w) : f16[5, 4] graph.return(%y)",
        "f16[5, 4]",
    ),
    "f64": (
        "%x: f64[5, 8], %w: f64[4, 8]",
        "%y = graph.dense(%x, %w) : f64[5, 4] graph.return(%y)",
        "f64[5, 4]",
    ),
    "batch-matmul": (
        "%x: f32[3, 5, 8], %w: f32[3, 4, 8]",
        "%y = graph.batch_matmul(%x, %w, transpose_b = true) : f32[3, 5, 4] graph.return(%y)",
        "f32[3, 5, 4]",
    ),
}


@pytest.mark.parametrize("target", ["opencl", pytest.param("emulator", marks=pytest.mark.emulator)])
@pytest.mark.parametrize("name", CASES)
def test_small_graph(name, target):
    params, body, results = CASES[name]
    constants = Constants({"c": np.arange(3, dtype=np.float32)}) if name == "constant" else None
    module = tw.parse(
        f"module @m {{ graph.func @main({params}) -> {results} {{ {body} }} }}", constants=constants
    )
    tw.verify(module)
    rng = np.random.default_rng(0)
    inputs = [
        (rng.integers(0, 9, t.shape) if "int" in t.dtype else rng.standard_normal(t.shape)).astype(t.dtype)
        for t in module.input_types
    ]
    wanted = tw.interpret(module, *inputs)
    with tw.compile(module, target=target) as exe:
        got = exe(*inputs)
    for g, w in zip(got, wanted, strict=True):
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=1e-3 if w.dtype == np.float16 else 1e-5, atol=1e-5)
