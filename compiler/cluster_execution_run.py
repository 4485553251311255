"""Runs a division on the ranks of a world, checks it against the whole network and times its components."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from tilewright.cluster_execution_components import measured_times
from tilewright.cluster_execution_division import Division
from tilewright.cluster_execution_parts import part_of
from tilewright.cluster_execution_prediction import RankTimes
from tilewright.cluster_execution_trace import (
    Pick,
    RankTrace,
    TimedCommunicator,
    picked,
)
from tilewright.commands.network import relative_error
from tilewright.distributed import compile_part
from tilewright.distributed.compilation import network_digest
from tilewright.distributed.executable import DistributedExecutable
from tilewright.executable import clear_errors
from tilewright.ir import Module
from tilewright.profiling import TellsLaunchSpans
from tilewright.runtime.communication.agreement import communications
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.targets import resolve_target


@dataclass(frozen=True)
class Execution:
    """What all ranks measured.

    total_s: seconds of the slowest rank. clock: `launches` where every launch of a replay was timed (of
    one replay), `alone` where launches were timed one by one. memory_bytes: of weights, arena,
    inputs and outputs, per rank. relative_error: of the worst rank's outputs against the whole network's.
    """

    ranks: tuple[RankTimes, ...]
    total_s: float
    clock: str
    memory_bytes: tuple[int, ...]
    relative_error: float


def execute(
    module: Module,
    division: Division,
    communicator: AnyCommunicator,
    inputs: Sequence[np.ndarray],
    wanted: Sequence[np.ndarray],
    *,
    target: str,
    precision: str,
    repeats: int,
    pick: Pick,
) -> Execution:
    """Every rank calls it with the same arguments and gets the same; `wanted`: outputs of the whole network.

    Raises as `tilewright.distributed.compile` does.
    """
    rank = communicator.rank
    part = part_of(module, division, rank)
    # On GPUs communications are queued on a stream: the host does not see when they run.
    timed = TimedCommunicator(communicator) if resolve_target(target).kind == "opencl" else None
    agreed = {"network": network_digest(module), "division": division.told}
    exe = compile_part(
        part, timed or communicator, target=target, mode="plan", agreed=agreed, precision=precision
    )
    with exe:
        outputs = exe(*inputs)
        error = max(relative_error(o, w) for o, w in zip(outputs, wanted, strict=True))
        seconds = exe.time(*inputs, repeats=repeats)
        total_s = seconds[picked(seconds, pick)]
        trace = _traced(exe, timed, inputs, repeats)
        own = {
            "total_s": total_s,
            "error": error,
            "memory_bytes": _memory_bytes(exe),
            "trace": trace.to_plain(),
        }
    with clear_errors():
        texts = communicator.gather_texts(json.dumps(own), doing="reporting")
    found = list(map(json.loads, texts))
    ranks = measured_times([RankTrace.from_plain(f["trace"]) for f in found], division, pick)
    totals = [r.total_s for r in ranks] if timed is not None else [f["total_s"] for f in found]
    return Execution(
        tuple(ranks),
        max(totals),
        "launches" if timed is not None else "alone",
        tuple(f["memory_bytes"] for f in found),
        max(f["error"] for f in found),
    )


def _traced(
    exe: DistributedExecutable,
    timed: TimedCommunicator | None,
    inputs: Sequence[np.ndarray],
    repeats: int,
) -> RankTrace:
    """Replays launch by launch: as they are where the host runs communications, else one launch at a time."""
    loaded, by_launch = exe.load(), communications(exe.plan)
    kernels = [by_launch.get(i) for i in range(len(exe.plan.launches))]
    with clear_errors():
        if timed is None:
            replays = zip(*loaded.time_kernels(inputs, repeats), strict=True)
            ends = [list(accumulate(replay, initial=0.0)) for replay in replays]
            return RankTrace(kernels, [list(pairwise(e)) for e in ends], [])
        assert isinstance(loaded, TellsLaunchSpans)
        timed.taken()
        spans = loaded.launch_spans(inputs, repeats)
        posted, count = timed.taken(), len(by_launch)
    del posted[: len(posted) - repeats * count]  # a warm-up comes first
    return RankTrace(kernels, spans, [posted[i * count : (i + 1) * count] for i in range(repeats)])


def _memory_bytes(exe: DistributedExecutable) -> int:
    kinds = ("constant", "input", "output")
    return exe.plan.arena_bytes + sum(b.nbytes for b in exe.plan.buffers if b.kind in kinds)
