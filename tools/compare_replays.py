"""One plan launched in every way a GPU can launch it: step by step, and replayed on one or several streams.

`python -m tilewright.tools.compare_replays NET ... [--tune measure] [--json FILE]`: results of every way are
compared bit for bit with those of launching step by step, then all are timed interleaved, in one process.
NET is what `tilewright run` takes.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.ir import WorkError
from tilewright.running.checking import random_inputs
from tilewright.running.executable import Executable
from tilewright.runtime.atomic_file import write_atomically
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.cuda.plan import CudaPlan, ReplayKind
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.streams import Dag
from tilewright.tools.arguments.network import add_network_arguments
from tilewright.tools.arguments.parsing import CommandParser
from tilewright.tools.commands.network import load_network

#: replays without a wait between them, whose host time is taken: few, so that no queue fills up
QUEUED = 8
BATCHES = 100


def main(argv: Sequence[str] | None = None) -> int:
    """Compare every network given; exit code 1 where a way of launching changes a result."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("networks", nargs="+", metavar="NET")
    p.add_argument("--tune", default="model", choices=("model", "measure"))
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--replays", type=int, default=20, help="timed runs per round")
    p.add_argument("--json", metavar="FILE")
    a = p.parse_args(argv)
    rows = []
    for network in a.networks:
        rows.append(compare(network, a))
        print(json.dumps(rows[-1]), flush=True)
        if a.json:
            write_atomically(a.json, json.dumps(rows, indent=1))
    return 0 if all(row["equal"] for row in rows) else 1


def compare(network: str, a: argparse.Namespace) -> dict[str, Any]:
    """One network: bitwise equality, medians in microseconds, host time, edges, idle share."""
    options = CommandParser()
    add_network_arguments(options, params="random")
    module = load_network(options.parse_args([network]))
    exes = {
        policy: tw.compile(module, target="cuda", tune=a.tune, streams=policy)
        for policy in ("serial", "exact", "auto")
    }
    serial, auto = exes["serial"], exes["auto"]
    inputs = random_inputs(serial.input_names, serial.input_types, seed=1)
    row: dict[str, Any] = {"network": network, "tune": a.tune, "launches": len(serial.plan.launches)}
    row["equal"], row["microseconds"] = _times(exes, inputs, a)
    row |= _steps(serial, inputs, a)
    times = row["microseconds"]
    row["device"] = auto.device
    row["streams"] = auto.report()["streams"]
    row["over_serial"] = round(times["serial"] / times["auto"], 3)
    row["over_step_by_step"] = round(row["step_by_step_us"] / times["auto"], 2)
    row["over_queued_steps"] = round(row["queued_steps_us"] / times["auto"], 2)
    row["host_us"] = round(_host_us(auto, inputs), 2)
    row["batches_per_s"] = _batches_per_s(auto, inputs)
    row["graph"] = _graph(auto)
    profile = auto.profile(*inputs, repeats=5)
    row["idle_share"] = round(profile.idle_share, 4)
    row["idle_share_beyond_boundaries"] = round(profile.idle_share_beyond_boundaries, 4)
    row["boundary_us"] = round(1e6 * profile.boundary_s, 3)
    auto.close()
    return row


def _times(
    exes: dict[str, Executable], inputs: Sequence[np.ndarray], a: argparse.Namespace
) -> tuple[bool, dict[str, float]]:
    """Return whether all replays give the bits of launching step by step, and median microseconds of each."""
    constants = exes["serial"].artifact.constants
    with ExitStack() as stack:
        graphs, captures, checked = (
            stack.enter_context(CudaDevice(replay=kind)) for kind in _kinds("graph", "capture", "checked")
        )
        ways = {
            name: stack.enter_context(graphs.load(e.plan, e.artifact.constants)) for name, e in exes.items()
        }
        for name in ("serial", "auto"):
            plan = exes[name].plan
            ways[f"{name}, full edges"] = stack.enter_context(graphs.load(without_overlap(plan), constants))
            ways[f"{name}, captured"] = stack.enter_context(captures.load(plan, constants))
        expected = stack.enter_context(checked.load(exes["serial"].plan, constants)).run(inputs)
        equal = True
        for name, loaded in ways.items():
            same = all(np.array_equal(x, y) for x, y in zip(loaded.run(inputs), expected, strict=True))
            equal = equal and same
            if not same:
                print(f"replay '{name}' differs from launching step by step", file=sys.stderr)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(a.rounds):
            for name, loaded in ways.items():
                seconds[name] += loaded.time(inputs, a.replays)
    return equal, {name: round(1e6 * float(np.median(s)), 2) for name, s in seconds.items()}


def _kinds(*names: ReplayKind) -> tuple[ReplayKind, ...]:
    return names


def without_overlap(plan: ExecutionPlan) -> ExecutionPlan:
    """The same kernels with plain edges: each starts when those before it have ended."""
    return plan.replace(kernels=tuple(replace(k, overlaps=False, releases=False) for k in plan.kernels))


def _steps(exe: Executable, inputs: Sequence[np.ndarray], a: argparse.Namespace) -> dict[str, float]:
    """Median wall time of launching from the host: waiting for every launch, or for the last one only."""
    out = {}
    for name, kind in zip(("step_by_step_us", "queued_steps_us"), _kinds("checked", "eager"), strict=True):
        with CudaDevice(replay=kind) as device, device.load(exe.plan, exe.artifact.constants) as loaded:
            loaded.run(inputs)
            seconds = []
            for _ in range(a.replays):
                begin = time.perf_counter()
                loaded.replay()
                loaded.synchronize()
                seconds.append(time.perf_counter() - begin)
        out[name] = round(1e6 * float(np.median(seconds)), 2)
    return out


def _loaded(exe: Executable) -> CudaPlan:
    loaded = exe.load()
    if not isinstance(loaded, CudaPlan):
        raise WorkError(f"expected a plan on an NVIDIA GPU, got one for {exe.target}")
    return loaded


def _host_us(exe: Executable, inputs: Sequence[np.ndarray]) -> float:
    """Median host time of one replay, in microseconds."""
    loaded = _loaded(exe)
    loaded.run(inputs)
    seconds = []
    for _ in range(30):
        for _ in range(QUEUED):
            begin = time.perf_counter()
            loaded.replay()
            seconds.append(time.perf_counter() - begin)
        loaded.synchronize()
    return 1e6 * float(np.median(seconds))


def _batches_per_s(exe: Executable, inputs: Sequence[np.ndarray]) -> dict[str, float]:
    """Batches per second from host arrays to host arrays, called one by one and streamed."""
    batches = [tuple(inputs)] * BATCHES

    def one_by_one() -> None:
        for batch in batches:
            exe(*batch)

    def streamed() -> None:
        for _ in exe.map(batches):
            pass

    rates = {}
    for name, work in (("called", one_by_one), ("streamed", streamed)):
        work()
        begin = time.perf_counter()
        work()
        rates[name] = round(BATCHES / (time.perf_counter() - begin), 1)
    return rates


def _graph(exe: Executable) -> dict[str, Any]:
    """The driver's edges beside the plan's."""
    loaded = _loaded(exe)
    edges = loaded.graph_edges()
    dag = exe.plan.dag
    got = Dag.of(dag.n, [(e.before, e.after) for e in edges])
    return {
        "edges": len(edges),
        "programmatic": sum(e.programmatic for e in edges),
        "minimal": got.edges == dag.reduced,
        "closure_as_planned": got.descendants == dag.descendants,
    }


if __name__ == "__main__":
    raise SystemExit(main())
