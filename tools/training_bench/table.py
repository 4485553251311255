"""Training steps as text: one line per row, and Markdown tables with every peer, memory and ratios."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.tools.arguments.printing import markdown_head, markdown_row
from tilewright.tools.bench.contender import geometric_mean
from tilewright.tools.bench.rows import Row
from tilewright.tools.bench.table import milliseconds_text, row_text


def _megabytes(row: Row) -> str:
    return f"{row['peak_bytes'] / 1e6:,.0f}" if "peak_bytes" in row else "-"


def _least_memory(row: Row) -> str:
    """The least peak of the peers that were timed."""
    timed = [p for p in row["peers"] if "peak_bytes" in p]
    return _megabytes(min(timed, key=lambda p: float(p["peak_bytes"]), default={}))


def training_text(row: Row) -> str:
    """One line about a row, as `tilewright bench` prints it, with the peak memory of both sides."""
    text = row_text(row)
    if row["status"] not in ("ok", "wrong"):
        return text
    if (ratio := row["ratios"].get("torch-eager")) is not None:
        text += f" | {ratio:.2f}x of torch-eager"
    text += f" | peak {_megabytes(row['ours'][0])} MB, least peer {_least_memory(row)} MB"
    return text + "".join(f" | {_within_budget(row, ours)}" for ours in row["ours"][1:])


def _within_budget(row: Row, ours: Row) -> str:
    """The step that keeps to a budget of memory, beside the one that need not."""
    text = f"{ours['variant']}: {milliseconds_text(ours.get('median_ms'))} ms, peak {_megabytes(ours)} MB"
    free = row["ours"][0].get("median_ms")
    return f"{text}, {ours['median_ms'] / free:.2f} of the time" if free and "median_ms" in ours else text


def training_table(rows: Sequence[Row]) -> str:
    """A table of rows with all ways of PyTorch, and per precision the mean and the least of the ratios."""
    ways = list(dict.fromkeys((p["peer"], p["variant"]) for r in rows for p in r.get("peers", ())))
    names = [f"{peer} {variant}" for peer, variant in ways]
    head = [
        "row",
        "precision",
        "Tilewright",
        *names,
        "ratio to the better",
        "ratio to eager",
        "peak MB",
        "least peak of a peer",
    ]
    lines = markdown_head(head)
    for row in rows:
        cells = [row["network"], row["precision"]]
        if row["status"] in ("failed", "compiled"):
            lines.append(markdown_row([*cells, row.get("reason", "compiled"), *[""] * (len(names) + 4)]))
            continue
        ours = row["ours"][0]
        made = {(p["peer"], p["variant"]): p for p in row["peers"]}
        cells.append(milliseconds_text(ours.get("median_ms")))
        cells += [_peer_cell(made.get(way)) for way in ways]
        cells.append("-" if row["ratio"] is None else f"{row['ratio']:.2f}")
        eager = row["ratios"].get("torch-eager")
        cells.append("-" if eager is None else f"{eager:.2f}")
        lines.append(markdown_row([*cells, _megabytes(ours), _least_memory(row)]))
    budgets = [(row, ours) for row in rows for ours in row.get("ours", ())[1:] if row["status"] != "compiled"]
    if budgets:
        lines.append("")
    lines += [f"{row['network']} {row['precision']} {_within_budget(row, ours)}" for row, ours in budgets]
    for precision in dict.fromkeys(r["precision"] for r in rows):
        mine = [r for r in rows if r["precision"] == precision]
        timed = [r for r in mine if r.get("ratio")]
        mean = geometric_mean(r["ratio"] for r in timed)
        if mean is not None:
            least = min(timed, key=lambda r: float(r["ratio"]))
            lines += [
                "",
                f"{precision}: geometric mean over the better peer {mean:.2f} ({len(timed)} of {len(mine)} "
                f"rows), "
                f"least {least['ratio']:.2f} ({least['network']})",
            ]
    return "\n".join(lines)


def _peer_cell(peer: Row | None) -> str:
    if peer is None:
        return "-"
    return milliseconds_text(peer["median_ms"]) if "median_ms" in peer else str(peer["reason"])[:60]
