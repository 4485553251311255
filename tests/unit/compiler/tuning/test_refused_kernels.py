"""Kernels that ptxas serialises get the next parameters by the model, loudly; without any left they fail."""

from dataclasses import replace

import pytest

import tilewright as tw
import tilewright.compilation.kernel_builds as builds
from tilewright.compilation.kernel_builds import SerialisedKernels
from tilewright.tools.cli import main

TARGET = "cuda:sm_90a:h200"
REMARK = "(C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to this test"


def serialised(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Let ptxas remark of the first `count` different texts that it serialises them."""
    texts: list[str] = []
    compile_many = builds.compile_many

    def remarked(named, **options):
        texts.extend(s for _, s in named if s not in texts)
        binaries = compile_many(named, **options)
        bad = texts[:count]
        return [replace(b, log=REMARK) if s in bad else b for (_, s), b in zip(named, binaries, strict=True)]

    monkeypatch.setattr(builds, "compile_many", remarked)


NETWORK = """
module @small {
  graph.func @main(%x: f32[128, 64], %w: f32[64, 64]) -> f32[128, 64] {
    %0 = graph.dense(%x, %w) : f32[128, 64]
    graph.return(%0)
  }
}
"""


def test_the_next_parameters_take_the_place_of_refused_ones(monkeypatch, tmp_path, capsys):
    with tw.compile(tw.parse(NETWORK), TARGET, precision="fp16") as exe:
        (first,) = (k for k in exe.artifact.facts["kernels"] if k["template"] == "contract")
        assert "refused" not in exe.artifact.facts
    serialised(monkeypatch, 1)
    with pytest.warns(RuntimeWarning, match=f"'{first['name']}' with .* is refused.*C7512.*next parameters"):
        exe = tw.compile(tw.parse(NETWORK), TARGET, precision="fp16")
    (second,) = (k for k in exe.artifact.facts["kernels"] if k["name"] == first["name"])
    (fact,) = exe.artifact.facts["refused"]
    exe.save(tmp_path / "small.tw")
    exe.close()
    assert (second["template"], second["params"]) != (first["template"], first["params"])
    assert second["cost"]["estimate_s"] >= first["cost"]["estimate_s"]
    assert (fact["kernel"], fact["reason"]) == (first["name"], REMARK)
    assert main(["explain", str(tmp_path / "small.tw")]) == 0
    assert f"refused {first['name']} with {fact['params']}: {REMARK}" in capsys.readouterr().out


def test_a_kernel_of_which_nothing_is_left_fails(monkeypatch):
    serialised(monkeypatch, 1000)
    with pytest.warns(RuntimeWarning), pytest.raises(SerialisedKernels, match="wait for one another"):
        tw.compile(tw.parse(NETWORK), TARGET, precision="fp16")
