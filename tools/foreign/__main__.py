"""`python -m tilewright.tools.foreign [NAMES...]`: networks of other packages through every way in.

Networks of torch have random weights with a seed and are compared with torch in float64; they need torch,
timm, torchvision, transformers, onnx and onnxscript. Trained networks that packages ship as ONNX files are
compared with ONNX Runtime in float32. Where a package is not installed, the row says so. Errors are norms of
differences over norms. The exit code is 1 where a row is wrong or failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.foreign.entry import TOLERANCE
from tilewright.tools.foreign.registry import chosen
from tilewright.tools.foreign.row import BAD, HEAD, ForeignCase, Row, markdown, summary
from tilewright.tools.foreign.ways import FILE, WAYS
from tilewright.tools.foreign.workers import run_all


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print rows as they end and a summary; write JSON where asked, with every row."""
    p = argparse.ArgumentParser(prog="python -m tilewright.tools.foreign", description=__doc__)
    p.add_argument("names", nargs="*", metavar="NAME", help="networks (default all)")
    p.add_argument("--list", action="store_true", help="print the networks and exit")
    p.add_argument("--target", nargs="+", default=["auto"], help="targets (default auto)")
    p.add_argument("--precision", nargs="+", default=["fp32"], choices=tuple(TOLERANCE), help="default fp32")
    p.add_argument("--batch", nargs="+", type=int, default=[1, 4], help="default 1 and 4")
    p.add_argument(
        "--via", nargs="+", default=[*WAYS, FILE], choices=(*WAYS, FILE), help="ways in (default all)"
    )
    p.add_argument("--jobs", type=int, default=1, help="networks side by side (default 1)")
    p.add_argument("--seconds", type=float, default=300.0, help="time limit of a row (default 300)")
    p.add_argument("--only-compile", action="store_true", help="run nothing: for targets not present")
    p.add_argument("--json", metavar="FILE", help="write all rows, again after each")
    p.add_argument("--markdown", metavar="FILE", help="write a table with a line per network")
    a = p.parse_args(argv)
    try:
        entries = chosen(a.names)
        targets = [resolved.kind if t == "auto" else t for t in a.target if (resolved := resolve_target(t))]
        if min(a.batch) < 1 or a.jobs < 1:
            raise InputError(f"expected positive --batch and --jobs, got {a.batch} and {a.jobs}")
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    if a.list:
        print("\n".join(f"{e.name:32s} {e.package:24s} {e.family}" for e in entries))
        return 0
    cases = [
        ForeignCase(e.name, via, batch, target, precision)
        for e in entries
        for via in a.via
        if via in e.ways
        for batch in a.batch
        if batch == 1 or e.batched
        for target in targets
        for precision in a.precision
    ]
    print(HEAD, flush=True)
    rows: list[Row] = []
    for row in run_all(cases, a.jobs, a.seconds, only_compile=a.only_compile):
        print(row.line(), flush=True)
        rows.append(row)
        if a.json:
            write_atomically(a.json, json.dumps([asdict(r) for r in rows], indent=1))
    print(summary(rows))
    if a.markdown:
        write_atomically(a.markdown, markdown(rows) + "\n")
    return 1 if any(r.state in BAD for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
