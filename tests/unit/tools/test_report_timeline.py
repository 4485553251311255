"""The timeline of the report: every launch is drawn, and the page says if times are measured or modelled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
from kernels_apart import without_chains
from test_report import Page, Sample, sample

import tilewright as tw
from tilewright.profiling.profile import modelled_profile
from tilewright.running.executable import Executable
from tilewright.runtime.streams import Work
from tilewright.tools.report import collect, report_page
from tilewright.tools.report.timeline_figure import waits_across

#: two branches of a product each; that they are different ops keeps them from being one product
FORK = """#[version = "0.0.5"]
def @main(%data: Tensor[(16, 32), float32], %w0: Tensor[(24, 32), float32],
          %w1: Tensor[(24, 32), float32]) -> Tensor[(16, 24), float32] {
  %0 = nn.dense(%data, %w0, units=24);
  %1 = nn.matmul(%data, %w1, units=24, transpose_b=True);
  %2 = nn.softmax(%0);
  %3 = nn.softmax(%1);
  add(%2, %3)
}
"""


@pytest.fixture(scope="module", autouse=True)
def kernels_apart() -> Iterator[None]:
    with without_chains():
        yield


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("timeline") / "fork.relay"
    found.write_text(FORK)
    return found


@pytest.fixture(scope="module")
def measured(path: Path) -> Sample:
    return sample(str(path))


@pytest.fixture(scope="module")
def modelled(path: Path) -> Sample:
    module = tw.frontends.relay.load(str(path), params="random", inputs=("data",), seed=0)
    exe = tw.compile(module, target="null", streams="exact", progress=False)
    with exe:
        facts = collect(exe, "fork.relay", repeats=3)
    text = report_page(facts)
    return Sample(exe, facts, text, Page(text))


@pytest.mark.parametrize("which", ["measured", "modelled"])
def test_every_launch_is_drawn_and_leads_to_its_kernel(which: str, request: pytest.FixtureRequest) -> None:
    s: Sample = request.getfixturevalue(which)
    drawn = {i for i in s.page.ids if i.startswith("timeline-launch-")}
    assert drawn == {f"timeline-launch-{i}" for i in range(len(s.exe.plan.launches))}
    assert len(s.facts.replay.launches) == len(s.exe.plan.launches)
    inside = s.text[s.text.index('<svg id="timeline"') :]
    inside = inside[: inside.index("</svg>")]
    for launch in s.facts.launches:
        assert f'href="#kernel-{launch.kernel + 1}"' in inside
    assert inside.count(", on the critical path") == len(s.facts.replay.critical_path)
    assert ("measured" in inside) == (which == "measured")
    compared = s.facts.replay.speedup_over_serial
    assert (compared is None) == (s.facts.replay.streams == 1) == ("Against the serial plan" not in s.text)
    if compared is not None:
        assert f"{compared:.2f} x" in s.text


def test_a_measured_timeline_says_how(measured: Sample) -> None:
    replay = measured.facts.replay
    assert replay.clock == "events"
    assert replay is measured.facts.timing.profile
    assert "the profiling events of OpenCL" in measured.text
    assert "by the host&#x27;s clock" in measured.text


def test_a_modelled_timeline_says_so(modelled: Sample) -> None:
    replay, plan = modelled.facts.replay, modelled.exe.plan
    assert replay.clock == "model"
    assert replay.streams == 2
    assert len(waits_across(replay)) == sum(
        plan.launches[d].stream != x.stream for x in plan.launches for d in x.deps
    )
    assert "as the cost model sees it" in modelled.text
    assert "the null target has no device to time" in modelled.text
    assert "by the model" in str(replay)


def test_the_model_of_a_replay_keeps_dependencies_and_boundaries(modelled: Sample) -> None:
    plan = modelled.exe.plan
    n = len(plan.launches)
    boundary_s = 1e-6
    costs = [3e-6 + 1e-6 * i for i in range(n)]
    wide = modelled_profile(plan, Work.of(n, costs, [0.1] * n, boundary_s), "device")
    full = modelled_profile(plan, Work.of(n, costs, [1.0] * n, boundary_s), "device")
    for replay in (wide, full):
        for x in replay.launches:
            assert x.seconds == pytest.approx(costs[x.index])
            for dep in x.deps:
                assert x.start_s >= replay.launches[dep].end_s + boundary_s - 1e-12
    assert wide.total_s == pytest.approx(wide.critical_s + wide.boundaries * boundary_s)
    assert full.total_s >= sum(costs)  # no room for two at once
    assert full.concurrency <= 1
    assert wide.concurrency > 1
    assert wide.serial_s == full.serial_s == pytest.approx(sum(costs) + (n - 1) * boundary_s)
    assert plan.dag.n == n


def test_a_replay_that_cannot_be_recorded_is_modelled_and_says_why(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise tw.UnsupportedError("kernel 'k' cannot be profiled")

    monkeypatch.setattr(Executable, "profile", refuse)
    s = sample(str(path))
    assert s.facts.timing.measured
    assert s.facts.timing.unrecorded == "kernel 'k' cannot be profiled"
    assert s.facts.replay.clock == "model"
    assert "kernel &#x27;k&#x27; cannot be profiled" in s.text


def test_many_waits_are_left_out_of_the_picture(modelled: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Waits across streams are thin lines" in modelled.text
    for module in ("timeline_figure", "report_page"):
        monkeypatch.setattr(import_module(f"tilewright.tools.report.{module}"), "SHOWN_WAITS", 0)
    text = report_page(replace(modelled.facts))
    assert "Waits across streams are too many to be drawn" in text
    assert text.count("<path") < modelled.text.count("<path")
