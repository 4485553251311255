"""`tilewright tune NET`: measure the candidates of a network's kernels into the tuning database."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from tilewright.api import compile as compile_module
from tilewright.commands.network import (
    add_network_arguments,
    add_shared_choice_arguments,
    choices_of,
    load_network,
)
from tilewright.executable import Executable
from tilewright.ir import UnsupportedError
from tilewright.tuning_database import named_tuning_database


def add_tune(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    p = sub.add_parser(
        "tune", help="measure candidates on the device; compiling with --tune measure uses them"
    )
    add_shared_choice_arguments(p)
    add_network_arguments(p, params="random")
    p.add_argument("--json", action="store_true", help="print the result as JSON")
    p.set_defaults(action=run_tune, tune="measure")


def run_tune(a: argparse.Namespace) -> None:
    """Compile with measured choices, which fills the database, and say what came of it."""
    start = time.perf_counter()
    exe = compile_module(load_network(a), target=a.target, **choices_of(a))
    if not isinstance(exe, Executable):
        raise UnsupportedError("the reference target has no kernels to tune; name another --target")
    tuning = exe.artifact.facts["tuning"]
    result: dict[str, Any] = {
        "target": exe.target,
        "tuning_db": str(named_tuning_database(a.tuning_db)[0]),
        **tuning,
        "gain": tuning["model_s"] / tuning["chosen_s"] if tuning["chosen_s"] else None,
        "seconds": time.perf_counter() - start,
    }
    print(json.dumps(result) if a.json else _text(a.network, result))


def _text(network: str, r: dict[str, Any]) -> str:
    lines = [
        f"{network} for {r['target']}: {r['measured']} candidates measured, {r['reused']} known, "
        f"in {r['seconds']:.1f} s",
        f"kept in {r['tuning_db']}",
    ]
    if r["gain"] is not None:
        lines.append(
            f"contraction kernels of one run, each measured alone: {1e6 * r['model_s']:.1f} us as the model "
            f"chooses, {1e6 * r['chosen_s']:.1f} us as measured ({r['gain']:.2f}x)"
        )
    return "\n".join(lines)
