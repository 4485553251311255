"""Masks that products draw get kernels of their own where the model says that this is faster."""

import numpy as np
import pytest
from attention_training import TARGET

from tilewright.costmodel import load_hardware
from tilewright.ir import interpret, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.tensor.fusion import drawn_apart

PASSES = "training-mode, dce, cse, graph-to-tensor, allow-tf32, inline-scalars, inline-maps"


def dropped(rows, depth, columns, dtype="f16"):
    """A product with dropout and a residual behind its sums, as tensor ops."""
    text = f"""module @m {{ graph.func @main(%x: {dtype}[{rows}, {depth}], %w: {dtype}[{columns}, {depth}],
        %r: {dtype}[{rows}, {columns}]) -> {dtype}[{rows}, {columns}] {{
      %0 = graph.dense(%x, %w) : {dtype}[{rows}, {columns}]
      %1 = graph.dropout(%0, rate = 0.25) : {dtype}[{rows}, {columns}]
      %2 = graph.add(%1, %r) : {dtype}[{rows}, {columns}]
      graph.return(%2) }} }}"""
    return run_pipeline(parse(text), Pipeline.parse(PASSES), PassContext(target=TARGET))


def fused(module, target=TARGET):
    return run_pipeline(module, Pipeline.parse("fuse-kernels"), PassContext(target=target))


def large(module):
    """Kernels of @main without those of the state, which are of a few elements."""
    kernels = [f for f in module.funcs if f.name != "main"]
    return [f for f in kernels if max(t.size for t in f.result_types) > 2]


@pytest.mark.parametrize(("sizes", "kernels"), [((64, 1024, 64), 1), ((8192, 4096, 1024), 2)])
def test_large_masks_are_drawn_by_kernels_of_their_own(sizes, kernels):
    """A launch takes longer than a product of few results draws."""
    assert len(large(fused(dropped(*sizes)))) == kernels


def test_kernels_apart_take_less_time_by_the_model(monkeypatch):
    def seconds(module):
        passes = Pipeline.parse("split-dims, merge-dims, choose-parameters")
        ctx = PassContext(target=TARGET, hardware=load_hardware(TARGET))
        return sum(map(estimate_of, large(run_pipeline(fused(module), passes, ctx))))

    module = dropped(8192, 4096, 1024)
    apart = seconds(module)
    monkeypatch.setattr(drawn_apart, "_draws", lambda *_: [])
    assert apart + load_hardware(TARGET).fusion.boundary_s < seconds(module)


def test_a_mask_apart_is_the_same_mask(monkeypatch):
    """Both kernels together compute what the product did; the mask goes over in one byte an element."""
    module = dropped(32, 16, 24, "f32")
    assert len(large(fused(module))) == 1
    monkeypatch.setattr(drawn_apart, "_seconds", lambda group, *_: float(len(group.ops) ** 2))
    apart = fused(module)
    assert sorted(t.dtype for f in large(apart) for t in f.result_types) == ["bool", "f32"]
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(p.tensor.shape).astype(np.float32) for p in module.main.params[:3]]
    inputs += [np.full(p.tensor.shape, 7, np.uint32) for p in module.main.params[3:]]
    for got, wanted in zip(interpret(apart, *inputs), interpret(module, *inputs), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_nothing_is_apart_on_a_processor():
    assert len(large(fused(dropped(12288, 1024, 1024, "f32"), "opencl"))) == 1
