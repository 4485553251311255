"""Measures again what the README quotes and prints its tables as Markdown, section by section.

`python -m tilewright.tools.reproduce_readme [SECTION ...] [--tune measure] [--json FILE]`, in the
repository's folder on a machine with an NVIDIA GPU and PyTorch. The exit code is 1 where a result is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools import cli, compare_replays
from tilewright.tools.arguments.printing import markdown_head, markdown_row
from tilewright.tools.bench.document import read_document
from tilewright.tools.bench.table import document_text
from tilewright.tools.conformance import __main__ as conformance

DATA = "tests/data"
REPLAYED = (
    "pt_mobilenet_v2",
    "pt_efficientnet_b0",
    "inception_v3",
    "pt_googlenet",
    "zoo:nasnet_mobile",
    "pt_bilstm",
    "densenet121",
)
#: what `tilewright bench` gets for each section that it measures
BENCHES: dict[str, tuple[str, ...]] = {
    "batch 1": ("--suite", "main", "--batch", "1", "--precision", "fp32", "tf32", "fp16"),
    "large batches": ("--suite", "main", "--batch", "64", "128", "--precision", "fp32", "tf32", "fp16"),
    "classic networks": ("--suite", "classic"),
    "kernels": ("--kernels", "--precision", "fp32", "tf32", "fp16", "bf16", "--libraries", "off"),
}
#: of the arguments and a file for results: a table, what was measured, and whether all results were right
Section = Callable[[argparse.Namespace, Path], tuple[str, Any, bool]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the sections asked for (all, by default) and print their tables."""
    sections: dict[str, Section] = {
        **{name: partial(_bench, options) for name, options in BENCHES.items()},
        "replays": _replays,
        "conformance": _conformance,
    }
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(sections)} (default all)")
    p.add_argument("--tune", default="model", choices=("model", "measure"), help="default model")
    p.add_argument("--time-limit", type=float, metavar="S", help="seconds for each section of the benchmark")
    p.add_argument("--json", metavar="FILE", help="everything measured, by section, after every section")
    a = p.parse_args(argv)
    unknown = [s for s in a.sections if s not in sections]
    if unknown:
        p.error(f"expected sections among {', '.join(sections)}, got '{unknown[0]}'")
    measured: dict[str, Any] = {}
    right = True
    for name in a.sections or sections:
        with tempfile.TemporaryDirectory() as folder:
            table, measured[name], good = sections[name](a, Path(folder) / "results.json")
        right = right and good
        print(f"\n<!-- reproduce_readme: {name} -->\n\n{table}\n\n<!-- end: {name} -->", flush=True)
        if a.json:
            write_atomically(a.json, json.dumps(measured, indent=1))
    return 0 if right else 1


def _bench(options: Sequence[str], a: argparse.Namespace, results: Path) -> tuple[str, Any, bool]:
    limit = ("--time-limit", str(a.time_limit)) if a.time_limit else ()
    code = cli.main(["bench", *options, "--tune", a.tune, *limit, "--json", str(results)])
    if not results.exists():
        return "not measured", None, False
    data = read_document(str(results))
    return document_text(data), data, code == 0


def _replays(a: argparse.Namespace, results: Path) -> tuple[str, Any, bool]:
    names = [n if ":" in n else f"{DATA}/relay/{n}.relay" for n in REPLAYED]
    code = compare_replays.main([*names, "--tune", a.tune, "--json", str(results)])
    rows = json.loads(results.read_text(encoding="utf-8"))
    return replays_table(rows), rows, code == 0


def replays_table(rows: Sequence[dict[str, Any]]) -> str:
    """Microseconds of launching one by one and of replays on one stream and on several."""
    head = (
        "network",
        "launches",
        "one by one, each waited for",
        "one by one",
        "one stream",
        '`streams="auto"`',
    )
    lines = markdown_head((*head, "streams"))
    for row in rows:
        times = (row["step_by_step_us"], row["queued_steps_us"], *(row["microseconds"][k] for k in _WAYS))
        cells = (
            Path(row["network"]).stem,
            row["launches"],
            *(round(t) for t in times),
            row["streams"]["count"],
        )
        lines.append(markdown_row(cells))
    return "\n".join(lines)


_WAYS = ("serial", "auto")


def _conformance(a: argparse.Namespace, results: Path) -> tuple[str, Any, bool]:
    code = conformance.main([DATA, "--json", str(results)])
    rows = json.loads(results.read_text(encoding="utf-8"))
    return conformance_table(rows), rows, code == 0


def conformance_table(rows: Sequence[dict[str, Any]]) -> str:
    """Cases that pass, of all, by suite and target."""
    groups = dict.fromkeys((r["suite"], r["target"]) for r in rows)
    lines = markdown_head(("suite", "target", "cases", "passed"))
    for suite, target in groups:
        own = [r["status"] for r in rows if (r["suite"], r["target"]) == (suite, target)]
        lines.append(markdown_row((suite, target, len(own), own.count("passed"))))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
