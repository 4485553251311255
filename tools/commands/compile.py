"""`tilewright compile NET -o net.tw`: compile ahead of time into one file."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from tilewright.api import compile as compile_module
from tilewright.compilation.report_facts import layout_text
from tilewright.ir import UnsupportedError
from tilewright.running.executable import Executable
from tilewright.running.shaped import ShapedExecutable
from tilewright.tools.arguments.scope import NetworkKind
from tilewright.tools.commands.network import choices_of, load_network, parse_shapes
from tilewright.tools.report.wording import counted, hardware_text, weights_text

#: inputs that the text names
MOST_INPUTS = 8


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
    if line := weights_text(report):
        print(line)
    if line := hardware_text(report):
        print(line)
    if line := layout_text(report["layouts"]) if "layouts" in report else "":
        print(line)
    if isinstance(exe, ShapedExecutable):
        saved = report["shared_constant_bytes_saved"]
        print(
            f"{report['constant_bytes'] / 1e6:.1f} MB of weights in all; sharing saves {saved / 1e6:.1f} MB"
        )
    print(_inputs(a, report["inputs"]))
    if a.output:
        print(f"wrote {a.output}")


def _inputs(a: argparse.Namespace, inputs: list[dict[str, Any]]) -> str:
    """The inputs of a call in words; where no weights were named, that they are inputs as well."""
    shown = [f"{i['name']} {i['dtype']}{i['shape']}" for i in inputs[:MOST_INPUTS]]
    more = f" and {len(inputs) - MOST_INPUTS} more" if len(inputs) > MOST_INPUTS else ""
    unbound = a.params is None and NetworkKind.of(a.network) is NetworkKind.RELAY and len(inputs) > 1
    note = " (no weights are bound: --params FILE or --params random binds them)" if unbound else ""
    return f"{counted(len(inputs), 'input')}: {', '.join(shown) or 'none'}{more}{note}"


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
