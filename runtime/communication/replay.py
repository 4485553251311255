"""The start and the end of a plan's communications in a replay, and streams that let them overlap."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tilewright.runtime.communication.agreement import communications
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.errors import DeviceError, InputError
from tilewright.runtime.plan.communication_kernel import CommunicationKernel
from tilewright.runtime.plan.execution_plan import ExecutionPlan, describe_launch
from tilewright.runtime.streams.assignment import with_streams
from tilewright.runtime.streams.stream_plan import StreamPlan, plan_from_streams


@dataclass(frozen=True)
class CommunicationOrder:
    """The treatment of communications by a replay that goes through the launches in their order.

    kernels: by launch, in the order in which they are started and finished. `finished_before[i]`: how many of
    these must be finished before launch i is begun; a communication that others wait for only because it
    comes first has to be started, not finished, before the next one is.
    """

    kernels: Mapping[int, CommunicationKernel]
    finished_before: tuple[int, ...]

    @staticmethod
    def of(plan: ExecutionPlan) -> CommunicationOrder:
        """The order of a valid plan. A launch that is no communication waits for those it depends on."""
        kernels = communications(plan)
        number = {launch: n + 1 for n, launch in enumerate(kernels)}
        finished: list[int] = []
        received: dict[str, int] = {}
        for index, launch in enumerate(plan.launches):
            owners = [plan.locate(name)[0].name for name in launch.args]
            if index in kernels:
                # What comes first is finished first, but waited for only where its results are sent on.
                needed = [finished[d] for d in launch.deps if d not in kernels]
                needed += [received.get(name, 0) for name in owners]
                received.update((owners[position], number[index]) for position in launch.writes)
            else:
                needed = [number.get(d) or finished[d] for d in launch.deps]
            finished.append(max(needed, default=0))
        return CommunicationOrder(kernels, tuple(finished))


def beside_compute(plan: ExecutionPlan) -> ExecutionPlan:
    """The plan with all communications on a stream of their own, so that other launches run meanwhile.

    The kernels, on one stream, are put in an order in which what needs no message comes before what does, and
    what is sent early comes early. A plan without communications stays as it is.
    """
    kernels = communications(plan)
    if not kernels:
        return plan
    dag = plan.dag
    order = list(kernels)
    level, feeds = [0] * dag.n, [math.inf] * dag.n
    for node in dag.order:
        before = (level[p] for p in dag.predecessors[node])
        level[node] = max(before, default=0) if node not in kernels else order.index(node) + 1
    for node in reversed(dag.order):
        own = order.index(node) if node in kernels else math.inf
        feeds[node] = min([own, *(feeds[s] for s in dag.successors[node])])
    compute = sorted((n for n in range(dag.n) if n not in kernels), key=lambda n: (level[n], feeds[n], n))
    streams = plan_from_streams(dag, [compute, order])
    return with_streams(plan, replace(streams, order=_launched(streams, compute, order)))


def _launched(streams: StreamPlan, compute: list[int], order: list[int]) -> tuple[int, ...]:
    """Kernels in their order, each communication as early as what it waits for allows."""
    waits = streams.happens_before.predecessors
    out: list[int] = []
    done: set[int] = set()
    left = list(order)
    for node in [*compute, None]:
        while left and done.issuperset(waits[left[0]]):
            out.append(left[0])
            done.add(left.pop(0))
        if node is not None:
            out.append(node)
            done.add(node)
    return (*out, *left)


def communicator_for(
    plan: ExecutionPlan, communicator: AnyCommunicator | None, space: Literal["host", "cuda"], device: str
) -> AnyCommunicator | None:
    """The communicator a device needs for a plan; None for plans that do not communicate.

    Raises `InputError` where there is none, or one for another kind of memory.
    """
    kernels = communications(plan)
    if not kernels:
        return None
    first = next(iter(kernels.values())).describe()
    if communicator is None:
        raise InputError(
            f"expected a communicator: the plan is one of several ranks' ({first}); start all of them with "
            "mpirun or `tilewright run --devices`"
        )
    if communicator.space != space:
        raise InputError(
            f"expected a communicator between {space} memory for {device}, got one between "
            f"{communicator.space} memory"
        )
    return communicator


def refuse_communication(plan: ExecutionPlan, device: str) -> None:
    """Raise `DeviceError` for a plan that communicates, on a device that cannot."""
    for index, kernel in communications(plan).items():
        raise DeviceError(
            f"{describe_launch(index, plan.launches[index])} is communication ({kernel.describe()}), which "
            f"{device} cannot do: expected a device that can, such as opencl"
        )
