"""Sums over the same points of the same arrays are cut alike, so that they share a walk."""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.tensor.ops import dims
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.rows.same_points import sums_of_same_points
from tilewright.passes.tensor.sums import split_sums

# the sums of a norm's gradient: of g, and of g times the normalised values; %wide has one more reader
TEXT = """module @m {{
  tensor.func @main(%x: bf16[{n}, {h}, {h}, {c}], %g: bf16[{n}, {h}, {h}, {c}], %m: f32[{c}])
      -> f32[{c}], f32[{c}], f32[{n}, {h}, {h}, {c}] {{
    %0 = tensor.reduce(%g, par = (c: {c}), red = (n: {n}, y: {h}, x: {h}), reads = [[{first}]], init = [0.0])
        : f32[{c}] {{
      ^(%a: bf16, %acc: f32)
      %w = scalar.cast(%a, dtype = "f32") : f32
      %s = scalar.add(%w, %acc) : f32
      scalar.yield(%s)
    }}
    %wide = tensor.map(%g, par = (i: {n}, j: {h}, k: {h}, l: {c}), reads = [[i, j, k, l]])
        : f32[{n}, {h}, {h}, {c}] {{
      ^(%a: bf16)
      %w = scalar.cast(%a, dtype = "f32") : f32
      scalar.yield(%w)
    }}
    %2 = tensor.map(%wide, %x, {mean}, par = (i: {n}, j: {h}, k: {h}, l: {c}),
                    reads = [[i, j, k, l], [i, j, k, l], [l]]) : f32[{n}, {h}, {h}, {c}] {{
      ^(%a: f32, %b: bf16, %e: f32)
      %w = scalar.cast(%b, dtype = "f32") : f32
      %d = scalar.sub(%w, %e) : f32
      %p = scalar.mul(%a, %d) : f32
      scalar.yield(%p)
    }}
    %3 = tensor.reduce(%2, par = (c: {c}), red = (b: {n}, y: {h}, x: {h}),
                       reads = [[b, y, x, c]], init = [0.0]) : f32[{c}] {{
      ^(%a: f32, %acc: f32)
      %s = scalar.add(%a, %acc) : f32
      scalar.yield(%s)
    }}
    %4 = tensor.map(%wide, par = (i: {n}, j: {h}, k: {h}, l: {c}), reads = [[i, j, k, l]])
        : f32[{n}, {h}, {h}, {c}] {{
      ^(%a: f32)
      %s = scalar.neg(%a) : f32
      scalar.yield(%s)
    }}
    tensor.return(%0, %3, %4)
  }}
}}"""


def network(n=64, h=14, c=8, first="n, y, x, c", mean="%m"):
    return tw.parse(TEXT.format(n=n, h=h, c=c, first=first, mean=mean))


def sums(module):
    return [op for op in module.main.body.ops if op.name == "tensor.reduce"]


def groups(module):
    return list(sums_of_same_points(module.main, sums(module)))


def in_parts(module):
    return run_pipeline(module, Pipeline.parse("split-sums"), PassContext(target="cuda:sm_90a:h200"))


def test_sums_are_found_through_maps():
    module = network()
    ((plain, scaled),) = groups(module)
    assert (plain.op, scaled.op) == tuple(sums(module))
    x, g, _ = module.main.params
    assert {v for v, _ in plain.sources} == {g}
    assert {v for v, _ in scaled.sources} == {g, x}  # the wide copy is computed where it is read
    assert (len(plain.maps), len(scaled.maps)) == (0, 2)


@pytest.mark.parametrize("other", [{"first": "63 - n, y, x, c"}, {"first": "n, x, y, c"}, {"mean": "%0"}])
def test_other_points_and_sums_of_sums_share_no_walk(other):
    assert not groups(network(**other))


@pytest.fixture
def cut_apart(monkeypatch):
    """The best cuts of the two sums are of other dimensions."""
    best = {"n": ("n", 8), "b": ("y", 7)}
    monkeypatch.setattr(split_sums, "_best_cut", lambda op, *_: best[next(iter(dims(op, "red")))])


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.usefixtures("cut_apart")
def test_parts_give_the_sums(monkeypatch, alike):
    def seconds(walks, cuts, *_):
        places = {split_sums._placed(w.op, c) for w, c in zip(walks, cuts, strict=True)}
        return float((len(places) == 1) != alike)

    monkeypatch.setattr(split_sums, "_together_s", seconds)
    module = network()
    made = in_parts(module)
    parts = [op.result.tensor.shape[0] for op in sums(made) if len(op.result.tensor.shape) == 2]
    assert parts == ([8, 8] if alike else [8, 7])
    rng = np.random.default_rng(5)
    x, g = (rng.standard_normal((64, 14, 14, 8)).astype(ml_dtypes.bfloat16) for _ in range(2))
    m = rng.standard_normal(8).astype(np.float32)
    exact, moved = g.astype(np.float64), x.astype(np.float64) - m
    got = tw.interpret(made, x, g, m)
    for found, wanted in zip(got, (exact.sum((0, 1, 2)), (exact * moved).sum((0, 1, 2))), strict=False):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-3)


def test_the_model_decides_on_sums_together():
    """Alone the sum of 16-bit values goes by samples and that of products by rows of an image."""
    made = in_parts(network(h=56, c=64))
    parts = {op.result.tensor.shape for op in sums(made) if len(op.result.tensor.shape) == 2}
    assert len(parts) == 1
