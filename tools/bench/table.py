"""The benchmark as text: one line per row while it runs, and Markdown tables for documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.tools.arguments.printing import markdown_head, markdown_row
from tilewright.tools.bench.rows import Row, fastest_by_peer


def row_text(row: Row) -> str:
    """One line about a row: median with spread, the peers, the ratio to the better one, or the reason."""
    head = f"{row['network']:<20} batch {row['batch']:<4} {row['precision']:<5}"
    if row["status"] == "failed":
        return f"{head} failed: {row['reason']}"
    if row["status"] == "compiled":
        (ours, *_) = row["ours"]
        sizes = f"{ours['kernels']} kernels, {ours['launches']} launches"
        return f"{head} compiled in {ours['prepare_s']:.1f} s: {sizes}"
    parts = [head]
    for ours in row["ours"]:
        parts.append(f"{ours['variant'] or 'tilewright'} {_spread(ours)}")
    parts += [
        f"{name} {milliseconds_text(r['median_ms'])}" for name, r in fastest_by_peer(row["peers"]).items()
    ]
    parts += [f"{r['peer']} {r['variant']}: {r['reason'][:60]}" for r in row["peers"] if "reason" in r]
    if row["ratio"] is not None:
        parts.append(f"{row['ratio']:.2f}x of {row['best_peer']}")
    if row["status"] == "wrong":
        parts.append(f"WRONG: {row['reason']}")
    return " | ".join(parts)


def network_table(rows: Sequence[Row]) -> str:
    """A Markdown table of rows: milliseconds by contender, and the ratio to the better peer."""
    peers = list(dict.fromkeys(name for r in rows for name in fastest_by_peer(r.get("peers", ()))))
    head = ["network", "batch", "precision", "Tilewright", *peers, "ratio to the better"]
    lines = markdown_head(head)
    for row in rows:
        cells = [row["network"], str(row["batch"]), row["precision"]]
        if row["status"] in ("failed", "compiled"):
            cells += [row.get("reason", "compiled"), *[""] * (len(peers) + 1)]
        else:
            fastest = fastest_by_peer(row["peers"])
            cells.append(milliseconds_text(row["ours"][0].get("median_ms")))
            cells += [milliseconds_text(fastest[p]["median_ms"]) if p in fastest else "-" for p in peers]
            cells.append("-" if row["ratio"] is None else f"{row['ratio']:.2f}")
        lines.append(markdown_row(cells))
    return "\n".join(lines)


def kernel_text(row: Row) -> str:
    """One line about a kernel: median with spread, rate, and what it is compared with."""
    head = f"{row['kernel']:<20} {row['precision']:<5}"
    if row["status"] == "failed":
        return f"{head} failed: {row['reason']}"
    parts = [head, *(f"{r['variant'] or 'tilewright'} {_spread(r)} {_rate(r)}" for r in row["ours"])]
    peers = fastest_by_peer(row["peers"])
    parts += [f"{name} {milliseconds_text(r['median_ms'])} {_rate(r)}" for name, r in peers.items()]
    if row["ratio"] is not None:
        parts.append(f"{row['ratio']:.2f}x of {row['best_peer']}")
    if "of_copy" in row:
        parts.append(f"{row['of_copy']:.2f} of copying")
    if row["status"] == "wrong":
        parts.append(f"WRONG: {row['reason']}")
    return " | ".join(parts)


def kernel_table(rows: Sequence[Row]) -> str:
    """A Markdown table of kernels: milliseconds, rates, and the ratios to PyTorch and to a copy."""
    lines = markdown_head(["kernel", "precision", "Tilewright", "rate", "PyTorch", "ratio", "of copying"])
    for row in rows:
        cells = [row["kernel"], row["precision"]]
        if row["status"] == "failed":
            cells += [row["reason"], "", "", "", ""]
        else:
            peer = fastest_by_peer(row["peers"]).get("torch", {})
            own = row["ours"][0]
            cells += [
                milliseconds_text(own.get("median_ms")),
                _rate(own),
                milliseconds_text(peer.get("median_ms")),
            ]
            cells += ["-" if r is None else f"{r:.2f}" for r in (row["ratio"], row.get("of_copy"))]
        lines.append(markdown_row(cells))
    return "\n".join(lines)


def document_text(data: Mapping[str, Any]) -> str:
    """All tables of a document that have rows."""
    made = (
        (network_table, data["rows"]),
        (summary_table, data["summary"]),
        (kernel_table, data["kernels"]),
    )
    return "\n\n".join(table(rows) for table, rows in made if rows)


def summary_table(summary: Sequence[Row]) -> str:
    """A Markdown table: per batch and precision the geometric mean, the least ratio, and means by peer."""
    variants = list(dict.fromkeys(v for s in summary for v in s["by_variant"] if v))
    peers = list(dict.fromkeys(p for s in summary for p in s["by_peer"]))
    head = ["batch", "precision", "networks", "ratio to the better peer", "least"]
    lines = markdown_head([*head, *(f"ratio, {v}" for v in variants), *(f"over {p}" for p in peers)])
    for s in summary:
        cells = [str(s["batch"]), s["precision"], str(s["networks"]), f"{s['geometric_mean']:.2f}"]
        cells.append(f"{s['least']:.2f} ({s['least_network']})")
        means = [*(s["by_variant"].get(v) for v in variants), *(s["by_peer"].get(p) for p in peers)]
        cells += [f"{mean:.2f}" if mean else "-" for mean in means]
        lines.append(markdown_row(cells))
    return "\n".join(lines)


def _spread(row: Row) -> str:
    if "median_ms" not in row:
        return f"wrong (error {row['relative_error']:.2g})"
    median, low, high = (milliseconds_text(row[name]) for name in ("median_ms", "p10_ms", "p90_ms"))
    return f"{median} ms [{low}, {high}]"


def _rate(row: Row) -> str:
    if "tflop_per_s" in row:
        return f"{row['tflop_per_s']:.1f} TFLOP/s"
    return f"{row['gbyte_per_s']:.0f} GB/s" if "gbyte_per_s" in row else "-"


def milliseconds_text(ms: float | None) -> str:
    """Milliseconds with about four digits."""
    return "-" if ms is None else f"{ms:.4f}" if ms < 1 else f"{ms:.3f}" if ms < 10 else f"{ms:.2f}"
