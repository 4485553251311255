"""`tilewright report NET -o report.html`: compile (or load) a network and write a page about it."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.api import compile as compile_module
from tilewright.commands.network import (
    add_choice_arguments,
    add_network_arguments,
    choices_of,
    load_network,
    load_saved,
)
from tilewright.executable import Executable
from tilewright.ir import InputError, UnsupportedError
from tilewright.runtime.atomic_file import atomic_file
from tilewright.tools.report import FusedOps, collect, report_page, require_matplotlib
from tilewright.tools.report.wording import counted


def add_report(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    p = sub.add_parser("report", help="write a page: graph, roofline, times, memory, choices, generated code")
    add_choice_arguments(p)
    add_network_arguments(p, params="random")
    p.add_argument("-o", "--output", metavar="FILE", required=True, help="where to write the page (.html)")
    p.add_argument(
        "--repeats",
        type=int,
        default=5,
        help="timed runs where the target's device is present; 0 takes the model's times (default 5)",
    )
    p.set_defaults(action=run_report)


def run_report(a: argparse.Namespace) -> None:
    """Compile or load, time, and write the page."""
    if a.repeats < 0:
        raise InputError(f"expected at least 0 repeats, got {a.repeats}", where="--repeats")
    require_matplotlib()
    fused = None
    if Path(a.network).suffix == ".tw":
        exe = load_saved(a)
    else:
        fused = FusedOps()
        exe = compile_module(load_network(a), target=a.target, **choices_of(a), instruments=(fused,))
    if not isinstance(exe, Executable):
        raise UnsupportedError("the reference target has no kernels to report on; name another --target")
    with exe:
        facts = collect(exe, Path(a.network).name, fused=fused, repeats=a.repeats, seed=a.seed)
    _write(a.output, report_page(facts))
    print(
        f"{a.network} for {facts.target}: {counted(len(facts.kernels), 'kernel')}, "
        f"{counted(len(facts.launches), 'launch')}, "
        f"times {facts.timing.source} ({facts.timing.where})"
    )
    print(f"wrote {a.output}")


def _write(path: str, page: str) -> None:
    """Replace the file at once, only when the page is complete."""
    try:
        with atomic_file(Path(path)) as f:
            f.write(page.encode())
    except OSError as e:
        raise InputError(f"cannot write the page: {e.strerror}", where=path) from e
