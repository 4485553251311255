"""Components of ranks whose communications the host does not see: replays with and without communications.

On GPUs communications are queued on streams. A replay of the same launches without them tells how long the
rank's kernels take, as they run in a replay; what the replay takes longer is communication. How much of that
is moving, and not waiting, is bounded by what the messages themselves take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tilewright.cluster.measuring.trace import picked, update_launches
from tilewright.cluster.planning.parallel_plan import ParallelPlan
from tilewright.cluster.planning.prediction import RankTimes, component_of
from tilewright.compilation.option_values import Pick
from tilewright.costmodel.links import Link
from tilewright.running.rank_executable import DistributedExecutable
from tilewright.running.stateful import executable_of
from tilewright.runtime.communication.agreement import communications
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.communication_kernel import CommunicationKernel
from tilewright.runtime.plan.execution_plan import ExecutionPlan, Launch


@dataclass(frozen=True)
class ReplayTimes:
    """Seconds that one rank measured.

    total_s: of a replay. kernels_s: of one without its communications. talks: communications in the plan's
    order. talks_s: of each, the least over launches one by one: it includes waiting for others.
    updates_share: that of launches which only update parameters in the times of all that compute, launched
    one by one.
    """

    total_s: float
    kernels_s: float
    talks: Sequence[CommunicationKernel]
    talks_s: Sequence[float]
    updates_share: float = 0.0

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "talks": [k.to_json() for k in self.talks]}

    @staticmethod
    def from_plain(data: dict[str, Any]) -> ReplayTimes:
        """Read `to_plain`."""
        return ReplayTimes(**{**data, "talks": [CommunicationKernel.from_json(t) for t in data["talks"]]})


def timed_replays(
    exe: DistributedExecutable,
    communicator: AnyCommunicator,
    inputs: Sequence[np.ndarray],
    repeats: int,
    pick: Pick,
) -> ReplayTimes:
    """Time a rank's part, together with the other ranks; closes it. Raises as `Executable.time` does."""
    seconds = exe.time(*inputs, repeats=repeats)
    total_s = seconds[picked(seconds, pick)]
    talks = communications(exe.plan)
    own = exe.own_inputs(inputs)
    rows = exe.load().time_kernels(own, repeats)
    quiet = replace(exe.artifact, plan=without_communications(exe.plan))
    exe.close()  # the weights are on the device but once
    with executable_of(quiet, exe.target) as kernels:
        kernels.load()
        communicator.gather_texts("", doing="timing kernels together")
        seconds = kernels.time(*own, repeats=repeats)
    alone = {i: row[picked(row, pick)] for i, row in enumerate(rows) if i not in talks}
    updates_s = sum(alone[i] for i in update_launches(exe.plan))
    return ReplayTimes(
        total_s,
        seconds[picked(seconds, pick)],
        list(talks.values()),
        [min(rows[i]) for i in talks],
        updates_s / sum(alone.values()) if updates_s else 0.0,
    )


def without_communications(plan: ExecutionPlan) -> ExecutionPlan:
    """The plan without its communications, whose results hold whatever is in their memory.

    A launch that depends on one depends on what that depends on, so memory is shared as before.
    """
    silent = communications(plan)
    place: dict[int, int] = {}
    needs: list[set[int]] = []
    launches: list[Launch] = []
    for index, launch in enumerate(plan.launches):
        needs.append(set().union(*(needs[d] if d in silent else {place[d]} for d in launch.deps)))
        if index not in silent:
            place[index] = len(launches)
            launches.append(replace(launch, deps=tuple(sorted(needs[index]))))
    kernels = tuple(k for k in plan.kernels if k.language != "communication")
    return validate(plan.replace(kernels=kernels, launches=tuple(launches)))


def times_by_replays(ranks: Sequence[ReplayTimes], plan: ParallelPlan, link: Link) -> list[RankTimes]:
    """Seconds of every rank by component; they add up to its replay's.

    Compute is the replay without communications. Of the rest, what a rank receives takes at most the least
    time of any communication of its kind and size, on any rank, and at most what it takes by the link; what
    is left is waiting. Messages that travel beside kernels count too, as far as there is a rest.
    """
    least: dict[Any, float] = {}
    for rank in ranks:
        for kernel, seconds in zip(rank.talks, rank.talks_s, strict=True):
            least[_sort(kernel)] = min(seconds, least.get(_sort(kernel), seconds))
    return [_components(times, least, plan, number, link) for number, times in enumerate(ranks)]


def _components(
    times: ReplayTimes, least: dict[Any, float], plan: ParallelPlan, rank: int, link: Link
) -> RankTimes:
    out, moving = RankTimes(), defaultdict[str, float](float)
    for kernel in times.talks:
        if kernel.results:
            seconds = min(least[_sort(kernel)], _by_link_s(kernel, link))
            moving[component_of(kernel.peers, plan, rank)] += seconds
    kernels_s = min(times.kernels_s, times.total_s)
    rest_s, moving_s = times.total_s - kernels_s, sum(moving.values())
    share = min(1.0, rest_s / moving_s) if moving_s else 0.0
    out.components_s.update({name: share * seconds for name, seconds in moving.items()})
    out.components_s["optimizer"] = times.updates_share * kernels_s
    out.components_s["compute"] = kernels_s - out.components_s["optimizer"]
    out.components_s["wait"] = max(0.0, rest_s - share * moving_s)
    return out


def _sort(kernel: CommunicationKernel) -> tuple[Any, ...]:
    """The same for communications that take as long: a send is of the sort of the receive of as much."""
    sizes = tuple(sorted((*kernel.operands, *kernel.results)))
    return kernel.kind, kernel.dtype, len(kernel.members), sizes


def _by_link_s(kernel: CommunicationKernel, link: Link) -> float:
    size = DTYPES[kernel.dtype].itemsize
    if kernel.members:
        nbytes = size * max((*kernel.operands, *kernel.results))
        return link.ring_s(kernel.kind, len(kernel.members), nbytes)
    return float(link.messages_s(1, size * sum(kernel.results)))
