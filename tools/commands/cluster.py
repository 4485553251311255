"""`tilewright cluster plan|table|validate`: the cluster model's best plans, its table, its errors."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tilewright.cluster.text import plan_text, table_text, validation_text
from tilewright.costmodel.cluster.in_memory_search import search_in_memory
from tilewright.costmodel.cluster.machine import Cluster
from tilewright.costmodel.cluster.measured_rows import citation, source_names
from tilewright.costmodel.cluster.model import Model
from tilewright.costmodel.cluster.search import SearchResult, search
from tilewright.costmodel.cluster.table_rows import table_rows
from tilewright.costmodel.cluster.training import Training
from tilewright.costmodel.cluster.validation import refit, score, stack_named, stacks
from tilewright.costmodel.cluster.validation_best import predict_best
from tilewright.ir import InputError, WorkError
from tilewright.tools.cluster_plots import require_plot, write_plan_plot, write_validation_plot
from tilewright.tools.commands.cluster_execution import plan_here
from tilewright.tools.commands.cluster_inputs import load_inputs


def run_plan(a: argparse.Namespace) -> None:
    """Search all configurations and print the fastest that fit."""
    if a.devices is not None:
        plan_here(a)
        return
    for option in ("cluster", "training"):
        if getattr(a, option) is None:
            raise InputError("expected this option, or --devices for one inference", where=f"--{option}")
    if a.plot:
        require_plot(a.plot)
    cluster, model, training = load_inputs(a)
    result = _searched(a, cluster, model, training)
    if not result.ranking:
        raise WorkError(_nothing_fits(result))
    names = {
        "cluster": cluster.name,
        "model": model.name,
        "training": training.name,
        "mode": a.mode,
        "stack": a.stack,
    }
    counts = {
        "devices": cluster.devices,
        "configurations": result.configurations,
        "feasible": result.feasible,
    }
    facts = {**names, **counts, "infeasible": dict(result.infeasible), "best": result.rows()}
    if a.plot:
        write_plan_plot(facts, a.plot)
    print(json.dumps(facts, indent=1) if a.json else plan_text(facts))
    _tell_plot(a)


def run_table(a: argparse.Namespace) -> None:
    """Print the 144 cells."""
    rows = table_rows()
    print(json.dumps(rows, indent=1) if a.json else table_text(rows))


def run_validate(a: argparse.Namespace) -> None:
    """Compare with all measured rows and print the errors per source."""
    if a.plot:
        require_plot(a.plot)
    used = [refit(stack) for stack in stacks()] if a.refit else list(stacks())
    scores = [score(stack, source) for stack in used for source in (*stack.fitted, *stack.transferred)]
    best = [b for source in source_names("best") for b in predict_best(source, used[0])]
    facts: dict[str, Any] = {
        "sources": [{**s.as_json(), "citation": citation(s.source)} for s in scores],
        "stacks": [s.as_json() for s in used],
        "best_rates": [b.as_json() for b in best],
    }
    if a.plot:
        write_validation_plot(used, a.plot)
    print(json.dumps(facts, indent=1) if a.json else validation_text(facts))
    _tell_plot(a)


def _searched(a: argparse.Namespace, cluster: Cluster, model: Model, training: Training) -> SearchResult:
    if not a.stack:
        return search(cluster, model, training, mode=a.mode, top=a.top)
    if a.mode != "corrected":
        raise InputError(f"knobs of a stack go with mode corrected, got {a.mode}", where="--stack")
    return search_in_memory(cluster, model, training, stack_named(a.stack).knobs, top=a.top)


def _nothing_fits(result: SearchResult) -> str:
    """One sentence with the reason that speaks against most configurations."""
    reasons = sorted(result.infeasible.items(), key=lambda item: -item[1])
    told = ", ".join(f"{reason} ({count})" for reason, count in reasons if count)
    return f"none of {result.configurations} configurations is feasible: {told}"


def _tell_plot(a: argparse.Namespace) -> None:
    if a.plot and not a.json:
        print(f"wrote {Path(a.plot)}")
