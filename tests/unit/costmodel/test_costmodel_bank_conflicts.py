"""Wavefronts of accesses to shared memory against a direct count over the banks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.costmodel.kernels.bank_conflicts import wavefront_count


def direct_count(addresses: list[int], access_bytes: int) -> int:
    words = access_bytes // 4
    per_phase = 32 // words
    total = 0
    for start in range(0, len(addresses), per_phase):
        needed: dict[int, set[int]] = {}
        for lane in addresses[start : start + per_phase]:
            for word in range(lane, lane + words):
                needed.setdefault(word % 32, set()).add(word)
        total += max(len(distinct) for distinct in needed.values())
    return total


@given(st.sampled_from([4, 8, 16]), st.lists(st.integers(0, 200), min_size=1, max_size=32))
def test_wavefronts_equal_the_direct_count(access_bytes: int, cells: list[int]) -> None:
    addresses = [cell * (access_bytes // 4) for cell in cells]
    assert wavefront_count(addresses, access_bytes) == direct_count(addresses, access_bytes)


@pytest.mark.parametrize(
    ("stride", "access_bytes", "wavefronts"),
    [(1, 4, 1), (2, 4, 2), (8, 4, 8), (32, 4, 32), (33, 4, 1), (0, 4, 1), (2, 8, 2), (4, 16, 4), (8, 16, 8)],
)
def test_strided_warps(stride: int, access_bytes: int, wavefronts: int) -> None:
    assert wavefront_count(np.arange(32) * stride, access_bytes) == wavefronts


def test_a_batch_of_warps_is_counted_warp_by_warp() -> None:
    warps = np.stack([np.arange(32), np.arange(32) * 2, np.zeros(32, dtype=int)])
    assert wavefront_count(warps).tolist() == [1, 2, 1]


@pytest.mark.parametrize(
    ("addresses", "access_bytes"), [([0, 1], 12), ([1], 8), ([-4], 4), (list(range(33)), 4), ([], 4)]
)
def test_impossible_accesses_are_refused(addresses: list[int], access_bytes: int) -> None:
    with pytest.raises(ValueError, match="expected"):
        wavefront_count(addresses, access_bytes)
