"""Runs a division on the ranks of a world, checks it against the whole network and times its components."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.cluster.measuring.replays import ReplayTimes, timed_replays, times_by_replays
from tilewright.cluster.measuring.trace import (
    RankTrace,
    TimedCommunicator,
    measured_times,
    update_launches,
)
from tilewright.cluster.planning.parallel_plan import ParallelPlan
from tilewright.cluster.planning.parts import part_of
from tilewright.cluster.planning.prediction import RankTimes
from tilewright.compilation.option_values import Pick
from tilewright.costmodel.links import Link
from tilewright.devices.targets import resolve_target
from tilewright.distributed import compile_part
from tilewright.distributed.compilation import network_digest
from tilewright.ir import Module
from tilewright.profiling.kernel_times import TellsLaunchSpans
from tilewright.running.checking import largest_error
from tilewright.running.rank_executable import DistributedExecutable
from tilewright.runtime.communication.agreement import communications
from tilewright.runtime.communication.communicator import AnyCommunicator


@dataclass(frozen=True)
class Execution:
    """The measurements of all ranks.

    total_s: seconds of the slowest rank. clock: `launches` where every launch of one replay was timed,
    `replays` where replays with and without communications were. memory_bytes: of weights, arena,
    inputs and outputs, per rank. relative_error: of the worst rank's outputs against the whole network's.
    """

    ranks: tuple[RankTimes, ...]
    total_s: float
    clock: str
    memory_bytes: tuple[int, ...]
    relative_error: float


def execute(
    module: Module,
    plan: ParallelPlan,
    communicator: AnyCommunicator,
    inputs: Sequence[np.ndarray],
    expected: Sequence[np.ndarray],
    link: Link,
    *,
    target: str,
    precision: str,
    repeats: int,
    pick: Pick,
) -> Execution:
    """Run a plan; all ranks call this with the same arguments. `expected`: outputs of the whole network.

    link: between ranks, which bounds what a message takes where the host does not see it.
    Raises as `tilewright.distributed.compile` does.
    """
    rank = communicator.rank
    part = part_of(module, plan, rank)
    # On GPUs communications are queued on a stream: the host does not see when they run.
    timed = TimedCommunicator(communicator) if resolve_target(target).kind == "opencl" else None
    agreed = {"network": network_digest(module), "division": plan.text}
    exe = compile_part(
        part, timed or communicator, target=target, mode="plan", agreed=agreed, precision=precision
    )
    with exe:
        error = largest_error(exe(*inputs), expected)
        return timed_execution(
            exe, timed, communicator, inputs, error, plan, link, repeats=repeats, pick=pick
        )


def timed_execution(
    exe: DistributedExecutable,
    timed: TimedCommunicator | None,
    communicator: AnyCommunicator,
    inputs: Sequence[np.ndarray],
    error: float,
    plan: ParallelPlan,
    link: Link,
    *,
    repeats: int,
    pick: Pick,
) -> Execution:
    """Time this rank's part together with those of the others, and take together what all measured.

    timed: the communicator of the executable where the host sees communications. error: of this rank.
    """
    own: dict[str, Any] = {"error": error, "memory_bytes": _memory_bytes(exe)}
    if timed is not None:
        own["trace"] = _traced(exe, timed, inputs, repeats).to_plain()
    else:
        own["replays"] = timed_replays(exe, communicator, inputs, repeats, pick).to_plain()
    texts = communicator.gather_texts(json.dumps(own), doing="reporting")
    reports = list(map(json.loads, texts))
    if timed is not None:
        ranks = measured_times([RankTrace.from_plain(f["trace"]) for f in reports], plan, pick)
    else:
        ranks = times_by_replays([ReplayTimes.from_plain(f["replays"]) for f in reports], plan, link)
    return Execution(
        tuple(ranks),
        max(r.total_s for r in ranks),
        "launches" if timed is not None else "replays",
        tuple(f["memory_bytes"] for f in reports),
        max(f["error"] for f in reports),
    )


def _traced(
    exe: DistributedExecutable, timed: TimedCommunicator, inputs: Sequence[np.ndarray], repeats: int
) -> RankTrace:
    """Replays launch by launch, and when the host posted their communications."""
    loaded, by_launch = exe.load(), communications(exe.plan)
    assert isinstance(loaded, TellsLaunchSpans)
    kernels = [by_launch.get(i) for i in range(len(exe.plan.launches))]
    timed.taken()
    spans = loaded.launch_spans(exe.own_inputs(inputs), repeats)
    posted, count = timed.taken(), len(by_launch)
    del posted[: len(posted) - repeats * count]  # a warm-up comes first
    by_replay = [posted[i * count : (i + 1) * count] for i in range(repeats)]
    return RankTrace(kernels, spans, by_replay, update_launches(exe.plan))


def _memory_bytes(exe: DistributedExecutable) -> int:
    kinds = ("constant", "state", "input", "output")
    return exe.plan.arena_bytes + sum(b.nbytes for b in exe.plan.buffers if b.kind in kinds)
