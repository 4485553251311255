"""Chooses how running folds along few long lines are cut: chunks folded side by side, then their totals."""

from __future__ import annotations

from functools import lru_cache

from tilewright.costmodel.hardware.description import CpuHardware, Hardware
from tilewright.costmodel.kernels.problem import LineProblem, StreamProblem
from tilewright.costmodel.kernels.streams import choose_map
from tilewright.passes.kernels.ordered.choose_lines import choose_lines

#: lengths of chunks; shorter ones leave nearly as many totals as there are elements
_CHUNKS = (16, 32, 64, 128, 256, 512, 1024)


def choose_chunk(lines: int, length: int, element_bytes: int, hardware: Hardware) -> int:
    """Elements of a chunk of a running fold; 0 where one thread should walk along each whole line.

    lines, length: how many folds there are, and their elements of `element_bytes`. On a CPU lines stay whole.
    """
    return 0 if isinstance(hardware, CpuHardware) else _best(lines, length, element_bytes, hardware)[1]


@lru_cache(maxsize=4096)
def _best(lines: int, length: int, element_bytes: int, hardware: Hardware) -> tuple[float, int]:
    """Seconds and chunk: folds within chunks, a fold of totals cut likewise, a map that adds both."""
    found = (_walk_s(lines, length, element_bytes, hardware), 0)
    size = lines * length
    for chunk in _CHUNKS:
        if 2 * chunk > length:
            break
        chunks = -(-length // chunk)
        joined = StreamProblem(2 * size * element_bytes, size * element_bytes, size, size)
        seconds = (
            _walk_s(lines * chunks, chunk, element_bytes, hardware)
            + _best(lines, chunks, element_bytes, hardware)[0]
            + choose_map(joined, hardware).estimate_s
        )
        found = min(found, (seconds, chunk))
    return found


def _walk_s(lines: int, length: int, element_bytes: int, hardware: Hardware) -> float:
    moved = lines * length * element_bytes
    return choose_lines(LineProblem(lines, length, 1, moved, moved, lines * length), hardware).estimate_s
