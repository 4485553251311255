"""`tilewright streams GRAPH.json`: plan streams and synchronisations for a graph given as a file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from tilewright.ir import InputError
from tilewright.ir.bounded_file import read_bounded
from tilewright.runtime.streams import (
    Dag,
    StreamPlan,
    Work,
    choose_plan,
    graph_from_json,
    plan_streams,
    replay_time,
)
from tilewright.runtime.strict_json import MAX_JSON_CHARS

MAX_SHOWN = 24  # nodes of a stream or order, and synchronisations, that the text output spells out


def run_streams(a: argparse.Namespace) -> None:
    """Read the graph, plan and print."""
    try:
        text = read_bounded(a.graph, MAX_JSON_CHARS, "graph").decode()
    except UnicodeDecodeError as e:
        raise InputError("cannot read the graph: not UTF-8 text", where=a.graph) from e
    try:
        dag, work = graph_from_json(text)
    except InputError as e:
        raise InputError(str(e), where=a.graph) from e
    policy, plan = _plan(dag, work, a.policy)
    if a.json:
        parts = {"streams": plan.streams, "syncs": plan.syncs}
        print(json.dumps({**parts, "order": plan.order} if a.order else parts))
        return
    print(f"{a.graph}: {dag.n} nodes, {len(dag.edges)} edges ({len(dag.reduced)} without implied ones)")
    print(f"policy {policy}: {len(plan.streams)} streams, {len(plan.syncs)} synchronisations")
    for index, nodes in enumerate(plan.streams):
        print(f"  stream {index}: {_listed([str(v) for v in nodes])}")
    print(f"  waits: {_listed([f'{v} for {u}' for u, v in plan.syncs], ', ') or 'none'}")
    print(f"  launched: {_listed([str(v) for v in plan.order])}")
    serial = replay_time(plan_streams(dag, "serial"), work)
    print(f"modelled time of a replay: {replay_time(plan, work):g}, on one stream {serial:g}")


def _plan(dag: Dag, work: Work, policy: str) -> tuple[str, StreamPlan]:
    if policy == "auto":
        choice = choose_plan(dag, lambda plan: replay_time(plan, work), work)
        return f"auto (by the model: {choice.policy})", choice.plan
    try:
        return policy, plan_streams(dag, policy, work)
    except InputError as e:
        raise InputError(str(e), where="--policy") from e


def _listed(items: Sequence[str], separator: str = " ") -> str:
    more = f" ... ({len(items)} in all)" if len(items) > MAX_SHOWN else ""
    return separator.join(items[:MAX_SHOWN]) + more
