"""JSON of a graph and of what its nodes take."""

from __future__ import annotations

from typing import Any

from tilewright.runtime.dag import Dag, Edge
from tilewright.runtime.errors import InputError
from tilewright.runtime.streams.work import Work
from tilewright.runtime.strict_json import JsonFields, load_strict_json


def graph_from_json(text: str) -> tuple[Dag, Work]:
    """Read `{"n": 4, "edges": [[0, 1]]}` and, where given, `costs`, `resources` and `sync_cost` (see `Work`).

    Raises `InputError` on anything else, and on a graph with cycles.
    """
    fields = JsonFields(
        load_strict_json(text, "graph"), "graph", ("n", "edges"), ("costs", "resources", "sync_cost")
    )
    dag = Dag.of(fields.integer("n"), fields.each("edges", _edge))
    sync_cost = _number(fields.data.get("sync_cost", 0), "graph.sync_cost")
    return dag, Work.of(dag.n, _numbers(fields, "costs"), _numbers(fields, "resources"), sync_cost)


def _edge(value: Any, where: str) -> Edge:
    if not (isinstance(value, list) and len(value) == 2 and all(type(node) is int for node in value)):
        raise InputError(f"{where}: expected two integers [from, to], got {value!r:.60}")
    return value[0], value[1]


def _numbers(fields: JsonFields, key: str) -> tuple[float, ...] | None:
    return fields.each(key, _number) if key in fields.data else None


def _number(value: Any, where: str) -> float:
    if type(value) not in (int, float):
        raise InputError(f"{where}: expected a number, got {value!r:.60}")
    return float(value)
