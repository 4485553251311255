"""`tilewright run --memory-cap`: output for people and programs, exit codes, and the documentation page."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tilewright.streaming import calibration
from tilewright.tools.cli import main
from tilewright.tools.commands.run import streaming_lines

NETWORK = "zoo:gpt{layers=1, width=16, heads=1, vocabulary=20, context=4, sequence=4}"
RUN = ["run", NETWORK, "--target", "opencl"]


def test_one_run_as_json_and_as_text(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "READING_S", 0.05)
    out, store = tmp_path / "out.npz", tmp_path / "weights"
    store.mkdir()
    rest = ["--memory-cap", "40KiB", "--micro-batches", "2", "--check", "--repeats", "2"]
    assert main([*RUN, *rest, "--weights-folder", str(store), "--output", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["relative_error"] < 1e-5
    streaming = result["streaming"]
    assert streaming["report"]["device_bytes_peak"] <= streaming["report"]["memory_cap_bytes"] == 40 << 10
    assert {"total", "storage", "copy", "compute", "overlap", "relative_error"} <= set(
        streaming["against_model"]
    )
    assert len(streaming["seconds"]) == 2
    assert np.load(out)["out0"].shape == (1, 4, 20)
    assert [f.name for f in store.iterdir()] == ["weights.store"]
    text = streaming_lines(streaming)
    assert re.search(
        r"1 steps \(1 plans\).*under a cap of 40KiB.*2 micro-batches, (para|acti)", text, re.DOTALL
    )
    assert len(re.findall(r"^(total|storage|copy|compute) .* ms, predicted .* ms$", text, re.MULTILINE)) == 4


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        (["--memory-cap", "lots"], 2, "error: --memory-cap: expected an amount of memory"),
        (["--memory-cap", "3KiB"], 1, "the least that would do is"),
        (["--memory-cap", ""], 2, "expected an amount of memory"),
        (["--memory-cap", "1MiB", "--devices", "2"], 2, "--memory-cap"),
        (["--micro-batches", "2"], 2, "expected --memory-cap"),
        (["--gpudirect"], 2, "--gpudirect: expected --memory-cap"),
        (["--memory-cap", "1MiB", "--gpudirect"], 2, "GPUDirect Storage needs the target cuda, got 'opencl'"),
        (["--memory-cap", "1MiB", "--micro-batches", "0"], 2, "--micro-batches: expected an integer from 1"),
        (
            ["--memory-cap", "1MiB", "--trace", "t.json"],
            2,
            "--trace: expected this option without --memory-cap",
        ),
        (["--memory-cap", "1MiB", "--weights-folder", "no/such/folder"], 2, "no/such/folder: no such folder"),
        (["--memory-cap", "-5GiB"], 2, "--memory-cap: expected an amount of memory"),
        (["--memory-cap", "1MiB", "--host-memory", "x"], 2, "--host-memory: expected an amount"),
    ],
)
def test_bad_arguments_end_in_one_line(capsys, arguments, code, fault):
    assert main([*RUN, *arguments]) == code
    err = capsys.readouterr().err
    assert fault in err
    assert err.count("\n") == 1


def test_saved_executables_have_their_own_plan(capsys):
    assert main(["run", "net.tw", "--memory-cap", "1MiB"]) == 2
    assert (
        "--memory-cap: expected a network with this option, got the saved executable"
        in capsys.readouterr().err
    )


def test_documentation_is_true():
    page = (Path(__file__).parents[4] / "docs" / "streaming.md").read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, {})
    commands = re.findall(r"^tilewright (.*)$", page, re.MULTILINE)
    assert any("--memory-cap" in c for c in commands)
