"""A network whose products are by roles: compiled, run on the emulator, saved and loaded again."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import parse
from tilewright.ir.constants import Constants
from tilewright.passes.kernels.matrix import choice
from tilewright.passes.kernels.matrix import space as matrix_space

TEXT = """module @m { graph.func @main(%x: f16[128, 64]) -> f16[128, 64] {
 %w = graph.constant(name = "w") : f16[64, 64]
 %b = graph.constant(name = "b") : f16[64]
 %0 = graph.dense(%x, %w) : f16[128, 64]
 %1 = graph.bias_add(%0, %b, axis = 1) : f16[128, 64]
 %2 = graph.relu(%1) : f16[128, 64]
 graph.return(%2) } }"""


@pytest.mark.emulator
def test_a_network_by_roles_runs_and_is_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Estimates are changed so that a small product takes roles, as large ones do by themselves."""
    estimate = choice.estimate_matrix

    def preferred(problem, space, hardware):
        return estimate(problem, space, hardware) * np.where(space.by_roles, 1e-3, 1.0)

    monkeypatch.setattr(sys.modules[choice.__name__], "estimate_matrix", preferred)
    monkeypatch.setattr(matrix_space, "LEAST_ROLE_SUMS", 0)
    monkeypatch.setattr(matrix_space, "LEAST_ROLE_TILES", 0)
    choice.choose_matrix.cache_clear()
    rng = np.random.default_rng(0)
    w, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((64, 64), (64,)))
    x = rng.standard_normal((128, 64)).astype(np.float16)
    try:
        exe = tw.compile(replace(parse(TEXT), constants=Constants({"w": w, "b": b})), "emulator")
    finally:
        choice.choose_matrix.cache_clear()
    (launch,) = exe.plan.launches
    assert launch.maps
    want = np.maximum(x.astype(np.float64) @ w.astype(np.float64).T + b, 0)
    got = np.asarray(exe(x)).astype(np.float64)
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()
    exe.save(tmp_path / "roles.tw")
    again = tw.load(tmp_path / "roles.tw", target="emulator")
    np.testing.assert_array_equal(np.asarray(again(x)), got.astype(np.float16))
