"""Tuning through the database: nothing is measured twice, and an interrupted run goes on where it stopped."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.measuring import budget
from tilewright.measuring import measurer as measuring
from tilewright.runtime.null.device import NullDevice
from tilewright.tools.cli import main
from tilewright.tuning import tuner as tuning
from tilewright.tuning.database.database import TuningDatabase

NET = """module @{name} {{ graph.func @main(%x: f32[4, 32]) -> f32[4, 24] {{
  %w = graph.constant(name = "w") : f32[48, 32]
  %v = graph.constant(name = "v") : f32[24, 48]
  %0 = graph.dense(%x, %w) : f32[4, 48] loc "{loc}.first"
  %1 = graph.relu(%0) : f32[4, 48]
  %2 = graph.dense(%1, %v) : f32[4, 24] loc "{loc}.second"
  graph.return(%2) }} }}"""


class CountingDevice(NullDevice):
    """Runs nothing; every program takes a time that depends on its launches, and some raise."""

    name = "counter"
    driver_version = "1"

    def __init__(self, fail=lambda n: None):
        super().__init__()
        self.timed, self.fail, self.plans = 0, fail, []

    def load(self, plan, constants, *, progress=None):
        loaded = super().load(plan, constants, progress=progress)
        loaded.time = partial(self.time, plan.launches[0])
        self.plans.append(loaded)
        return loaded

    def time(self, launch, inputs, repeats):
        if repeats == measuring.REPLAYS:  # a candidate alone, not a whole network
            self.fail(self.timed)
            self.timed += 1
        return [1e-4 * (launch.grid[0] + launch.grid[1] / 3 + launch.block / 7)] * repeats

    def is_closed(self):
        return self._closed and all(loaded._closed for loaded in self.plans)


def network(name="m", loc="net"):
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((48, 32)), "v": rng.standard_normal((24, 48))}
    module = tw.parse(NET.format(name=name, loc=loc))
    return module.with_constants(tw.ir.Constants({n: a.astype(np.float32) for n, a in arrays.items()}))


def tuned(path, device, module=None, **options):
    """The executable of a run whose measurements the device makes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "open_device", lambda target: device)
        patch.setattr(tuning, "PATIENCE", 4)
        return tw.compile(
            module or network(), "opencl", tune="measure", tuning_db=path, progress=False, **options
        )


def keys(path):
    with TuningDatabase(path) as db:
        return [key for key, _ in db.rows()]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """Its database and executable."""
    path = tmp_path_factory.mktemp("db") / "t.sqlite"
    return path, tuned(path, CountingDevice())


def test_a_second_run_measures_nothing_and_chooses_the_same(uninterrupted):
    path, first = uninterrupted
    device = CountingDevice()
    second = tuned(path, device)
    assert device.timed == 0
    facts = first.report()["tuning"]
    assert facts["measured"] == len(keys(path)) >= 10
    again = second.report()["tuning"]
    assert again["measured"] == 0
    for name in ("points", "pruned", "unknown", "model_s", "chosen_s", "certified_time"):
        assert again[name] == facts[name]
    assert not facts["violations"]
    assert 0 < facts["chosen_s"] <= facts["model_s"]
    assert second.artifact.texts["thread"] == first.artifact.texts["thread"]


def test_names_and_origins_do_not_count(uninterrupted):
    path, _ = uninterrupted
    device = CountingDevice()
    tuned(path, device, network("other", "elsewhere"))
    assert device.timed == 0


@pytest.mark.parametrize("part", ["name", "driver_version"])
def test_another_device_or_driver_is_measured(uninterrupted, tmp_path, part):
    (tmp_path / "t.sqlite").write_bytes(uninterrupted[0].read_bytes())
    device = CountingDevice()
    setattr(device, part, "another")
    tuned(tmp_path / "t.sqlite", device)
    assert device.timed == len(keys(uninterrupted[0]))
    assert len(keys(tmp_path / "t.sqlite")) == 2 * device.timed


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupted_run_goes_on_where_it_stopped(uninterrupted, tmp_path, error):
    def fail(n):
        if n == 7:
            raise error

    path, device = tmp_path / "t.sqlite", CountingDevice(fail)
    with pytest.raises(error):
        tuned(path, device)
    assert device.is_closed()
    assert len(keys(path)) == 7
    again = CountingDevice()
    exe = tuned(path, again)
    assert again.timed == len(keys(uninterrupted[0])) - 7
    assert keys(path) == keys(uninterrupted[0])
    assert exe.artifact.texts["thread"] == uninterrupted[1].artifact.texts["thread"]


TUNE = """
import os, sys; sys.path.insert(0, {folder!r})
from test_tuning_reuse import *
print("ready", flush=True); sys.stdin.readline()
tuned(sys.argv[1], CountingDevice(lambda n: n == int(sys.argv[2]) and os.kill(os.getpid(), {signal})))
"""


def tune(path, *, killed_at=-1, signal=9):
    """A process that says when it is ready, and tunes as soon as it is told to."""
    script = TUNE.format(folder=str(Path(__file__).parent), signal=signal)
    command = [sys.executable, "-c", script, str(path), str(killed_at)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_killed_process_leaves_what_it_measured(uninterrupted, tmp_path):
    processes = {s: tune(tmp_path / f"{s}.sqlite", killed_at=5, signal=s) for s in (9, 15)}
    for process in processes.values():
        assert process.stdout.readline() == "ready\n"
    for signal, process in processes.items():
        path = tmp_path / f"{signal}.sqlite"
        process.communicate("\n", timeout=60)
        assert process.returncode == -signal
        assert len(keys(path)) == 5
        device = CountingDevice()
        tuned(path, device)
        assert device.timed == len(keys(uninterrupted[0])) - 5
        assert keys(path) == keys(uninterrupted[0])
    assert sorted(p.name for p in tmp_path.iterdir()) == ["15.sqlite", "9.sqlite"]


def test_two_processes_tune_into_one_database(uninterrupted, tmp_path):
    path = tmp_path / "t.sqlite"
    processes = [tune(path), tune(path)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert keys(path) == keys(uninterrupted[0])
    device = CountingDevice()
    assert tuned(path, device).artifact.texts["thread"] == uninterrupted[1].artifact.texts["thread"]
    assert device.timed == 0


def test_an_interrupted_command_ends_with_one_sentence(tmp_path, capsys, monkeypatch):
    def fail(n):
        if n == 3:
            raise KeyboardInterrupt

    (tmp_path / "net.ir").write_text(
        "module @m { graph.func @main(%x: f32[4, 32], %w: f32[48, 32]) -> f32[4, 48] {"
        " %0 = graph.dense(%x, %w) : f32[4, 48] graph.return(%0) } }"
    )
    monkeypatch.setattr(measuring, "open_device", lambda target: CountingDevice(fail))
    path = tmp_path / "t.sqlite"
    assert main(["tune", str(tmp_path / "net.ir"), "--target", "opencl", "--tuning-db", str(path)]) == 130
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: interrupted: what was measured until now is kept in {path}"
    assert len(keys(path)) == 3


def test_no_budget_takes_what_is_known(uninterrupted, tmp_path):
    path, first = uninterrupted
    device = CountingDevice()
    exe = tuned(path, device, budget=0)
    assert device.timed == 0
    assert exe.artifact.texts["thread"] == first.artifact.texts["thread"]
    device = CountingDevice()
    nothing = tuned(tmp_path / "empty.sqlite", device, budget=0).report()["tuning"]
    assert device.timed == 0
    assert {k["end"] for k in nothing["kernels"]} == {"budget"}
    with pytest.raises(tw.InputError, match="budget: the model measures nothing"):
        tw.compile(network(), "null", budget=5)


def test_a_search_that_a_budget_cut_short_goes_on(uninterrupted, tmp_path):
    path, device = tmp_path / "t.sqlite", CountingDevice()

    class Hurried(budget.Budget):
        over = property(lambda self: device.timed >= 5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget.Budget, "over", Hurried.over)
        short = tuned(path, device)
    assert device.timed == 5
    assert "budget" in {k["end"] for k in short.report()["tuning"]["kernels"]}
    device = CountingDevice()
    long = tuned(path, device)
    # It starts at the best that is known, whose neighbours an uninterrupted search may not look at.
    assert len(keys(path)) == 5 + device.timed
    rows = [long.report()["tuning"]["kernels"], uninterrupted[1].report()["tuning"]["kernels"]]
    for ours, theirs in zip(*rows, strict=True):
        assert all(ours[fact] == theirs[fact] for fact in ("end", "points", "pruned"))
        assert ours["measured_s"] <= theirs["measured_s"]


def test_entries_travel_with_the_executable(uninterrupted, tmp_path, capsys):
    first = uninterrupted[1]
    saved = tmp_path / "net.tw"
    first.save(saved)
    device = CountingDevice()
    again = tuned(saved, device, budget=0)
    assert device.timed == 0
    assert again.artifact.texts["thread"] == first.artifact.texts["thread"]
    lines, copy = str(tmp_path / "lines"), str(tmp_path / "copy.sqlite")
    assert main(["db", "export", lines, "--used-by", str(saved)]) == 0
    assert main(["db", "import", lines, "--tuning-db", copy]) == 0
    assert main(["db", "import", str(saved), "--tuning-db", copy]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[1].split()[0] == str(len(Path(lines).read_text().splitlines()) - 1) != "0"
    assert said[2].startswith("0 entries taken")
    device = CountingDevice()
    assert tuned(copy, device).artifact.texts["thread"] == first.artifact.texts["thread"]
    assert device.timed == 0
    whole = str(tmp_path / "whole.sqlite")
    assert main(["db", "merge", str(uninterrupted[0]), "--tuning-db", whole]) == 0
    assert keys(whole) == keys(uninterrupted[0])
    assert main(["db", "merge", str(tmp_path / "none"), "--tuning-db", whole]) == 2
    assert main(["db", "merge", copy, "--tuning-db", str(saved)]) == 2


def test_a_damaged_database(tmp_path, monkeypatch):
    path = tmp_path / "tuning-2.sqlite"
    path.write_text("no database\n" * 500)
    device = CountingDevice()
    with pytest.raises(tw.InputError, match=str(path)):
        tuned(path, device)
    assert device.timed == 0
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    with pytest.warns(RuntimeWarning, match="is damaged"):
        exe = tuned(None, device)
    assert device.timed == exe.report()["tuning"]["measured"] == len(keys(path))


def test_nothing_is_learned_where_nothing_runs(tmp_path):
    exe = tuned(tmp_path / "t.sqlite", NullDevice())
    assert exe.report()["tuning"]["measured"] > 0
    assert keys(tmp_path / "t.sqlite") == []


def test_a_database_without_measuring_is_a_mistake(tmp_path):
    with pytest.raises(tw.InputError, match="tuning_db"):
        tw.compile(network(), "null", tuning_db=tmp_path / "t.sqlite")
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tuning, "PATIENCE", 2)
    path, net = str(tmp_path / "t.sqlite"), str(tmp_path / "net.ir")
    Path(net).write_text(
        "module @m { graph.func @main(%x: f32[4, 32], %w: f32[48, 32]) -> f32[4, 48] {"
        " %0 = graph.dense(%x, %w) : f32[4, 48] graph.return(%0) } }"
    )
    results = []
    for _ in range(2):
        assert main(["tune", net, "--target", "opencl", "--tuning-db", path, "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out))
    assert results[0]["measured"] == len(keys(path)) > 0
    assert results[1]["measured"] == 0
    assert results[1]["tuning_db"] == path
    assert results[1]["points"] == results[0]["points"] > results[0]["measured"]
    assert main(["tune", net, "--target", "opencl", "--tuning-db", path, "--budget", "9 weeks"]) == 2
    assert "--budget: expected a time such as 60s" in capsys.readouterr().err
    assert main(["tune", net, "--target", "opencl", "--tuning-db", path, "--budget", "0"]) == 0
    assert "the best is certified for" in capsys.readouterr().out
    assert results[1]["gain"] == pytest.approx(results[0]["model_s"] / results[0]["chosen_s"])
    assert main(["run", net, "--target", "opencl", "--tune", "measure", "--tuning-db", path]) == 0
    capsys.readouterr()
    assert main(["tune", net, "--target", "opencl", "--tuning-db", str(tmp_path)]) == 2
    assert "it is a folder" in capsys.readouterr().err
