"""`tilewright train --devices 2`: processes train as one device does; a checkpoint is of any number."""

import json
from pathlib import Path

import numpy as np
import pytest

from tilewright.distributed.launcher import find_mpirun
from tilewright.ir import WorkError
from tilewright.ir.modules.divisions import Division, read_divisions
from tilewright.tools.cli import main

NETWORK = "zoo:linear_classifier{batch=6,features=5,classes=3}"


@pytest.fixture
def data(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    path = tmp_path / "data.npz"
    np.savez(path, x=rng.random((24, 5), np.float32), y=rng.integers(0, 3, 24).astype(np.int32))
    return f"npz:{path}"


def trained(data: str, checkpoint: Path, *more: str, capfd: pytest.CaptureFixture[str]) -> list[dict]:
    """The records that the command prints."""
    command = ["train", NETWORK, "--data", data, "--lr", "0.1", "--eval-every", "2", "--json"]
    code = main([*command, "--checkpoint", str(checkpoint), *more])
    told = capfd.readouterr()
    assert code == 0, told.err
    return list(map(json.loads, told.out.splitlines()))


def test_two_processes_train_as_one_does(
    data: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    try:
        find_mpirun()
    except WorkError:
        pytest.skip("no mpirun")
    alone, apart = tmp_path / "alone.safetensors", tmp_path / "apart.safetensors"
    expected = trained(data, alone, "--target", "reference", "--steps", "4", capfd=capfd)
    ranks = ["--devices", "2", "--mode-options", "zero=1, min_bytes=16", "--target", "opencl"]
    told = trained(data, apart, *ranks, "--steps", "4", capfd=capfd)
    for one, two in zip(expected[:2], told[:2], strict=True):
        assert two["step"] == one["step"]
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert two["held_out"] == pytest.approx(one["held_out"], rel=1e-5)
    rows = told[-1]["distributed"]["ranks"]
    assert [r["rank"] for r in rows] == [0, 1]
    assert all(r["communications"] > 0 for r in rows)
    # one device goes on from the checkpoint of two
    more = trained(data, apart, "--target", "reference", "--steps", "6", "--resume", capfd=capfd)
    again = trained(data, alone, "--target", "reference", "--steps", "6", "--resume", capfd=capfd)
    assert more[0]["loss"] == pytest.approx(again[0]["loss"], rel=1e-5)


def test_a_batch_that_is_not_there_and_modes(data: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", NETWORK, "--data", data, "--timeout", "3"]) == 2
    assert "--timeout: expected --devices or --mode" in capsys.readouterr().err
    assert main(["train", NETWORK, "--data", data, "--mode", "space"]) == 2
    assert "invalid choice: 'space'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "division",
    [
        Division("w", "cut", (2, 6, 3), 1, 1, ((0, 4), (4, 4), (4, 6))),
        Division("w", "cut", (2, 6, 3), 1, 2, ((0, 1), (1, 2), (2, 3))),
        Division("w", "owner", (2, 6, 3), 0, 1, ((0, 0), (0, 2), (2, 2))),
        Division("w", "sum", (2, 6, 3), 0, 1, ((0, 2), (0, 2), (0, 2))),
    ],
)
def test_pieces_join_to_the_whole(division: Division) -> None:
    whole = np.arange(36.0).reshape(2, 6, 3)
    pieces = [division.piece(whole, r) if division.held(r) else None for r in range(3)]
    assert (division.joined(pieces) == whole).all()
    assert read_divisions([list(division.row)]) == {"w": division}
