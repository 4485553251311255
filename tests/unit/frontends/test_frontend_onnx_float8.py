"""8-bit floats of ONNX: casts, QuantizeLinear and DequantizeLinear agree with ONNX's reference."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import tilewright as tw
from tilewright.ir import UnsupportedError

E4M3 = TensorProto.FLOAT8E4M3FN
X = np.concatenate([
    np.random.default_rng(2).standard_normal(500) * 100,
    [0, -0.0, 448, 449, 464, 465, -464, -470, 1e30, np.inf, -np.inf, np.nan, 2**-9, 2**-10, 2**-10.5, 1e-9],
]).astype(np.float32)  # fmt: skip


def model_of(nodes, results, constants=(), given=None, opset=21):
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, given or X.shape)]
    outputs = [helper.make_tensor_value_info(n, kind, None) for n, kind in results.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, list(constants))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("saturate", [1, 0])
def test_casts(saturate):
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=E4M3, saturate=saturate),
        helper.make_node("Cast", ["h"], ["y"], to=TensorProto.FLOAT),
    ]
    model = model_of(nodes, {"h": E4M3, "y": TensorProto.FLOAT})
    (narrow, wide), module = ReferenceEvaluator(model).run(None, {"x": X}), tw.frontends.onnx.load(model)
    with tw.compile(module, "opencl", progress=False) as exe:
        for got in (tw.interpret(module, X), exe(X)):
            assert got[0].dtype == ml_dtypes.float8_e4m3fn
            np.testing.assert_array_equal(got[0].astype(np.float32), np.asarray(narrow).astype(np.float32))
            np.testing.assert_array_equal(got[1], wide)


def test_casts_of_constants_are_folded():
    nodes = [
        helper.make_node("Cast", ["c"], ["h"], to=E4M3),
        helper.make_node("Cast", ["h"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "w"], ["y"]),
    ]
    finite = X[np.isfinite(X)]
    model = model_of(
        nodes, {"y": TensorProto.FLOAT}, [numpy_helper.from_array(finite, "c")], given=finite.shape
    )
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": finite})
    np.testing.assert_array_equal(tw.interpret(tw.frontends.onnx.load(model), finite)[0], wanted)


@pytest.mark.parametrize("named", ["zero point", "output_dtype"])
@pytest.mark.parametrize("saturate", [1, 0])
def test_quantised_and_back(named, saturate):
    scale = numpy_helper.from_array(np.float32(0.37), "s")
    constants, operands, attrs = [scale], ["x", "s"], {"output_dtype": E4M3}
    if named == "zero point":
        constants.append(helper.make_tensor("z", E4M3, (), [0.0]))
        operands, attrs = [*operands, "z"], {}
    nodes = [
        helper.make_node("QuantizeLinear", operands, ["q"], saturate=saturate, **attrs),
        helper.make_node("DequantizeLinear", ["q", *operands[1:]], ["y"]),
    ]
    model = model_of(nodes, {"q": E4M3, "y": TensorProto.FLOAT}, constants)
    module = tw.frontends.onnx.load(model)
    q, y = tw.interpret(module, X)
    with np.errstate(all="ignore"):
        ratio = X / np.float32(0.37)
    beyond = np.abs(ratio) > 464
    exact = np.clip(ratio, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    if not saturate:
        exact[beyond] = np.nan
    np.testing.assert_array_equal(q.astype(np.float32), exact)
    np.testing.assert_array_equal(y, exact * np.float32(0.37))


def test_what_is_refused():
    zero = helper.make_tensor("z", E4M3, (), [1.0])
    scale = numpy_helper.from_array(np.float32(0.5), "s")
    model = model_of([helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])], {"q": E4M3}, [scale, zero])
    with pytest.raises(UnsupportedError, match="no zero point but 0"):
        tw.frontends.onnx.load(model)
    other = TensorProto.FLOAT8E5M2
    model = model_of([helper.make_node("Cast", ["x"], ["q"], to=other)], {"q": other})
    with pytest.raises(UnsupportedError, match=r"FLOAT8E4M3FN.*got FLOAT8E5M2"):
        tw.frontends.onnx.load(model)
    constant = helper.make_tensor("w", E4M3, (2,), [1.0, 2.0])
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=E4M3),
        helper.make_node("Add", ["h", "h"], ["q"]),
    ]
    with pytest.raises(tw.TilewrightError, match="f32"):
        tw.frontends.onnx.load(model_of(nodes, {"q": E4M3}, [constant]))
