"""`tilewright explain NET`: for each kernel the chosen parameters, the bound, and what limits it."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tilewright.api import facts_of
from tilewright.commands.network import load_network, passes_of
from tilewright.costmodel.explain import LIMITS
from tilewright.driver import lower
from tilewright.ir import Ref
from tilewright.layout_facts import layout_text
from tilewright.partition_table import compare_partitioners, partitioner_table
from tilewright.targets import resolve_target


def run_explain(a: argparse.Namespace) -> None:
    """Lower without building and print the choices."""
    module, target = load_network(a), resolve_target(a.target)
    if a.partitioners:
        compared = compare_partitioners(module, target)
        print(json.dumps(compared, indent=1) if a.json else partitioner_table(a.network, target, compared))
        return
    chosen = passes_of(a)
    lowered = lower(module, target, own=chosen["passes"], verify_each=chosen["verify_each"])
    facts = facts_of(lowered, target)
    calls = [op["callee"] for op in lowered.thread.main.body.ops if op.name == "tensor.call"]
    times: dict[str, int] = {}
    for ref in calls:
        if isinstance(ref, Ref):
            times[ref.name] = times.get(ref.name, 0) + 1
    rows = [{**k, "calls": times.get(k["name"], 0)} for k in facts["kernels"]]
    if a.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{a.network} for {target} ({facts['hardware']}): {len(rows)} kernels, {len(calls)} launches")
    if line := layout_text(facts["layouts"]):
        print(line)
    for k in rows:
        print(_text(k))
    bound = sum(k["calls"] * k["cost"]["bound_s"] for k in rows)
    estimate = sum(k["calls"] * k["cost"]["estimate_s"] for k in rows)
    print(f"sum over launches: bound {1e6 * bound:.1f} us, estimate {1e6 * estimate:.1f} us")


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
