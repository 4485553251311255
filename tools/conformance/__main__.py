"""`python -m tilewright.tools.conformance DATA`: all suites on all targets of this machine, as a table.

DATA holds `relay_ops` (recorded operator cases) and `relay` (networks). The exit code is 1 where a
case failed; unsupported cases are listed and counted, and do not change it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import get_args

import numpy as np
from tqdm import tqdm

from tilewright.compilation.option_values import Precision
from tilewright.devices.targets import device_name, resolve_target
from tilewright.ir import InputError
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.arguments.printing import aligned
from tilewright.tools.conformance.case import FAILED, PASSED, UNSUPPORTED, Result, Suite
from tilewright.tools.conformance.suites import SUITES, open_suites
from tilewright.tools.conformance.workers import run_all


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print the tables, write JSON where asked."""
    p = argparse.ArgumentParser(prog="python -m tilewright.tools.conformance", description=__doc__)
    p.add_argument("data", metavar="DATA", help="folder with relay_ops and relay")
    p.add_argument("--suite", action="append", choices=SUITES, help="only these (repeatable; default all)")
    p.add_argument("--target", action="append", help="only these (repeatable; default all of the machine)")
    p.add_argument(
        "--precision", action="append", choices=get_args(Precision), help="of networks (default all)"
    )
    p.add_argument(
        "--only", action="append", default=[], metavar="TEXT", help="cases whose name contains TEXT"
    )
    p.add_argument(
        "--jobs", type=int, default=min(4, os.cpu_count() or 1), help="processes (default up to 4)"
    )
    p.add_argument("--json", metavar="FILE", help="write every result as JSON")
    a = p.parse_args(argv)
    opened = partial(open_suites, a.data, tuple(a.suite or SUITES), tuple(a.precision or get_args(Precision)))
    try:
        work = _work(opened(), a.target or machine_targets(), a.only)
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    bar = tqdm(run_all(opened, work, a.jobs), total=len(work), unit="case", disable=not sys.stderr.isatty())
    results = sorted(bar, key=lambda r: (r.suite, r.target, r.name))
    devices = {t: device_name(resolve_target(t)) for t in dict.fromkeys(r.target for r in results)}
    ran = "\n".join(f"{target} ran on {device}" for target, device in devices.items() if device)
    print("\n\n".join(filter(None, (findings(results), errors_by_network(results), summary(results), ran))))
    if a.json:
        rows = [{**asdict(r), "device": devices[r.target]} for r in results]
        write_atomically(a.json, json.dumps(rows, indent=1))
    return 1 if any(r.status == FAILED for r in results) else 0


def machine_targets() -> list[str]:
    """reference, opencl, and cuda where the machine has an NVIDIA GPU."""
    gpu = ["cuda"] if resolve_target("auto").kind == "cuda" else []
    return ["reference", "opencl", *gpu]


def _work(suites: Sequence[Suite], targets: Sequence[str], only: Sequence[str]) -> list[tuple[str, str, str]]:
    """The cases to run; networks run on the reference in fp32 only, where they define what is right."""
    for t in targets:
        resolve_target(t)
    return [
        (s.name, name, t)
        for s in suites
        for t in targets
        for name in s.cases
        if not only or any(text in name for text in only)
    ]


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
    return aligned([head, *rows])


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
    return aligned([head, *((n, *(cells.get((*c, n), "") for c in columns)) for n in names)])


def findings(results: Iterable[Result]) -> str:
    """One line for every case that failed or is unsupported, with its reason."""
    bad = sorted(
        (r for r in results if r.status != PASSED), key=lambda r: (r.status, r.suite, r.target, r.name)
    )
    return "\n".join(f"{r.status}: {r.suite} {r.name} on {r.target}: {r.reason}" for r in bad)


if __name__ == "__main__":
    sys.exit(main())
