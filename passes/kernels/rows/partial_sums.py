"""Long sums of one thread in two levels: runs of steps are added up by themselves, then to the total.

The rounding error of n random terms that are added one after the other grows as the root of n / 2 (Higham,
Accuracy and Stability of Numerical Algorithms, section 4.2). With runs of m steps it grows as that of m / 2 +
n / 2m, which is least where m is near the root of n.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt

from tilewright.ir import Expr, Op, Value
from tilewright.passes.kernels.rows.combiners import combiner
from tilewright.passes.kernels.writing.writer import Writer

#: steps that one chain of additions may have, and of a run at least and at most
LONGEST_CHAIN, SHORTEST_RUN, LONGEST_RUN = 32, 8, 128


def run_of(ops: Sequence[Op], steps: int) -> int:
    """Steps whose sum a thread adds to its total at once; all of them where a chain is short or no sum.

    A number near the best one that divides `steps`, where there is one.
    """
    inexact = all(r.tensor.dtype.startswith(("f", "bf")) for op in ops for r in op.results)
    if steps <= LONGEST_CHAIN or not inexact or any(combiner(op) != "scalar.add" for op in ops):
        return steps
    best = min(LONGEST_RUN, max(SHORTEST_RUN, round(sqrt(steps))))
    whole = [n for n in range(max(SHORTEST_RUN, best // 2), min(2 * best, LONGEST_RUN) + 1) if steps % n == 0]
    return min(whole, key=lambda n: abs(n - best), default=SHORTEST_RUN * (best // SHORTEST_RUN))


def in_runs(
    w: Writer, ops: Sequence[Op], steps: int, parts: Sequence[Value], fold: Callable[[int, Expr], None]
) -> None:
    """Write the folds of `steps` steps into `parts`, in runs.

    parts: registers, [lanes], which hold the neutral value. fold: writes a loop over that many steps from a
    first one on, into `parts`.
    """
    run = run_of(ops, steps)
    if run == steps:
        fold(steps, 0)
        return
    totals = [w.alloc(p.tensor.shape, p.tensor.dtype, "reg", "sum") for p in parts]
    _each(w, parts, totals, lambda v, part, total: _clear(w, total, v))
    whole, rest = divmod(steps, run)
    with w.loop("b", whole) as number:
        fold(run, number * run)
        _each(w, parts, totals, lambda v, part, total: _move(w, part, total, v))
    if rest:
        fold(rest, whole * run)
    _each(w, parts, totals, lambda v, part, total: _take(w, part, total, v))


def _each(
    w: Writer, parts: Sequence[Value], totals: Sequence[Value], do: Callable[[Expr, Value, Value], None]
) -> None:
    for part, total in zip(parts, totals, strict=True):
        with w.loop("v", part.tensor.shape[0], unroll=1) as v:
            do(v, part, total)


def _clear(w: Writer, buffer: Value, v: Expr) -> None:
    w.store(w.b.const(0.0, buffer.tensor.dtype), buffer, (v,))


def _move(w: Writer, part: Value, total: Value, v: Expr) -> None:
    """Add a part to its total and begin it anew."""
    w.store(w.b.value("scalar.add", w.load(total, (v,)), w.load(part, (v,))), total, (v,))
    _clear(w, part, v)


def _take(w: Writer, part: Value, total: Value, v: Expr) -> None:
    """Add a total to what is left in its part."""
    w.store(w.b.value("scalar.add", w.load(total, (v,)), w.load(part, (v,))), part, (v,))
