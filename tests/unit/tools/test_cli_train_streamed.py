"""`tilewright train --memory-cap`: as training in memory, kept in a folder, resumed from there."""

import json

import numpy as np
import pytest

from tilewright.streaming import training_executable
from tilewright.tools.cli import main

NETWORK = "zoo:linear_classifier{batch=8,features=600,classes=6}"


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setattr(training_executable, "RATE_S", 0.01)
    rng = np.random.default_rng(0)
    path = tmp_path / "d.npz"
    np.savez(path, x=rng.random((40, 600), np.float32), y=rng.integers(0, 6, 40).astype(np.int32))
    return ["train", NETWORK, "--data", f"npz:{path}", "--lr", "0.01", "--json"]


def run(capsys, *arguments):
    code = main(list(map(str, arguments)))
    told = capsys.readouterr()
    assert code == 0, told.err
    return list(map(json.loads, told.out.splitlines()))


def test_a_cap_changes_no_numbers_and_a_folder_keeps_them(command, tmp_path, capsys):
    whole = run(capsys, *command, "--target", "reference", "--steps", 4)[-1]
    folder = tmp_path / "state"
    folder.mkdir()
    streamed = [*command, "--target", "opencl", "--memory-cap", "120KiB", "--micro-batches", 2]
    streamed += ["--weights-folder", folder, "--order", "pr"]
    first = run(capsys, *streamed, "--steps", 2)[-1]
    assert first["streaming"]["micro_batches"] == 2
    assert first["streaming"]["device_bytes_peak"] <= 120 << 10
    assert first["streaming"]["total"]["predicted_s"] > 0
    last = run(capsys, *streamed, "--steps", 4, "--resume")[-1]
    assert last["held_out"] == pytest.approx(whole["held_out"], rel=1e-4)
    assert main([*map(str, streamed), "--steps", "5"]) == 2
    assert "holds the state of a training run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--micro-batches", "3", "--memory-cap", "1MiB", "--target", "opencl"], "a batch that 3 divides"),
        (["--micro-batches", "2"], "--micro-batches: expected --memory-cap or --devices or --mode"),
        (["--order", "pr"], "--order: expected --memory-cap"),
        (["--memory-cap", "1MiB", "--target", "reference"], "expected a target with kernels"),
        (["--memory-cap", "much", "--target", "opencl"], "much"),
        (["--memory-cap", "1MiB", "--target", "opencl", "--devices", "2"], "option without --devices"),
    ],
)  # fmt: skip
def test_wrong_options(command, capsys, more, text):
    assert main([*command, "--steps", "1", *more]) == 2
    assert text in capsys.readouterr().err
