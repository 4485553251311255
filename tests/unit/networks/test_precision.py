"""Precisions: where 16-bit storage begins and ends, what stays float32, how large the errors are."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.running.checking import random_inputs, relative_error

#: relative error against float64: (smallest, largest); below the smallest nothing was narrowed
ERRORS = {"fp32": (0.0, 5e-6), "tf32": (0.0, 5e-3), "fp16": (1e-5, 5e-3), "bf16": (1e-4, 3e-2)}

BLOCK = """module @net {
  graph.func @main(%x: f32[4, 16], %w: f32[8, 16], %ids: i32[4, 8]) -> f32[4, 8], f32[4, 8] {
    %0 = graph.dense(%x, %w) : f32[4, 8]
    %1 = graph.relu(%0) : f32[4, 8]
    %2 = graph.softmax(%1, axis = 1) : f32[4, 8]
    %3 = graph.cast(%ids, dtype = "f32") : f32[4, 8]
    %4 = graph.add(%2, %3) : f32[4, 8]
    %5 = graph.exp(%1) : f32[4, 8]
    graph.return(%4, %5)
  }
}
"""


def narrowed(text: str, dtype: str = "f16"):
    return run_pipeline(
        parse(text), Pipeline.parse(f"infer-shapes, mixed-precision{{dtype={dtype}}}"), PassContext()
    )


def dtypes(module, name: str) -> list[str]:
    return [op.results[0].tensor.dtype for op in module.main.body.ops if op.name == name]


def test_storage_types_show_in_the_ir():
    module = narrowed(BLOCK, "bf16")
    assert dtypes(module, "graph.dense") == dtypes(module, "graph.relu") == ["bf16"]
    assert dtypes(module, "graph.softmax") == ["bf16"]
    assert dtypes(module, "graph.exp") == ["f32"]  # it overflows in 16 bits
    assert dtypes(module, "graph.add") == ["f32"]  # one wide operand that is no constant
    assert [v.tensor.dtype for v in module.main.body.ops[-1].operands] == ["f32", "f32"]
    assert [p.tensor.dtype for p in module.main.params] == ["f32", "f32", "i32"]


def test_one_value_is_converted_once():
    module = narrowed(BLOCK.replace("graph.softmax(%1, axis = 1)", "graph.erf(%1)"))
    casts = [op for op in module.main.body.ops if op.name == "graph.cast"]
    assert len({(op.operands[0], op["dtype"]) for op in casts}) == len(casts)


EMBEDDING = """module @net {
  graph.func @main(%ids: i64[4], %seen: bool[4, 8]) -> f32[4, 8], f32[4, 8] {
    %0 = graph.constant(name = "words") : f32[16, 8]
    %1 = graph.take(%0, %ids, axis = 0) : f32[4, 8]
    %2 = graph.constant(name = "none") : f32[]
    %3 = graph.constant(name = "far") : f32[]
    %4 = graph.where(%seen, %2, %3) : f32[4, 8]
    graph.return(%1, %4)
  }
}
"""


def test_tables_are_weights_and_masks_are_not():
    """Rows that data picks from constants are narrow; -1e9 for what a mask hides would not survive that."""
    module = narrowed(EMBEDDING)
    assert dtypes(module, "graph.take") == ["f16"]
    assert dtypes(module, "graph.where") == ["f32"]


RESIDUAL = """module @net {
  graph.func @main(%x: f32[4, 8], %w: f32[8, 8], %g: f32[8], %h: f32[8]) -> f32[4, 8], f32[4, 8] {
    %0 = graph.NORM
    %1 = graph.dense(%0, %w) : f32[4, 8]
    %2 = graph.add(%0, %1) : f32[4, 8]
    graph.return(%2, %0)
  }
}
"""
NORM = "layer_norm(%x, %g, %h, axis = 1) : f32[4, 8]"


@pytest.mark.parametrize(("first", "residual"), [(NORM, "f16"), ("relu(%x) : f32[4, 8]", "f32")])
def test_sums_behind_norms_are_narrow(first, residual):
    """A norm's result is of moderate size; a stream that no norm has passed may grow, and stays wide."""
    module = narrowed(RESIDUAL.replace("NORM", first))
    assert dtypes(module, "graph.add") == [residual]
    results = module.main.body.ops[-1].operands
    assert [v.tensor.dtype for v in results] == ["f32", "f32"]
    made = {op.results[0]: op for op in module.main.body.ops if op.results}
    assert made[results[1]].name == f"graph.{first.split('(')[0]}"  # what is returned was never rounded


def test_tf32_is_a_permission_on_contractions():
    tensor = lower(parse(BLOCK), resolve_target("opencl"), precision="tf32").tensor
    assert 'factors = "tf32"' in tw.show(tensor)
    assert "factors" not in tw.show(lower(parse(BLOCK), resolve_target("opencl")).tensor)


@pytest.mark.parametrize("precision", ERRORS)
def test_errors_against_float64(data_dir, precision):
    module = tw.frontends.relay.load(str(data_dir / "relay" / "dqn.relay"), params="random")
    with tw.compile(module, target="opencl", precision=precision) as exe:
        inputs = random_inputs(exe.input_names, exe.input_types, 0)
        (got,) = exe(*inputs)
    (wanted,) = tw.interpret(module, *inputs, precision="fp64")
    low, high = ERRORS[precision]
    assert got.dtype == np.float32
    assert low <= relative_error(got, wanted) < high


def test_the_reference_target_narrows_as_well():
    module = parse(BLOCK)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((4, 16), np.float32), rng.standard_normal((8, 16), np.float32)
    ids = np.zeros((4, 8), np.int32)
    wide, tf32, narrow = (
        tw.compile(module, target="reference", precision=p)(x, w, ids)[1] for p in ("fp32", "tf32", "bf16")
    )
    assert np.array_equal(tf32, wide)
    assert 1e-4 < relative_error(narrow, wide) < 3e-2


def test_norms_and_softmax_accumulate_in_float32():
    """65,504 is the largest float16: the sum of squares is far beyond, the result is not."""
    text = """module @net {
  graph.func @main(%x: f16[2, 4096]) -> f16[2, 4096], f16[2, 4096] {
    %0 = graph.softmax(%x, axis = 1) : f16[2, 4096]
    %1 = graph.l2_normalize(%x, eps = 1e-6, axis = [1]) : f16[2, 4096]
    graph.return(%0, %1)
  }
}
"""
    module = parse(text)
    x = np.full((2, 4096), 100, np.float16)
    with tw.compile(module, target="opencl") as exe:
        soft, unit = exe(x)
    np.testing.assert_allclose(soft.astype(np.float64), 1 / 4096, rtol=1e-3)
    np.testing.assert_allclose(unit.astype(np.float64), 1 / 64, rtol=1e-3)


def test_what_cannot_be_done_is_said():
    with pytest.raises(tw.InputError, match="f16 or bf16"):
        narrowed(BLOCK, "f8")
    with pytest.raises(tw.InputError, match="precision among fp32, fp32-strict, tf32, fp16, bf16, got 'fp8'"):
        tw.compile(parse(BLOCK), target="opencl", precision="fp8")
    tensor = run_pipeline(parse(BLOCK), Pipeline.parse("infer-shapes, graph-to-tensor"), PassContext())
    with pytest.raises(tw.UnsupportedError, match="decided on graph ops"):
        tw.compile(tensor, target="opencl", precision="fp16")
