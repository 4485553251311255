"""One row of the table: what was run, what came of it, and as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: results agree; they do not; we decline it; part of it ran in torch; torch's exporter fails; only compiled;
#: a package is not installed; results in 16 bits are off, but no more than twice as far as torch's own
RIGHT, WRONG, DECLINED, FALLBACK, EXPORTER, COMPILED, ABSENT, AS_TORCH = (
    "right", "wrong", "declined", "fallback", "exporter", "compiled", "absent", "as torch",
)  # fmt: skip
#: an error that is no refusal; the process died; the time limit came
FAILED, DIED, TIMEOUT = "failed", "died", "timeout"
#: states that are no fault of the product
GOOD = (RIGHT, COMPILED, AS_TORCH)
#: states that make the exit code 1: the others give a reason that the product states
BAD = (WRONG, FAILED, DIED, TIMEOUT)


@dataclass(frozen=True, order=True)
class ForeignCase:
    """The network, way in, batch, target and precision of a row."""

    network: str
    via: str
    batch: int
    target: str
    precision: str


@dataclass(frozen=True)
class Row:
    """A case with its state. `seconds` go from the network in torch, or its file, to its first result."""

    case: ForeignCase
    state: str
    error: float = float("nan")
    seconds: float = 0.0
    reason: str = ""

    def line(self) -> str:
        """The row as a line of the table."""
        c, error = self.case, "" if self.error != self.error else f"{self.error:.1e}"
        return (
            f"{c.network:32s} {c.via:12s} {c.batch:5d}  {c.target:14s} {c.precision:9s} {error:>8s} "
            f"{self.seconds:8.1f}  {self.state:9s} {self.reason}"
        ).rstrip()


HEAD = (
    f"{'network':32s} {'way in':12s} {'batch':>5s}  {'target':14s} {'precision':9s} {'error':>8s} "
    f"{'seconds':>8s}  state     reason"
)


def summary(rows: Sequence[Row]) -> str:
    """The number of networks that are right in all their rows, and of rows in each state."""
    names = list(dict.fromkeys(r.case.network for r in rows))
    whole = [n for n in names if all(r.state in GOOD for r in rows if r.case.network == n)]
    states = list(dict.fromkeys(r.state for r in rows))
    counts = ", ".join(f"{sum(r.state == s for r in rows)} {s}" for s in states)
    return f"{len(whole)} of {len(names)} networks are right in every row; {len(rows)} rows: {counts}"


def markdown(rows: Iterable[Row]) -> str:
    """A table with one line per network: the largest error of every way in, or the state and its reason."""
    rows = sorted(rows, key=lambda r: r.case)
    ways = list(dict.fromkeys(r.case.via for r in rows))
    lines = [f"| network | {' | '.join(ways)} |", f"|---|{'---|' * len(ways)}"]
    for name in dict.fromkeys(r.case.network for r in rows):
        cells = []
        for via in ways:
            mine = [r for r in rows if (r.case.network, r.case.via) == (name, via)]
            bad = [r for r in mine if r.state not in GOOD]
            errors = [r.error for r in mine if r.error == r.error]
            good = f"{max(errors):.1e}" if errors else COMPILED
            cells.append(f"{bad[0].state}: {bad[0].reason}" if bad else good if mine else "")
        lines.append(f"| {name} | {' | '.join(c.replace('|', '/') for c in cells)} |")
    return "\n".join(lines)
