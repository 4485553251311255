"""`tilewright partition network`: what devices run of a whole network, checked and written."""

import json
from pathlib import Path
from typing import Any

import pytest

from tilewright.ir import parse, parse_file
from tilewright.tools.cli import main
from tilewright.tools.commands.partition import bytes_received, facts_of_part

NET = """
module @net {
  graph.func @main(%x: f32[2, 4, 8, 8], %w: f32[6, 4, 3, 3], %v: f32[4, 6, 3, 3]) -> f32[2, 4, 8, 8] {
    %0 = graph.conv2d(%x, %w, padding = [1, 1, 1, 1]) : f32[2, 6, 8, 8]
    %1 = graph.relu(%0) : f32[2, 6, 8, 8]
    %2 = graph.conv2d(%1, %v, padding = [1, 1, 1, 1]) : f32[2, 4, 8, 8]
    graph.return(%2)
  }
}
"""
WORK = 2 * 2 * 64 * 9 * 24 * 2 + 2 * 6 * 64  # both convolutions, and the rectifier


@pytest.fixture
def network(tmp_path: Path) -> str:
    path = tmp_path / "net.ir"
    path.write_text(NET)
    return str(path)


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["partition", "network", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_rows_of_two_devices(network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "parts"
    asked = ["--devices", "2", "--mode-options", "gather=late", "--check", "-o", str(folder)]
    found = told(capsys, network, *asked)
    assert found["relative_error"] < 1e-12
    assert found["whole"]["flop"] == WORK
    halo, result = (
        2 * 6 * 8 * 4,
        2 * 4 * 4 * 8 * 4,
    )  # a row that the other has; the other's half of the result
    for rank, facts in enumerate(found["ranks"]):
        assert facts["bytes_received"] == {"halo_exchange": halo, "all_gather": result}
        assert facts["flop"] == WORK // 2
        assert facts_of_part(parse_file(folder / f"rank{rank}.ir")) == facts
    assert sorted(p.name for p in folder.iterdir()) == ["rank0.ir", "rank1.ir"]


@pytest.mark.parametrize("mode", ["batch", "pipeline"])
def test_other_modes(network: str, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, network, "--devices", "2", "--mode", mode, "--check")
    assert found["relative_error"] < 1e-12
    assert sum(r["flop"] for r in found["ranks"]) == WORK


def test_sums_go_around_twice() -> None:
    text = """module @m {
  graph.func @main(%x: f32[6, 4]) -> f32[6, 4], f32[2, 4] {
    %0 = graph.all_reduce(%x, rank = 1, ranks = [0, 1, 2]) : f32[6, 4]
    %1 = graph.reduce_scatter(%x, axis = 0, rank = 1, ranks = [0, 1, 2], extents = [2, 2, 2]) : f32[2, 4]
    graph.return(%0, %1)
  }
}"""
    reduced, scattered = parse(text).main.body.ops[:2]
    assert bytes_received(reduced) == 2 * 96 * 2 // 3
    assert bytes_received(scattered) == 96 * 2 // 3


def test_as_text(network: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", "network", network, "--devices", "2", "--mode", "batch", "--check"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{network} on 2 devices, mode batch: 0.000 GFLOP")
    assert "(50.0%)" in lines[1]
    assert lines[-1].startswith("all devices together equal the whole network: relative error ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--devices", "0"], "--devices: expected an integer from 1 to 1024, got '0'"),
        (["--devices", "2", "--mode-options", "axis=z"], "option 'axis' expects one of"),
        (
            ["--devices", "2", "-o", "/dev/null/parts"],
            "/dev/null/parts: cannot write the parts: Not a directory",
        ),
    ],
)
def test_bad_arguments(
    network: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["partition", "network", network, *arguments]) == 2
    assert message in capsys.readouterr().err
