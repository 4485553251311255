"""Outputs of the commands say on which device, and by which OpenCL implementation, the kernels ran."""

import json
from pathlib import Path

import pytest

from tilewright.devices.targets import device_name, resolve_target
from tilewright.tools.cli import main
from tilewright.tools.conformance.__main__ import main as conformance

DATA = Path(__file__).parents[2] / "data"
MLP = str(DATA / "relay/mlp.relay")


@pytest.fixture(scope="module")
def device():
    """The processor and in brackets the implementation."""
    name = device_name(resolve_target("opencl"))
    assert name.endswith(")")
    return name


def test_targets_without_a_device_have_no_name():
    assert device_name(resolve_target("reference")) == ""
    assert device_name(resolve_target("emulator")) == ""


def test_run(device, tmp_path, capsys):
    assert main(["run", MLP, "--target", "opencl"]) == 0
    assert f"mlp.relay on {device}: " in capsys.readouterr().out
    assert main(["run", MLP, "--target", "opencl", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == device


def test_bench(device, tmp_path, capsys):
    out = tmp_path / "bench.json"
    fixed = ["--folder", str(DATA / "relay"), "--peers", "none", "--rounds", "1", "--replays", "1"]
    assert main(["bench", "mlp", "--target", "opencl", *fixed, "--json", str(out)]) == 0
    data = json.loads(out.read_text())
    assert data["protocol"]["device"].startswith(f"{device}; ")
    assert data["rows"][0]["ours"][0]["device"] == device
    assert device in capsys.readouterr().out


def test_report(device, tmp_path, capsys):
    page = tmp_path / "report.html"
    assert main(["report", MLP, "--target", "opencl", "--repeats", "1", "-o", str(page)]) == 0
    assert f"times measured ({device})" in capsys.readouterr().out
    assert device in page.read_text()


def test_conformance(device, tmp_path, capsys):
    out = tmp_path / "conformance.json"
    options = ["--suite", "operators", "--target", "opencl", "--only", "sqrt_86f22f35", "--jobs", "1"]
    assert conformance([str(DATA), *options, "--json", str(out)]) == 0
    assert f"opencl ran on {device}" in capsys.readouterr().out
    assert [row["device"] for row in json.loads(out.read_text())] == [device]
