"""`tilewright run NET --devices 4`: the same command on several ranks, and what one rank of them does."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.distributed import DistributedExecutable
from tilewright.distributed import compile as compile_rank
from tilewright.distributed.launcher import launch_command
from tilewright.distributed.result_output import keep_output_for_results
from tilewright.ir import InputError, Module
from tilewright.running.checking import largest_error, random_inputs
from tilewright.running.interpreting import interpret
from tilewright.running.loading import load
from tilewright.running.rank_executable import together, world
from tilewright.runtime.communication.mpi import MpiCommunicator
from tilewright.runtime.communication.mpi_world import started_by_mpi
from tilewright.tools.commands.network import choices_of, load_network, read_inputs, require_device

Arrays = list[np.ndarray]


def on_ranks(a: argparse.Namespace) -> bool:
    """Return whether the arguments ask for several devices."""
    return a.devices is not None or a.mode is not None


def is_rank(a: argparse.Namespace) -> bool:
    """Return whether this process is one of the ranks itself."""
    return bool(a.as_rank) or a.devices is None or started_by_mpi()


def start_ranks(a: argparse.Namespace) -> None:
    """Run the same command as so many ranks; raises WorkError and InputError where one of them failed."""
    named = a.network.startswith("zoo:") or "{rank}" in a.network
    if not named and not Path(a.network).exists():
        raise InputError("no such file", where=a.network)
    if Path(a.network).suffix != ".tw":
        require_device(a.target)
    launch_command(a.devices, a.argv)


@contextmanager
def joined_world(a: argparse.Namespace) -> Iterator[MpiCommunicator]:
    """The world that the arguments ask for; what fails inside on one rank ends all (`together`).

    Raises InputError where mpirun started another number of processes.
    """
    communicator = world(a.timeout)
    with together(communicator):
        if communicator.size < 2 and a.devices != 1:
            raise InputError(
                "expected several processes: start them with --devices N, or with mpirun -n N", where="--mode"
            )
        if a.devices not in (None, communicator.size):
            raise InputError(
                f"expected {communicator.size}, as mpirun started, got {a.devices}", where="--devices"
            )
        yield communicator


def run_rank(a: argparse.Namespace) -> tuple[dict[str, Any], Arrays] | None:
    """Compile this rank's part, run and time it with the others; the report and outputs, on rank 0 alone.

    Raises InputError and WorkError, on every rank if on any while they still need each other.
    """
    keep_output_for_results()
    with joined_world(a) as communicator:
        module, exe = _executable(a, communicator)
        inputs = _inputs(a, exe)
        outputs = exe(*inputs)
        seconds = float(np.median(exe.time(*inputs, repeats=a.repeats)))
        streamed = _streamed(exe, inputs, a.repeats) if exe.distribution.get("mode") == "pipeline" else None
        moved = exe.report()["distributed"]
        own = {"rank": communicator.rank, "device": exe.device, "seconds_median": seconds}
        own |= {k: moved[k] for k in ("communications", "bytes_communicated")}
        target = exe.target
        exe.close()
        rows = communicator.gather_texts(json.dumps(own), doing="reporting")
    if communicator.rank:
        return None
    ranks = list(map(json.loads, rows))
    result: dict[str, Any] = {
        "target": target,
        "device": f"{len(ranks)} devices, {exe.distribution.get('mode')}: {own['device']}",
        "outputs": [],
        "seconds_median": max(r["seconds_median"] for r in ranks),
        "distributed": {"devices": len(ranks), "mode": exe.distribution.get("mode"), "ranks": ranks},
    }
    if streamed is not None:
        result["distributed"]["seconds_per_request"] = streamed
    if a.check and module is not None:
        expected = interpret(module, *inputs, precision="fp64")
        result["relative_error"] = largest_error(outputs, expected)
    return result, outputs


def rank_lines(facts: dict[str, Any]) -> str:
    """The lines of a report about the ranks."""
    lines = [
        f"rank {r['rank']}: {1e3 * r['seconds_median']:.3f} ms, {r['communications']} communications of "
        f"{r['bytes_communicated'] / 1e6:.3f} MB in all, {r['device']}"
        for r in facts["ranks"]
    ]
    if len(facts["ranks"]) > 1 and not any(r["communications"] for r in facts["ranks"]):
        lines.append("nothing of the network was divided: every device computes all of it")
    if "seconds_per_request" in facts:
        lines.append(f"one request after another: {1e3 * facts['seconds_per_request']:.3f} ms each")
    return "\n".join(lines)


def _executable(
    a: argparse.Namespace, communicator: MpiCommunicator
) -> tuple[Module | None, DistributedExecutable]:
    """The network, unless it is saved, and this rank's executable."""
    if Path(a.network).suffix != ".tw":
        module = load_network(a)
        options = {"mode": a.mode or "space", "options": a.mode_options or "", "transport": a.transport}
        return module, compile_rank(
            module, target=a.target, communicator=communicator, **options, **choices_of(a)
        )
    path = a.network.replace("{rank}", str(communicator.rank))
    exe = load(path, a.target)
    if isinstance(exe, DistributedExecutable):
        exe.transport = a.transport
    else:
        raise InputError(
            "expected the saved executable of a rank: name the files as NAME{rank}.tw", where=path
        )
    return None, exe


def _inputs(a: argparse.Namespace, exe: DistributedExecutable) -> Arrays:
    names, types = exe.input_names, exe.input_types
    return read_inputs(a.input, names, types) if a.input else random_inputs(names, types, a.seed)


def _streamed(exe: DistributedExecutable, inputs: Arrays, repeats: int) -> float:
    """Seconds per request of requests that follow one another through the stages, after a first round."""
    for _ in exe.map([inputs] * exe.instances):
        pass
    begin = time.perf_counter()
    for _ in exe.map([inputs] * repeats):
        pass
    return (time.perf_counter() - begin) / repeats
