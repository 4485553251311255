"""Records of kernels: what plans are made with, and what reports and files say of them."""

from dataclasses import replace

import tilewright as tw
from tilewright.compilation.kernel_records import KernelRecord, kernel_records
from tilewright.ir.modules.compare import equal
from tilewright.measuring.stream_choice import KernelCost, kernel_costs

NET = """module @m { graph.func @main(%x: f32[64, 32], %w: f32[32, 48]) -> f32[64, 48] {
  %0 = graph.matmul(%x, %w) : f32[64, 48] loc "a"
  %1 = graph.softmax(%0, axis = 1) : f32[64, 48] loc "b"
  graph.return(%1)
} }"""


def test_records_are_what_the_report_says(tmp_path):
    exe = tw.compile(tw.parse(NET), "null")
    records = kernel_records(exe.artifact.modules["thread"])
    assert [r.facts() for r in records] == exe.report()["kernels"]
    assert {at for r in records for at in r.origins} == {"a", "b"}
    assert all(r.seconds >= r.bound_s > 0 for r in records)
    exe.save(tmp_path / "net.tw")
    saved = tw.load(tmp_path / "net.tw")
    assert tuple(map(KernelRecord.read, saved.report()["kernels"])) == records


def test_the_kernels_of_an_artifact_are_those_of_its_text(tmp_path):
    exe = tw.compile(tw.parse(NET), "null")
    exe.save(tmp_path / "net.tw")
    saved = tw.load(tmp_path / "net.tw").artifact
    assert not saved.modules
    assert saved.texts == exe.artifact.texts
    for level, module in exe.artifact.modules.items():
        assert equal(module, saved.module(level))


def test_a_launch_costs_what_was_measured_and_else_the_estimate():
    cost = {"estimate_s": 4.0, "bound_s": 1.0, "limit": "DRAM"}
    modelled = KernelRecord("k", (), "map", (1, 1, 1), 32, None, cost, None)
    measured = replace(modelled, name="m", measured_s=2.0)
    waiting = replace(modelled, name="w", cost={**cost, "limit": "LAT"})
    unknown = replace(modelled, name="u", cost=None)
    assert kernel_costs([modelled, measured, waiting, unknown]) == {
        "k": KernelCost(4.0, 0.25, blocks=1),
        "m": KernelCost(2.0, 0.5, blocks=1),
        "w": KernelCost(4.0, 0.0, blocks=1),
        "u": KernelCost(0.0, 0.0, blocks=1),
    }
