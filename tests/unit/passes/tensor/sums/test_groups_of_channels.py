"""Sums over groups of channels that lie last: what threads read lies side by side."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.expr import symbols
from tilewright.ir.tensor.ops import dims, reads
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.row_phases import row_phases
from tilewright.passes.tensor.sums import split_sums


def moments(samples: int, points: int, groups: int, channels: int, last: bool = True) -> tw.Module:
    """Mean and squared distances of groups of channels, which lie last or in front of the points."""
    shape = [samples, points, groups, channels] if last else [samples, groups, channels, points]
    at, results = ("n, p, g, c" if last else "n, g, c, p"), f"f32[{samples}, {groups}]"
    par, red = (
        f"n: {samples}, g: {groups}",
        f"p: {points}, c: {channels}" if last else f"c: {channels}, p: {points}",
    )
    return tw.parse(f"""module @m {{
      tensor.func @main(%x: f32{shape}) -> {results}, {results} {{
        %0 = tensor.reduce(%x, par = ({par}), red = ({red}), reads = [[{at}]]) : {results} {{
          ^(%a: f32, %acc: f32)
          %s = scalar.add(%a, %acc) : f32
          scalar.yield(%s)
        }}
        %1 = tensor.map(%0, par = ({par}), reads = [[n, g]]) : {results} {{
          ^(%a: f32)
          %n = scalar.const(value = {float(points * channels)}, dtype = "f32") : f32
          %m = scalar.div(%a, %n) : f32
          scalar.yield(%m)
        }}
        %2 = tensor.reduce(%x, %1, par = ({par}), red = ({red}), reads = [[{at}], [n, g]]) : {results} {{
          ^(%a: f32, %m: f32, %acc: f32)
          %d = scalar.sub(%a, %m) : f32
          %s = scalar.fma(%d, %d, %acc) : f32
          scalar.yield(%s)
        }}
        tensor.return(%1, %2)
      }}
    }}""")


def cut(module):
    return run_pipeline(module, Pipeline.parse("split-sums"), PassContext(target="cuda:sm_90a:h200"))


def test_large_ones_are_summed_by_channels():
    first = cut(moments(64, 16384, 8, 8)).main.body.ops[0]
    assert list(dims(first, "par").values()) == [64, 8, 8]
    assert dims(first, "red")["c"] == 1
    (at, _) = reads(first)
    assert list(dims(first, "par"))[-1] in symbols(at[-1])  # sums of neighbours lie side by side


def test_their_kernel_reads_across_rows():
    exe = tw.compile(moments(64, 16384, 8, 8), target="cuda:sm_90a:h200", progress=False)
    kernel = exe.report()["kernels"][0]
    assert kernel["template"] == "rows_across"


def test_channels_in_front_are_rows_as_they_are():
    module = moments(64, 16384, 8, 8, last=False)
    for op in cut(module).main.body.ops:
        assert "c" not in dims(op, "par")


def test_the_innermost_dimension_is_cut_into_its_elements_or_not_at_all():
    op = moments(8, 4096, 32, 10).main.body.ops[0]
    assert {c for c in split_sums._cuts(op) if c[0] == "c"} == {("c", 10)}
    assert not [c for c in split_sums._cuts(moments(8, 64, 8, 64).main.body.ops[0]) if c[0] == "c"]


@pytest.mark.parametrize("shape", [(2, 64, 4, 6), (3, 128, 2, 8)])
def test_results_are_the_moments(monkeypatch, shape):
    monkeypatch.setattr(split_sums, "_best_cut", lambda op, *_: ("c", dims(op, "red")["c"]))
    monkeypatch.setattr(split_sums, "_is_long_sum", lambda op: op.name == "tensor.reduce")
    made = cut(moments(*shape))
    assert made.main.body.ops[0].result.tensor.shape == (shape[0], shape[2], shape[3])
    x = np.random.default_rng(5).standard_normal(shape, np.float32) + 3.0
    mean, squares = tw.interpret(made, x)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(mean, exact.mean((1, 3)), rtol=1e-6)
    wanted = ((exact - exact.mean((1, 3), keepdims=True)) ** 2).sum((1, 3))
    np.testing.assert_allclose(squares, wanted, rtol=1e-5)


@pytest.mark.parametrize(("last", "piece"), [(True, 8), (False, 0)])
def test_pieces_of_rows(last, piece):
    module = moments(4, 64, 8, 8, last=last)
    kernel = run_pipeline(
        module, Pipeline.parse("fuse-kernels"), PassContext(target="cuda:sm_90a:h200")
    ).funcs[0]
    phases = row_phases(kernel)
    assert phases is not None
    assert phases.piece(kernel) == piece
