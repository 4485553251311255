"""Where a line of ops is cut into steps: few of them, whose weights are within a limit."""

from __future__ import annotations

import numpy as np

from tilewright.streaming.line import Line


def choose_cuts(line: Line, weight_limit: float) -> list[tuple[int, int]] | None:
    """Steps as ranges of ops whose constants take at most `weight_limit` bytes each; None where no cuts do.

    Exact dynamic programming over all cuts. What counts first are the steps and the bytes of values that
    cross cuts, a step as much as the median of all cuts: a few more steps are better than cuts inside blocks.
    Of equal ones the most even steps (least sum of squared weights) are taken, which tend to be alike and to
    share a plan.
    """
    count = len(line.ops)
    crossing = line.cut_bytes
    step_cost = int(np.median(crossing[1:count])) if count > 1 else 1
    # best[i]: (cost of steps and cuts, squared weights) of the best way to cut the first i ops
    best = np.full((count + 1, 2), np.inf)
    best[0] = 0
    before = np.zeros(count + 1, np.int64)
    for end in range(1, count + 1):
        weights = _weights_back(line, end, weight_limit)
        if not weights.size:
            continue
        begins = end - 1 - np.arange(weights.size)
        ways = best[begins] + np.stack(
            [step_cost + np.where(begins > 0, crossing[begins], 0), weights**2], axis=1
        )
        winner = np.lexsort(ways.T[::-1])[0]
        best[end], before[end] = ways[winner], begins[winner]
    if not np.isfinite(best[count, 0]):
        return None
    steps: list[tuple[int, int]] = []
    end = count
    while end:
        steps.append((int(before[end]), end))
        end = int(before[end])
    return steps[::-1]


def _weights_back(line: Line, end: int, limit: float) -> np.ndarray:
    """Bytes of the constants of the last 1, 2, ... ops before `end`, as long as they are within the limit."""
    seen: set[str] = set()
    total, out = 0, []
    for place in range(end - 1, -1, -1):
        for name, nbytes in line.constant_bytes[place].items():
            if name not in seen:
                seen.add(name)
                total += nbytes
        if total > limit:
            break
        out.append(total)
    return np.array(out, np.float64)
