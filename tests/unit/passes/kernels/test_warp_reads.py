"""Points of a space that read shared memory alike are found once."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.costmodel.kernels.warp_reads import distinct_columns


@pytest.mark.parametrize("largest", [3, 40, 1 << 15, 1 << 40])
def test_distinct_columns_are_those_of_numpy(largest: int) -> None:
    rng = np.random.default_rng(largest)
    values = np.unique(rng.integers(0, largest, 5))
    rows = rng.choice(values, (6, 400))
    distinct, which = distinct_columns(rows)
    np.testing.assert_array_equal(distinct[:, which], rows)
    assert distinct.shape == np.unique(rows, axis=1).shape
