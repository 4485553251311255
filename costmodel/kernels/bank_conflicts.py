"""Exact wavefronts of one warp-wide shared-memory access with 32 banks of 4 bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tilewright.costmodel.kernels.windows import IntArray
from tilewright.ir.hardware_facts import BANKS


def wavefront_count(word_addresses: npt.ArrayLike, access_bytes: int = 4) -> IntArray:
    """Wavefronts of each warp access, summed over its phases.

    `word_addresses`: first 4-byte word of each lane, shape (..., lanes) with up to 32 lanes; `access_bytes`
    4, 8 or 16. An access is served in phases of 32, 16 or 8 lanes; within a phase lanes that read the same
    word share it, and a bank delivers one word per wavefront. Raises ValueError on other widths, misaligned
    lanes or too many lanes.
    """
    addresses = np.asarray(word_addresses, dtype=np.int64)
    if access_bytes not in (4, 8, 16):
        raise ValueError(f"expected an access of 4, 8 or 16 bytes, got {access_bytes}")
    words = access_bytes // 4
    lanes = addresses.shape[-1] if addresses.ndim else 0
    if not 0 < lanes <= BANKS:
        raise ValueError(f"expected 1 to {BANKS} lanes, got {lanes}")
    if (addresses < 0).any() or (addresses % words).any():
        raise ValueError(f"expected non-negative word addresses aligned to {words} words")
    per_phase = BANKS // words
    total = np.zeros(addresses.shape[:-1], dtype=np.int64)
    for start in range(0, lanes, per_phase):
        phase = addresses[..., start : start + per_phase]
        touched = phase[..., :, None] + np.arange(words)
        total += most_of_a_bank(touched.reshape(*phase.shape[:-1], -1))
    return total


def most_of_a_bank(words: IntArray, banks: int = BANKS) -> IntArray:
    """Most distinct words any of `banks` banks must deliver, for word addresses of shape (..., count)."""
    ordered = np.sort(words, axis=-1)
    fresh = np.ones(ordered.shape, dtype=bool)
    fresh[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    accesses = int(np.prod(ordered.shape[:-1], dtype=np.int64))
    bank = ordered.reshape(accesses, -1) % banks + banks * np.arange(accesses)[:, None]
    counts = np.bincount(bank[fresh.reshape(accesses, -1)], minlength=accesses * banks)
    return np.asarray(counts.reshape(*ordered.shape[:-1], banks).max(axis=-1), dtype=np.int64)
