"""`tilewright explain NET`: for each kernel the chosen parameters, the bound, and what limits it."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewright.compilation.lowering import lower
from tilewright.compilation.report_facts import compilation_facts, layout_text
from tilewright.costmodel.kernels.explain import LIMITS
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, Ref
from tilewright.tools.commands.network import load_network, load_saved, passes_of
from tilewright.tools.commands.partition_table import compare_partitioners, partitioner_table
from tilewright.tools.report.wording import hardware_text


def run_explain(a: argparse.Namespace) -> None:
    """Lower without building, or read what was saved, and print the choices."""
    if a.partitioners:
        module, target = load_network(a), resolve_target(a.target)
        compared = compare_partitioners(module, target)
        print(json.dumps(compared, indent=1) if a.json else partitioner_table(a.network, target, compared))
        return
    name, facts, called = _saved(a) if Path(a.network).suffix == ".tw" else _lowered(a)
    calls = Counter(called)
    try:
        rows = [{**k, "calls": calls[k["name"]]} for k in facts["kernels"]]
        text = _document(f"{a.network} for {name} ({facts['hardware']})", facts, rows, calls.total())
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise InputError("expected a saved executable with facts of its kernels", where=a.network) from e
    print(json.dumps(rows, indent=1) if a.json else text)


def _lowered(a: argparse.Namespace) -> tuple[str, Mapping[str, Any], list[str]]:
    """Target, facts, and the kernel of every launch of a network."""
    module, target = load_network(a), resolve_target(a.target)
    chosen = passes_of(a)
    lowered = lower(module, target, own=chosen["passes"], verify_each=chosen["verify_each"])
    calls = [op["callee"] for op in lowered.thread.main.body.ops if op.name == "tensor.call"]
    return (
        str(target),
        compilation_facts(lowered),
        [ref.name for ref in calls if isinstance(ref, Ref)],
    )


def _saved(a: argparse.Namespace) -> tuple[str, Mapping[str, Any], list[str]]:
    """The same of a saved executable."""
    exe = load_saved(a)
    return exe.target, exe.artifact.facts, [launch.kernel for launch in exe.plan.launches]


def _document(head: str, facts: Mapping[str, Any], rows: list[dict[str, Any]], launches: int) -> str:
    bound = sum(k["calls"] * k["cost"]["bound_s"] for k in rows)
    estimate = sum(k["calls"] * k["cost"]["estimate_s"] for k in rows)
    lines = [
        f"{head}: {len(rows)} kernels, {launches} launches",
        hardware_text(facts),
        layout_text(facts["layouts"]),
        *map(_text, rows),
        f"sum over launches: bound {1e6 * bound:.1f} us, estimate {1e6 * estimate:.1f} us",
    ]
    return "\n".join(filter(None, lines))


def _text(k: dict[str, Any]) -> str:
    cost = k["cost"]
    limit = cost["limit"]
    return (
        f"\n{k['name']}  x{k['calls']}  [{k['skeleton']}]  grid {k['grid']} x {k['block']} threads\n"
        f"  from    {', '.join(k['origins'])}\n"
        f"  cut     {_params(k['params'])}\n"
        f"  bound   {1e6 * cost['bound_s']:.2f} us ({100 * cost['fraction_of_peak']:.1f} % of peak), "
        f"limited by {LIMITS.get(limit, limit)}\n"
        f"  expect  {1e6 * cost['estimate_s']:.2f} us, best of {cost['considered']} candidates"
    )


def _params(p: dict[str, Any]) -> str:
    parts = []
    for name, value in p.items():
        text = "x".join(f"{d}:{n}" for d, n in value.items()) if isinstance(value, dict) else str(value)
        parts.append(f"{name}={text}")
    return " ".join(parts)
