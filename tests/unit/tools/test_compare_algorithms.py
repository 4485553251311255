"""The table of the algorithms of convolutions: one row per convolution, every legal algorithm timed."""

import json

import numpy as np
import pytest

import tilewright as tw
from tilewright.running.executable import Executable
from tilewright.tools import compare_algorithms
from tilewright.tools.compare_algorithms import CONVOLUTIONS, TimedConvolution


def test_every_legal_algorithm_is_timed(monkeypatch, tmp_path, capsys):
    def time_us(exe, x, repeats):
        return [1e-6 * len(exe.plan.launches)] * repeats

    monkeypatch.setattr(Executable, "time", time_us)
    small = TimedConvolution((1, 4, 8, 8), 4, 3)
    monkeypatch.setattr(compare_algorithms, "CONVOLUTIONS", (small,))
    out = tmp_path / "algorithms.json"
    given = ["--target", "null", "--rounds", "1", "--replays", "2", "--json", str(out)]
    assert compare_algorithms.main(given) == 0
    (row,) = json.loads(out.read_text())
    assert list(row["us"]) == list(row["launches"]) == ["direct", "winograd2", "winograd4", "fft"]
    assert row["us"] == {way: float(n) for way, n in row["launches"].items()}
    assert row["launches"]["direct"] < row["launches"]["winograd2"]  # transforms are kernels of their own
    assert row["auto"] in row["us"]
    assert f"| 1x4x8x8 | 4, 3x3 | {row['us']['direct']:.1f} |" in capsys.readouterr().out


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=lambda case: case.name)
def test_convolutions_of_the_table_keep_the_image(case):
    module = case.module()
    (weight,) = module.constants.values()
    assert weight.dtype == np.float32
    assert weight.shape == (case.filters, case.data[1] // case.groups, case.size, case.size)
    tw.verify(module)
