"""Activations that are ops of their own: exact values, both ends of the range, and all levels alike."""

import numpy as np
from graph_op_agreement import agree

#: far ends, the middle, and what is not a number
X = np.array([-np.inf, -200, -20, -3, -0.5, 0, 0.5, 3, 20, 200, np.inf, np.nan], np.float32)


def test_softplus_neither_overflows_nor_vanishes_at_once():
    (y,) = agree("softplus", X, compiled=True)
    wide = X[:-1].astype(np.float64)
    np.testing.assert_allclose(y[:-1], np.logaddexp(0, wide), rtol=1e-6, atol=1e-7)
    assert np.isnan(y[-1])


def test_softplus_is_steeper_by_beta_and_straight_above_the_threshold():
    x = np.linspace(-3, 3, 41, dtype=np.float32)
    (y,) = agree("softplus", x, beta=2.0, threshold=4.0)
    curve = np.logaddexp(0, 2 * x.astype(np.float64)) / 2
    np.testing.assert_allclose(y, np.where(x > 2, x, curve), rtol=1e-6, atol=1e-7)
    assert (y == x).sum() == (x > 2).sum() > 0


def test_softplus_of_16_bits_is_computed_in_float32():
    x = np.linspace(-6, 6, 49).astype(np.float16)
    (y,) = agree("softplus", x)
    np.testing.assert_allclose(y, np.logaddexp(0, x.astype(np.float64)), rtol=2**-11, atol=2**-24)


def test_hard_swish_is_shut_below_and_open_above():
    (y,) = agree("hard_swish", X, compiled=True)
    wide = X.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wanted = wide * np.clip(wide + 3, 0, 6) / 6
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    assert y[(X < -2) & np.isfinite(X)].tolist() == [0, 0, 0]
    assert y[(X > 2) & np.isfinite(X)].tolist() == [3, 20, 200]


def test_hard_swish_of_16_bits_is_computed_in_float32():
    x = np.linspace(-4, 4, 49).astype(np.float16)
    (y,) = agree("hard_swish", x)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(y, wide * np.clip(wide + 3, 0, 6) / 6, rtol=2**-11, atol=2**-24)
