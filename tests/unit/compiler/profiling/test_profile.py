"""Profiles on the emulator and on OpenCL: timelines keep the plan's order, traces follow the format."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from kernels_apart import without_chains

import tilewright as tw
from tilewright.profiling.kernel_times import serial_plan
from tilewright.profiling.profile import Profile
from tilewright.profiling.replay_record import CopySpan, LaunchSpan, ProcessorSpan
from tilewright.profiling.timeline import covered
from tilewright.runtime.plan.container import read_saved, write_container
from tilewright.tools.cli import main

#: two products side by side, joined
FORK = """#[version = "0.0.5"]
def @main(%data: Tensor[(8, 16), float32], %w0: Tensor[(12, 16), float32],
          %w1: Tensor[(12, 16), float32]) -> Tensor[(8, 12), float32] {
  %0 = nn.dense(%data, %w0, units=12);
  %1 = nn.dense(%data, %w1, units=12);
  %2 = nn.softmax(%0);
  %3 = nn.softmax(%1);
  add(%2, %3)
}
"""


@pytest.fixture(scope="module", autouse=True)
def kernels_apart():
    with without_chains():
        yield


X = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    path = tmp_path_factory.mktemp("profile") / "fork.relay"
    path.write_text(FORK)
    return path


def compiled(path, target):
    module = tw.frontends.relay.load(str(path), params="random", inputs=("data",), seed=0)
    return tw.compile(module, target=target, progress=False)


@pytest.fixture(scope="module")
def emulated(net):
    with compiled(net, "emulator:sm_90a") as exe:
        yield exe


@pytest.fixture(scope="module", params=["emulator", "opencl"])
def profile(request, net):
    if request.param == "emulator":
        exe = request.getfixturevalue("emulated")
        return exe.profile(X, repeats=2, compare_serial=True)
    with compiled(net, "opencl") as exe:
        return exe.profile(X, repeats=3, compare_serial=True)


def span(index, stream, deps, start, end, *, processors=()):
    return LaunchSpan(
        index, f"k{index}", ("relay:add#0",), stream, deps, (2, 1, 1), 64, start, start, end, processors
    )


@pytest.fixture
def made() -> Profile:
    """0, then 1 and 2 on two streams, then 3; times in microseconds."""
    us = 1e-6
    blocks = (ProcessorSpan(7, 10 * us, 16 * us, 5 * us, 1), ProcessorSpan(9, 11 * us, 18 * us, 7 * us, 1))
    launches = (
        span(0, 0, (), 0, 8 * us),
        span(1, 0, (0,), 10 * us, 18 * us, processors=blocks),
        span(2, 1, (0,), 9 * us, 13 * us, processors=(replace(blocks[0], start_s=9 * us, end_s=13 * us),)),
        span(3, 0, (1, 2), 21 * us, 30 * us),
    )
    copies = (CopySpan("in", ("x",), 4096, 3 * us), CopySpan("out", ("y",), 1024, 2 * us))
    return Profile(
        "cuda:sm_90a", "GPU", "stamps", 5, launches, 28 * us, 31 * us, 32e-9, copies,
        {7: 15 * us, 9: 30 * us}, 35 * us,
    )  # fmt: skip


def test_the_numbers_of_a_made_up_replay(made):
    assert made.span_s == pytest.approx(30e-6)
    assert made.idle_share == pytest.approx(4 / 30)  # 8 to 9, 18 to 21
    assert made.critical_path == (0, 1, 3)
    assert made.critical_s == pytest.approx(25e-6)
    assert made.boundaries == 2
    assert made.boundary_s == pytest.approx(2.5e-6)
    assert made.idle_share_beyond_boundaries == pytest.approx(0.5 / 30)
    assert made.processor_idle_share == pytest.approx(0.25)
    assert made.concurrency == pytest.approx(29 / 30)
    assert made.overhead == pytest.approx(3 / 28)
    assert made.speedup_over_serial == pytest.approx(1.25)
    text = str(made)
    assert "idle 13.3 %" in text
    assert "1.25 times as long" in text
    assert "stamping costs +10.7 %" in text
    assert [line[0] for line in text.splitlines()[-4:]] == ["*", " ", "*", "*"]


def check_trace(trace: dict) -> None:
    """The rules of the format, and what readers of it need."""
    events = trace["traceEvents"]
    named = {(e["name"], e["pid"], e["tid"]) for e in events if e["ph"] == "M"}
    timed = [e for e in events if e["ph"] != "M"]
    assert events[: len(events) - len(timed)] == [e for e in events if e["ph"] == "M"]
    assert [e["ts"] for e in timed] == sorted(e["ts"] for e in timed)
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for e in timed:
        assert e["ph"] in ("X", "s", "f")
        assert e["name"]
        assert e["ts"] >= 0
        assert ("process_name", e["pid"], 0) in named
        assert ("thread_name", e["pid"], e["tid"]) in named
        if e["ph"] == "X":
            assert e["dur"] >= 0
            threads.setdefault((e["pid"], e["tid"]), []).append((e["ts"], e["ts"] + e["dur"]))
    for spans in threads.values():
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(sorted(spans)))
    starts = {e["id"]: e for e in timed if e["ph"] == "s"}
    ends = {e["id"]: e for e in timed if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) + len(ends) == sum(e["ph"] in "sf" for e in timed)
    for number, e in starts.items():
        assert e["ts"] <= ends[number]["ts"]
        assert ends[number]["bp"] == "e"
        for arrow in (e, ends[number]):
            assert any(a <= arrow["ts"] <= b for a, b in threads[arrow["pid"], arrow["tid"]])


def test_a_trace_of_overlapping_kernels(made):
    trace = json.loads(made.to_json())
    check_trace(trace)
    kernels = [e for e in trace["traceEvents"] if e.get("cat") == "kernel"]
    assert [(e["name"], e["ts"], e["dur"]) for e in kernels] == [
        ("k0", 3, 8), ("k2", 12, 4), ("k1", 13, 8), ("k3", 24, 9),
    ]  # fmt: skip
    assert kernels[0]["args"]["origin"] == ["relay:add#0"]
    assert [e["args"]["on_critical_path"] for e in kernels] == [True, False, True, True]
    copies = [e for e in trace["traceEvents"] if e.get("cat") == "copy"]
    assert [(e["ts"], e["dur"], e["args"]["bytes"]) for e in copies] == [(0, 3, 4096), (33, 2, 1024)]
    assert sum(e["ph"] == "s" for e in trace["traceEvents"]) == 2  # 0 to 2 and 2 to 3 cross streams
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"]
    # kernels 1 and 2 ran on processor 7 at the same time
    assert names == ["copies", "stream 0", "stream 1", "SM 7, 1 of 2", "SM 7, 2 of 2", "SM 9"]
    assert trace["otherData"]["idle_share"] == made.idle_share


def test_kernels_of_one_stream_that_overlap_get_threads_of_their_own(made):
    together = replace(made, launches=tuple(replace(x, stream=0) for x in made.launches))
    check_trace(together.trace())
    assert not any(e["ph"] == "s" for e in together.trace()["traceEvents"])


@pytest.mark.emulator
def test_launches_keep_the_order_of_the_plan(profile):
    assert len(profile.launches) >= 3
    for x in profile.launches:
        assert 0 <= x.arrived_s <= x.start_s <= x.end_s
        for dep in x.deps:
            assert profile.launches[dep].end_s <= x.start_s
    assert profile.span_s == pytest.approx(
        profile.timeline.idle_s + covered(profile.timeline.spans), rel=1e-9
    )
    assert 0 <= profile.idle_share_beyond_boundaries <= profile.idle_share < 1
    assert profile.critical_s <= profile.span_s
    assert profile.total_s > 0
    assert profile.resolution_s > 0
    assert (profile.serial_s is None) == (profile.streams == 1)
    check_trace(json.loads(profile.to_json()))


@pytest.mark.emulator
def test_profiling_on_the_emulator_sees_every_block_and_changes_nothing(emulated):
    before = emulated(X)
    profile = emulated.profile(X, repeats=1)
    for a, b in zip(before, emulated(X), strict=True):
        np.testing.assert_array_equal(a, b)
    assert profile.clock == "stamps"
    assert profile.recorded_s is not None
    assert profile.serial_s is profile.speedup_over_serial is None
    assert profile.copies == ()
    for x, launch in zip(profile.launches, emulated.plan.launches, strict=True):
        assert (x.kernel, x.grid, x.deps) == (launch.kernel, launch.grid, launch.deps)
        assert sum(p.blocks for p in x.processors) == x.blocks


@pytest.mark.emulator
def test_a_loaded_executable_can_be_profiled(emulated, tmp_path):
    emulated.save(tmp_path / "net.tw")
    with tw.load(tmp_path / "net.tw", target="emulator") as exe:
        profile = exe.profile(X, repeats=1)
    assert [x.kernel for x in profile.launches] == [x.kernel for x in emulated.plan.launches]


@pytest.mark.emulator
def test_a_process_that_compiles_nothing_reads_the_kernels_of_a_file(emulated, tmp_path):
    emulated.save(tmp_path / "net.tw")
    loaded = "tilewright.load(sys.argv[1], target='emulator')"
    code = f"import sys, tilewright; print(len({loaded}.artifact.kernels().funcs))"
    command = [sys.executable, "-c", code, str(tmp_path / "net.tw")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(printed) == len(emulated.artifact.kernels().funcs)


@pytest.mark.emulator
def test_a_file_that_was_loaded_and_saved_again_can_be_profiled(emulated, tmp_path):
    emulated.save(tmp_path / "net.tw")
    with tw.load(tmp_path / "net.tw", target="emulator") as exe:
        exe.save(tmp_path / "again.tw")
    assert (tmp_path / "again.tw").read_bytes() == (tmp_path / "net.tw").read_bytes()


@pytest.mark.emulator
@pytest.mark.parametrize("change", ["a kernel", "a name", "no names", "too few names"])
def test_kernels_of_another_version_are_not_timed_in_place_of_the_plan_s(emulated, tmp_path, change):
    kernel = emulated.plan.kernels[0]
    emulated.save(tmp_path / "net.tw")
    saved = read_saved(tmp_path / "net.tw")
    names = saved.facts["value_names"]
    fault = "this version of Tilewright emits it other"
    if change == "a kernel":
        other = replace(kernel, source=kernel.source.replace("[", "[0 + ", 1))
        saved = replace(saved, plan=saved.plan.replace(kernels=(other, *saved.plan.kernels[1:])))
    elif change == "a name":
        names[kernel.name][0] += "_other"
    elif change == "no names":
        names.clear()
        fault = "its file lacks the names of its values"
    else:
        names[kernel.name].pop()
        fault = "expected names of"
    write_container(tmp_path / "old.tw", saved)
    with tw.load(tmp_path / "old.tw", target="emulator") as exe:
        assert exe.report()["kernels"] == emulated.report()["kernels"]
        with pytest.raises(tw.UnsupportedError, match=fault):
            exe.profile(X, repeats=1)


def test_events_of_opencl_and_copies(net):
    with compiled(net, "opencl") as exe:
        profile = exe.profile(X, repeats=2)
    assert profile.clock == "events"
    assert profile.recorded_s is None
    assert profile.overhead == 0
    assert [(c.direction, c.nbytes) for c in profile.copies] == [("in", X.nbytes), ("out", 8 * 12 * 4)]
    assert all(c.seconds >= 0 for c in profile.copies)


def test_the_serial_plan_is_a_chain(net):
    plan = serial_plan(compiled(net, "null").plan)
    dag = plan.dag
    assert all(dag.ordered(i - 1, i) for i in range(1, dag.n))
    assert {x.stream for x in plan.launches} == {0}


@pytest.mark.parametrize("target", ["null", "reference"])
def test_targets_without_kernels_say_so(net, target):
    with compiled(net, target) as exe, pytest.raises(tw.UnsupportedError, match=f"the {target} target"):
        exe.profile(X)


def test_bad_requests_are_input_errors(net):
    with compiled(net, "opencl") as exe:
        with pytest.raises(tw.InputError, match="repeats"):
            exe.profile(X, repeats=0)
        with pytest.raises(tw.InputError, match="data"):
            exe.profile(X[:3])


def test_a_network_without_kernels_has_an_empty_profile():
    module = tw.ir.parse("module @n { graph.func @main(%x: f32[2, 3]) -> f32[2, 3] { graph.return(%x) } }")
    with tw.compile(module, target="opencl", progress=False) as exe:
        profile = exe.profile(np.zeros((2, 3), np.float32), repeats=1, compare_serial=True)
    assert (profile.span_s, profile.idle_share, profile.critical_path) == (0, 0, ())
    check_trace(profile.trace())
    assert "0 launches" in str(profile)


def test_the_command_writes_a_trace(net, tmp_path, capsys):
    out = tmp_path / "trace.json"
    arguments = ["run", str(net), "--target", "opencl", "--repeats", "2", "--trace", str(out)]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["profile"]
    assert {"idle_share", "critical_path_s", "critical_path_launches", "speedup_over_serial"} <= found.keys()
    check_trace(json.loads(out.read_text()))
    assert main(arguments) == 0
    assert "critical path:" in capsys.readouterr().out
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_an_unwritable_trace_is_one_line(net, tmp_path, capsys):
    out = tmp_path / "no" / "trace.json"
    assert main(["run", str(net), "--target", "opencl", "--repeats", "1", "--trace", str(out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "cannot write the trace" in error
    assert error.count("\n") == 1


def test_the_documented_code_runs(data_dir, monkeypatch):
    root = data_dir.parents[1]
    monkeypatch.chdir(root)
    text = (root / "docs" / "profiling.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    space: dict[str, object] = {}
    exec(compile(code, "docs/profiling.md", "exec"), space)
    profile = space["profile"]
    assert isinstance(profile, Profile)
    assert len(profile.launches) == 4
    listed = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))))
    assert listed <= profile.summary().keys() | {"summary"}
    assert {"idle_share", "critical_path_s"} <= listed
