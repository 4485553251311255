"""Algorithms of convolutions by measurement: what is timed, what is left out, what is chosen and recorded."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.report_facts import convolution_facts
from tilewright.devices.targets import resolve_target
from tilewright.passes.estimation.convolution_layers import layers_of
from tilewright.tuning.algorithms import measured_algorithms

NET = """module @m { graph.func @main(%x: f32[1, 64, 14, 14], %v: f32[64, 64, 3, 3]) -> f32[1, 64, 14, 14] {
  %w = graph.constant(name = "w") : f32[64, 64, 3, 3]
  %b = graph.constant(name = "b") : f32[64]
  %0 = graph.conv2d(%x, %w, padding = [1, 1, 1, 1]) : f32[1, 64, 14, 14] loc "plain"
  %1 = graph.conv2d(%0, %w, padding = [1, 1, 1, 1]) : f32[1, 64, 14, 14] loc "first"
  %2 = graph.bias_add(%1, %b) : f32[1, 64, 14, 14]
  %3 = graph.relu(%2) : f32[1, 64, 14, 14]
  %4 = graph.conv2d(%3, %w, padding = [1, 1, 1, 1]) : f32[1, 64, 14, 14] loc "alike"
  %5 = graph.bias_add(%4, %b) : f32[1, 64, 14, 14]
  %6 = graph.relu(%5) : f32[1, 64, 14, 14]
  %7 = graph.conv2d(%6, %v, padding = [1, 1, 1, 1]) : f32[1, 64, 14, 14] loc "input"
  %8 = graph.conv2d(%7, %w, padding = [2, 2, 2, 2], dilation = [2, 2]) : f32[1, 64, 14, 14] loc "dilated"
  graph.return(%8) } }"""
TARGET = resolve_target("null")


class Timings:
    """Seconds by number of kernels in place of a device; the programs that were timed."""

    def __init__(self) -> None:
        self.target = TARGET
        self.by_kernels = {1: 9e-5, 3: 5e-5, 4: 5e-5}
        self.asked = []

    def seconds(self, modules):
        self.asked.extend(modules)
        return [self.by_kernels.get(len(m.funcs) - 1, 1e-3) for m in modules]


@pytest.fixture
def timings():
    return Timings()


def test_layers_alike_share_their_key():
    plain, first, alike, given, dilated = layers_of(tw.parse(NET).main)
    assert [op.name for op in first.behind] == ["graph.bias_add", "graph.relu"]
    assert first.key == alike.key
    assert len({x.key for x in (plain, first, given, dilated)}) == 4
    assert len(first.constants) == 2
    assert not given.constants


def test_the_fastest_is_chosen_and_convolutions_alike_are_timed_once(timings):
    out = measured_algorithms(tw.parse(NET), timings, progress=False)
    named = [op["algorithm"] for op in out.main.body.ops if op.name == "graph.conv2d"]
    assert all(name.startswith("winograd") for name in named[:3])
    assert named[4] == "direct"
    rows = convolution_facts(out.main, TARGET.hardware)
    assert [r["origins"] for r in rows] == [["plain"], ["first", "alike"], ["input"], ["dilated"]]
    assert [len(r["considered"]) for r in rows] == [4, 4, 4, 0]
    timed = [c for r in rows for c in r["considered"] if c["measured_s"] is not None]
    assert len(timings.asked) == len(timed)
    assert all(c["measured_s"] for r in rows for c in r["considered"] if c["algorithm"] == "direct")
    again = tw.parse(tw.ir.show(out))
    assert convolution_facts(again.main, TARGET.hardware) == rows


def test_what_cannot_win_by_its_bound_is_not_timed(timings):
    timings.by_kernels[1] = 1e-6  # below what the launches of the others take
    out = measured_algorithms(tw.parse(NET), timings, progress=False)
    rows = convolution_facts(out.main, TARGET.hardware)
    assert {r["algorithm"] for r in rows} == {"direct"}
    for considered in (r["considered"] for r in rows[:3]):
        (direct,) = (c for c in considered if c["algorithm"] == "direct")
        others = [c for c in considered if c is not direct]
        assert all(c["bound_s"] > timings.by_kernels[1] for c in others)
        assert all((c["measured_s"] is None) == (c["estimate_s"] > direct["estimate_s"]) for c in others)
    considered = [c for r in rows for c in r["considered"]]
    assert len(timings.asked) == sum(c["measured_s"] is not None for c in considered) < len(considered)


def test_on_a_device():
    text = (
        "module @m { graph.func @main(%x: f32[1, 4, 6, 6], %w: f32[4, 1, 3, 3]) -> f32[1, 4, 6, 6] {"
        " %0 = graph.conv2d(%x, %w, padding = [1, 1, 1, 1], groups = 4) : f32[1, 4, 6, 6]"
        " %1 = graph.add(%0, %x) : f32[1, 4, 6, 6] graph.return(%1) } }"
    )
    module = tw.parse(text)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 4, 6, 6), (4, 1, 3, 3)))
    with tw.compile(module, target="opencl", tune="measure", progress=False) as exe:
        (got,) = exe(x, w)
        (row,) = exe.report()["convolutions"]
    np.testing.assert_allclose(got, tw.interpret(module, x, w)[0], rtol=1e-5, atol=1e-5)
    assert {c["algorithm"] for c in row["considered"]} == {"direct", "fft"}
    timed = [c for c in row["considered"] if c["measured_s"]]
    assert row["algorithm"] == min(timed, key=lambda c: c["measured_s"])["algorithm"]
