"""`tilewright report NET -o report.html`: compile (or load) a network and write a page about it."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.api import compile as compile_module
from tilewright.ir import InputError, UnsupportedError
from tilewright.running.executable import Executable
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.commands.network import choices_of, load_network, load_saved
from tilewright.tools.report import FusedOps, collect, report_page, require_matplotlib
from tilewright.tools.report.wording import counted


def run_report(a: argparse.Namespace) -> None:
    """Compile or load, time, and write the page."""
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
        try:
            facts = collect(exe, Path(a.network).name, fused=fused, repeats=a.repeats, seed=a.seed)
        except InputError as e:
            raise InputError(str(e), where=a.network) from None
    write_atomically(a.output, report_page(facts), "the page")
    print(
        f"{a.network} for {facts.target}: {counted(len(facts.kernels), 'kernel')}, "
        f"{counted(len(facts.launches), 'launch')}, "
        f"times {facts.timing.source} ({facts.timing.where})"
    )
    print(f"wrote {a.output}")
