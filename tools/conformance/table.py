"""The table of a conformance run: counts by suite and target, then every case that did not pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.tools.conformance.case import FAILED, PASSED, UNSUPPORTED, Result


def summary(results: Sequence[Result]) -> str:
    """Counts and the largest relative error by suite and target."""
    head = ("suite", "target", "cases", PASSED, FAILED, UNSUPPORTED, "passed %", "largest error")
    rows = []
    for suite, target in dict.fromkeys((r.suite, r.target) for r in results):
        mine = [r for r in results if (r.suite, r.target) == (suite, target)]
        counts = Counter(r.status for r in mine)
        errors = [r.error for r in mine if np.isfinite(r.error)]
        share = f"{100 * counts[PASSED] / len(mine):.1f}"
        largest = f"{max(errors):.1e}" if errors else ""
        numbers = (counts[s] for s in (PASSED, FAILED, UNSUPPORTED))
        rows.append((suite, target, len(mine), *numbers, share, largest))
    return _aligned([head, *rows])


def errors_by_network(results: Iterable[Result]) -> str:
    """Relative errors against float64, one row per network, one column per precision and target;
    empty without networks."""
    mine = [r for r in results if r.suite.startswith("networks")]
    if not mine:
        return ""
    columns = list(dict.fromkeys((r.suite, r.target) for r in mine))
    cells = {(r.suite, r.target, r.name): f"{r.error:.1e}" if r.status == PASSED else r.status for r in mine}
    head = ("network", *(f"{s.partition(' ')[2] or 'fp32'} {t}" for s, t in columns))
    names = sorted({r.name for r in mine})
    return _aligned([head, *((n, *(cells.get((*c, n), "") for c in columns)) for n in names)])


def findings(results: Iterable[Result]) -> str:
    """One line for every case that failed or is unsupported, with its reason."""
    bad = sorted(
        (r for r in results if r.status != PASSED), key=lambda r: (r.status, r.suite, r.target, r.name)
    )
    return "\n".join(f"{r.status}: {r.suite} {r.name} on {r.target}: {r.reason}" for r in bad)


def _aligned(rows: Sequence[Sequence[object]]) -> str:
    texts = [[str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in texts) for i in range(len(texts[0]))]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in texts
    )
