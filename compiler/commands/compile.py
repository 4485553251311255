"""`tilewright compile NET -o net.tw`: compile ahead of time into one file."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from tilewright.api import compile as compile_module
from tilewright.commands.network import (
    add_choice_arguments,
    add_network_arguments,
    choices_of,
    load_network,
    parse_shapes,
)
from tilewright.executable import Executable
from tilewright.ir import UnsupportedError
from tilewright.layout_facts import layout_text
from tilewright.shaped import ShapedExecutable


def add_compile(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    p = sub.add_parser("compile", help="compile a network into one file")
    add_choice_arguments(p)
    add_network_arguments(p, params=None)
    p.add_argument(
        "--shapes",
        action="append",
        metavar="NAME=N,...[; NAME=N,...]",
        help="keep a plan for these input shapes, over shared weights (repeatable, one plan each)",
    )
    p.add_argument("-o", "--output", metavar="FILE", help="where to write the executable (.tw)")
    p.add_argument("--json", action="store_true", help="print the report as JSON")
    p.set_defaults(action=run_compile)


def run_compile(a: argparse.Namespace) -> None:
    """Compile, save where asked, and report."""
    start = time.perf_counter()
    shapes = [parse_shapes(text) for text in a.shapes] if a.shapes else None
    exe = compile_module(load_network(a), target=a.target, shapes=shapes, **choices_of(a))
    if not isinstance(exe, Executable):
        raise UnsupportedError(
            "the reference target has nothing to compile; use `tilewright run --target reference`"
        )
    if a.output:
        exe.save(a.output)
    seconds = time.perf_counter() - start
    report = {**exe.report(), "seconds": seconds}
    if a.json:
        print(json.dumps(report, indent=1))
        return
    print(f"compiled {a.network} for {report['target']} in {seconds:.1f} s:{_sizes(exe, report)}")
    if line := layout_text(report["layouts"]) if "layouts" in report else "":
        print(line)
    if isinstance(exe, ShapedExecutable):
        saved = report["shared_constant_bytes_saved"]
        print(
            f"{report['constant_bytes'] / 1e6:.1f} MB of weights in all; sharing saves {saved / 1e6:.1f} MB"
        )
    if a.output:
        print(f"wrote {a.output}")


def _sizes(exe: Executable, report: dict[str, Any]) -> str:
    """Sizes of the plan, or a line with the sizes of each."""
    if isinstance(exe, ShapedExecutable):
        pairs = zip(exe.executables, report["buckets"], strict=True)
        return "".join(f"\n  {_shapes(facts)}:{_sizes(e, facts)}" for e, facts in pairs)
    spills = sum(k.resources.spill_bytes for k in exe.plan.kernels if k.resources is not None)
    return (
        f" {report['kernels_compiled']} kernels, {report['launches']} launches, "
        f"{report['constant_bytes'] / 1e6:.1f} MB of weights, "
        f"{report['arena_bytes'] / 1e6:.2f} MB arena, {spills} bytes spilled"
    )


def _shapes(facts: dict[str, Any]) -> str:
    return "; ".join(f"{name}={','.join(map(str, shape))}" for name, shape in facts["shapes"].items())
