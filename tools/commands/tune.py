"""`tilewright tune NET`: search the parameters of a network's kernels into the tuning database."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from tilewright.api import compile as compile_module
from tilewright.ir import InputError, UnsupportedError
from tilewright.libraries.report import library_lines
from tilewright.running.executable import Executable
from tilewright.tools.commands.network import choices_of, load_network
from tilewright.tuning.database.database import named_tuning_database
from tilewright.tuning.database.travel import TEXT, is_saved_executable

#: kernels that the table shows, those that take most of the time
SHOWN = 20


def run_tune(a: argparse.Namespace) -> None:
    """Compile with measured choices, which fills the database, and say what came of it.

    Ctrl-C ends it with one sentence; what was measured until then is in the database.
    """
    start = time.perf_counter()
    where = named_tuning_database(a.tuning_db)[0]
    if is_saved_executable(where):
        raise InputError(
            "expected a database to tune into: a saved executable is only read", where="--tuning-db"
        )
    try:
        exe = compile_module(load_network(a), target=a.target, **choices_of(a))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted: what was measured until now is kept in {where}") from None
    if not isinstance(exe, Executable) or TEXT not in exe.artifact.texts:
        raise UnsupportedError("the reference target has no kernels to tune; name another --target")
    tuning = exe.artifact.facts["tuning"]
    result: dict[str, Any] = {
        "target": exe.target,
        "tuning_db": str(where),
        **tuning,
        "gain": tuning["model_s"] / tuning["chosen_s"] if tuning["chosen_s"] else None,
        "libraries": exe.artifact.facts.get("libraries"),
        "seconds": time.perf_counter() - start,
    }
    if a.output:
        exe.save(a.output)
    print(json.dumps(result) if a.json else _text(a.network, result))


def _text(network: str, r: dict[str, Any]) -> str:
    points, searched = r["points"], len(r["kernels"])
    lines = [
        f"{network} for {r['target']}: {r['measured']} candidates measured, {r['reused']} known, "
        f"in {r['seconds']:.1f} s",
        f"kept in {r['tuning_db']}",
        *_table(r["kernels"]),
        f"{searched} kernels searched, {points} points: {r['pruned']} ruled out by the bound, "
        f"{r['unknown']} left unmeasured, {r['failed']} refused",
        f"the best is certified for {100 * r['certified_kernels']:.0f} % of the kernels, "
        f"{100 * r['certified_time']:.0f} % of their time",
    ]
    if r["gain"] is not None:
        lines.append(
            f"searched kernels of one run, each measured alone: {1e6 * r['model_s']:.1f} us as the model "
            f"chooses, {1e6 * r['chosen_s']:.1f} us as measured ({r['gain']:.2f}x)"
        )
    if r["libraries"] is not None:
        lines += library_lines(r["libraries"])
    replay = r["replay"]
    if replay["arbitrated_s"] is not None:
        lines.append(
            f"one replay: {1e6 * replay['model_s']:.1f} us as the model chooses, "
            f"{1e6 * replay['isolated_s']:.1f} us with the fastest kernels alone, "
            f"{1e6 * replay['arbitrated_s']:.1f} us after {replay['compared']} comparisons in the network, "
            f"which changed {len(replay['swapped'])} kernels"
        )
    return "\n".join(lines + r["violations"])


def _table(kernels: list[dict[str, Any]]) -> list[str]:
    """A line per kernel, those first that take most of a run."""
    timed = [k for k in kernels if k["measured_s"] is not None]
    rows = sorted(timed, key=lambda k: -k["measured_s"] * k["occurrences"])
    if not rows:
        return []
    width = max(len(k["name"]) for k in rows[:SHOWN])
    out = [f"{'kernel':{width}}  runs  model us  best us  bound us  points  ruled out  tried  end"]
    for k in rows[:SHOWN]:
        model = f"{1e6 * k['model_s']:8.2f}" if k["model_s"] is not None else f"{'-':>8}"
        out.append(
            f"{k['name']:{width}}  {k['occurrences']:4}  {model}  {1e6 * k['measured_s']:7.2f}  "
            f"{1e6 * k['bound_s']:8.2f}  {k['points']:6}  {k['pruned']:9}  "
            f"{k['measured'] + k['reused']:5}  {k['end']}"
        )
    if len(rows) > SHOWN:
        out.append(f"... and {len(rows) - SHOWN} more")
    return out
