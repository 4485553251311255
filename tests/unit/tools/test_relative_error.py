"""The error that checks report: what is finite by norms, NaN and infinities by their places."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.running.checking import largest_error, relative_error
from tilewright.tools.cli import main

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("got", "wanted", "error"),
    [
        ([1, 2], [1, 2], 0.0),
        ([3, 5], [3, 4], 0.2),
        ([NAN, NAN], [NAN, NAN], 0.0),
        ([NAN, 3, 5], [NAN, 3, 4], 0.2),
        ([INF, -INF, 1], [INF, -INF, 1], 0.0),
        ([INF, 1], [-INF, 1], INF),
        ([INF, 1], [NAN, 1], INF),
        ([NAN, 1], [INF, 1], INF),
        ([NAN, 1], [0, 1], INF),
        ([0, 1], [NAN, 1], INF),
        ([INF, 1], [0, 1], INF),
        ([], [], 0.0),
    ],
)
def test_errors(dtype, got, wanted, error):
    assert relative_error(np.array(got, dtype), np.array(wanted, np.float64)) == pytest.approx(error)


def test_what_overflows_in_the_type_of_the_result_is_infinite():
    wide = np.array([1e39, -1e39, 1.0])
    assert relative_error(np.array([INF, -INF, 1.0], np.float32), wide) == 0.0
    assert relative_error(np.array([NAN, -INF, 1.0], np.float32), wide) == INF
    # Beside the largest number, rounding decides.
    assert relative_error(np.float16([65504]), np.array([65530.0])) < 1e-3


def test_shapes_and_integers():
    assert relative_error(np.zeros(3), np.zeros((3, 1))) == INF
    assert relative_error(np.array([3, 5]), np.array([3, 4])) == pytest.approx(0.2)


@pytest.mark.parametrize("target", ["opencl", "reference"])
def test_a_network_of_nan_is_right(target, data_dir, tmp_path, capsys):
    np.savez(tmp_path / "nan.npz", data=np.full((1, 1, 28, 28), np.nan, np.float32))
    given = ["--input", str(tmp_path / "nan.npz"), "--check", "--target", target]
    assert main(["run", str(data_dir / "relay" / "mlp.relay"), *given]) == 0
    assert "relative error against the float64 reference: 0.00e+00" in capsys.readouterr().out


def test_the_largest_error_of_several_results():
    expected = [np.array([3.0, 4.0])]
    assert largest_error([np.array([3.0, 4.5])], expected) == 0.1
    assert largest_error([np.array([3.0, 4.5]), np.zeros(1)], [*expected, np.ones(1)]) == 1.0
    for wrong in ([np.array([3.0, np.nan])], [np.zeros(3)], []):
        assert largest_error(wrong, expected) == float("inf")
