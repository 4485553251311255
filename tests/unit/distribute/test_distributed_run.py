"""`tilewright run --devices`: real processes, one report; arguments that do not fit."""

import json
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.distributed.launcher import find_mpirun
from tilewright.ir import WorkError
from tilewright.tools.cli import main

NET = """
module @net {
  graph.func @main(%x: f32[1, 4, 8, 8], %w: f32[4, 4, 3, 3]) -> f32[1, 4, 8, 8] {
    %0 = graph.conv2d(%x, %w, strides = [1, 1], padding = [1, 1, 1, 1], groups = 1) : f32[1, 4, 8, 8]
    %1 = graph.relu(%0) : f32[1, 4, 8, 8]
    graph.return(%1)
  }
}
"""


@pytest.fixture
def network(tmp_path: Path) -> Path:
    path = tmp_path / "net.ir"
    path.write_text(NET)
    return path


def test_two_processes_one_report(network: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        find_mpirun()
    except WorkError:
        pytest.skip("no mpirun")
    out = tmp_path / "out.npz"
    command = ["run", str(network), "--devices", "2", "--mode", "space", "--mode-options", "gather=late"]
    more = ["--target", "opencl", "--check", "--json", "--repeats", "2", "--output", str(out)]
    code = main([*command, *more])
    told = capfd.readouterr()
    assert code == 0, told.err
    report = json.loads(told.out)
    assert report["relative_error"] < 1e-5
    assert report["distributed"]["mode"] == "space"
    assert [r["rank"] for r in report["distributed"]["ranks"]] == [0, 1]
    assert all(r["communications"] == 1 for r in report["distributed"]["ranks"])
    assert [o["shape"] for o in report["outputs"]] == [[1, 4, 8, 8]]
    module = tw.parse(NET)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.shape).astype(t.dtype) for t in module.input_types]
    with np.load(out) as data:
        np.testing.assert_allclose(data["out0"], tw.interpret(module, *inputs)[0], rtol=1e-4, atol=1e-4)
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".part")] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode-options", "axis=w"], "--mode-options: expected --devices or --mode with this option"),
        (["--timeout", "3"], "--timeout: expected --devices or --mode"),
        (["--devices", "0"], "--devices: expected an integer from 1 to 1024, got '0'"),
        (["--devices", "2", "--timeout", "-1"], "--timeout: expected a positive number of seconds, got '-1'"),
        (["--devices", "2", "--trace", "t.json"], "--trace: expected this option without --devices"),
    ],
)
def test_arguments_that_do_not_fit(
    network: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(network), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_network_that_is_not_there_starts_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "nothing.relay", "--devices", "2"]) == 2
    assert capsys.readouterr().err == "error: nothing.relay: no such file\n"
