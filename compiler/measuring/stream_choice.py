"""The choice of streams: by a named policy, by the replay model, or by measured replays."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tilewright.compilation.kernel_records import KernelRecord
from tilewright.compilation.settled_relays import footprint
from tilewright.costmodel import GpuHardware, Hardware
from tilewright.costmodel.kernels.bound import LAUNCH
from tilewright.costmodel.kernels.relays import early_start_s, may_relay
from tilewright.ir import InputError
from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.communication.agreement import communications
from tilewright.runtime.communication.replay import beside_compute
from tilewright.runtime.interface.device import Device
from tilewright.runtime.plan.execution_plan import ExecutionPlan, Launch
from tilewright.runtime.streams import StreamPlan, Work, choose_plan, plan_streams, replay_time
from tilewright.runtime.streams.assignment import with_streams
from tilewright.runtime.streams.policies import AUTO_CANDIDATES, LIMITED, POLICIES

#: a plan of several streams must be this much faster than what comes before it to be taken
GAIN = 1.01
#: the most per cent of memory that several streams may take more for each per cent of time that they save,
#: and the bytes of an arena up to which nobody asks; the memory of a step is that of its state as well
WORTH, FLOOR_BYTES = 2.0, 4 << 20
REPLAYS = 30
#: what `model` and `auto` compare
CANDIDATES = (*AUTO_CANDIDATES, "limited(8)")
#: streams that `model` and `auto` use at most: each costs the driver about 1 us of host time per replay
MAX_STREAMS = 8
NAMES = ("model", "auto", *POLICIES, "limited(K)")


@dataclass(frozen=True)
class StreamChoice:
    """The plan with its streams, the policy it comes from, and the seconds of one replay by policy.

    chosen_by: `name` (asked for), `model` or `measurement`.
    """

    plan: ExecutionPlan
    policy: str
    chosen_by: str
    seconds: Mapping[str, float]

    def facts(self) -> dict[str, Any]:
        """For reports."""
        streams = {launch.stream for launch in self.plan.launches}
        launches = self.plan.launches
        waits = sum(launches[d].stream != x.stream for x in launches for d in x.deps)
        return {
            "policy": self.policy,
            "chosen_by": self.chosen_by,
            "count": len(streams),
            "synchronisations": waits,
            "edges": sum(len(x.deps) for x in launches),
            "replay_s": dict(self.seconds),
        }


def check_policy(name: str) -> None:
    """Raise InputError unless `name` is a way to choose streams."""
    if not isinstance(name, str) or (name not in NAMES and not LIMITED.fullmatch(name)):
        raise InputError(f"expected streams among {', '.join(NAMES)}, got {name!r:.60}")


@dataclass(frozen=True)
class KernelCost:
    """Seconds of one launch, boundary included, and the share of the GPU's throughput used meanwhile.

    blocks: those that compute; 0 where all of a launch do. Others hold places for what follows on one stream.
    """

    seconds: float
    saturation: float
    blocks: int = 0


def kernel_costs(kernels: Iterable[KernelRecord]) -> dict[str, KernelCost]:
    """The cost of a launch of each kernel, by its name: measured where it was, else by the model."""
    costs = {}
    for k in kernels:
        # A bound set by latency or by the launch itself leaves the GPU's throughput to others.
        bound = 0.0 if k.limit in ("LAT", LAUNCH) else k.bound_s
        costs[k.name] = KernelCost(k.seconds, bound / k.seconds if k.seconds else 0.0, math.prod(k.grid))
    return costs


def work_of(plan: ExecutionPlan, costs: Mapping[str, KernelCost], hardware: Hardware) -> Work:
    """Times and shares of a plan's launches for the replay model.

    A launch takes up the larger of two shares of a GPU: of the blocks that would fit at once, and of the
    throughput it needs. On a CPU every launch takes the whole device; so do kernels of libraries, of which
    nothing is known.
    """
    launch_costs = [costs.get(x.kernel, KernelCost(0.0, 0.0)) for x in plan.launches]
    shares = [
        max(occupied(plan, x, hardware, cost.blocks), min(1.0, cost.saturation))
        if isinstance(hardware, GpuHardware) and plan.kernel_by_name[x.kernel].language != "library"
        else 1.0
        for x, cost in zip(plan.launches, launch_costs, strict=True)
    ]
    times = [max(0.0, cost.seconds - hardware.stream.boundary_s) for cost in launch_costs]
    return Work.of(len(times), times, shares, hardware.stream.boundary_s)


def occupied(plan: ExecutionPlan, launch: Launch, gpu: GpuHardware, blocks: int = 0) -> float:
    """The share of the blocks that the GPU could hold of this launch that the launch has; at most 1.

    blocks: those that compute, where some only hold places; 0 where all of the launch compute.
    """
    resources = plan.kernel_by_name[launch.kernel].resources
    limits = [gpu.max_threads_per_sm // launch.block, gpu.max_blocks_per_sm]
    if resources is not None:
        shared = resources.shared_bytes + launch.shared_bytes + gpu.smem_reserved_per_block_bytes
        limits.append(gpu.registers_per_sm // max(1, resources.registers * launch.block))
        limits.append(gpu.smem_per_sm_bytes // max(1, shared))
    return min(1.0, (blocks or math.prod(launch.grid)) / (gpu.sm_count * max(1, min(limits))))


def choose_streams(
    plan: ExecutionPlan,
    policy: str,
    work: Work,
    *,
    constants: Mapping[str, np.ndarray],
    device: Callable[[], Device],
    relays_s: float = 0.0,
) -> StreamChoice:
    """The plan by `policy`: a name, `model` (least modelled replay) or `auto` (least measured replay).

    plan: its buffers need no places in the arena yet; those of the plan chosen have theirs. device: opens the
    device to measure on; called for `auto` alone. A plan that communicates gets one stream of kernels and one
    of communications where no policy is named: alone it cannot be measured. relays_s: what launches that
    start early save by the model, which they do on one stream only. Raises InputError for an unknown policy.

    What runs side by side shares no memory: `model` and `auto` take several streams only where each per cent
    of time that they save costs at most `WORTH` per cent of the arena and the state together.
    """
    check_policy(policy)
    if policy in ("model", "auto") and communications(plan):
        return StreamChoice(beside_compute(plan), "beside", "name", {})
    dag = plan.dag
    if policy not in ("model", "auto"):
        chosen = plan_streams(dag, policy, work)
        return StreamChoice(with_streams(plan, chosen), policy, "name", {})
    if policy == "model":
        first = plan_streams(dag, CANDIDATES[0], work)

        def modelled(streams: StreamPlan) -> float:
            return replay_time(streams, work=work) - (relays_s if len(streams.streams) == 1 else 0.0)

        seconds = modelled(first)
        # No replay is shorter than this; most plans of a CPU, where nothing runs side by side, end here.
        if seconds <= GAIN * sum(c * s for c, s in zip(work.costs, work.shares, strict=True)):
            return StreamChoice(with_streams(plan, first), CANDIDATES[0], "model", {CANDIDATES[0]: seconds})
        return _chosen(plan, work, "model", modelled)
    with device() as opened, opened.load(place_arena(plan), constants):
        # The load above holds the weights on the device while candidates come and go.
        return _chosen(plan, work, "measurement", _Replays(plan, constants, opened))


def _chosen(
    plan: ExecutionPlan, work: Work, chosen_by: str, measure: Callable[[StreamPlan], float]
) -> StreamChoice:
    choice = choose_plan(plan.dag, measure, work, CANDIDATES, max_streams=MAX_STREAMS, gain=GAIN)
    chosen = with_streams(plan, choice.plan)
    first = next(iter(choice.times))
    if choice.policy != first and chosen.arena_bytes > FLOOR_BYTES:
        simple = with_streams(plan, plan_streams(plan.dag, first, work))
        faster = choice.times[first] / choice.times[choice.policy] - 1
        state_bytes = sum(b.nbytes for b in plan.buffers if b.kind == "state")
        least, most = (state_bytes + p.arena_bytes for p in (simple, chosen))
        if most > (1 + WORTH * faster) * least:
            return StreamChoice(simple, first, chosen_by, choice.times)
    return StreamChoice(chosen, choice.policy, chosen_by, choice.times)


def relays_saving_s(plan: ExecutionPlan, hardware: Hardware) -> float:
    """Seconds of shorter boundaries where the launches of a plan run one after the other."""
    if not isinstance(hardware, GpuHardware):
        return 0.0
    kernels = plan.kernel_by_name
    places = (
        (footprint(plan, u), footprint(plan, v))
        for u, v in pairwise(plan.launches)
        if kernels[u.kernel].releases and kernels[v.kernel].overlaps
    )
    return sum(early_start_s(u, v, hardware) for u, v in places if may_relay(u, v, hardware))


class _Replays:
    """Seconds of one replay on a device, random inputs: the median of many, after a warm-up."""

    def __init__(self, plan: ExecutionPlan, constants: Mapping[str, np.ndarray], device: Device) -> None:
        self.plan, self.constants, self.device = plan, constants, device
        rng = np.random.default_rng(0)
        self.inputs = [_random(rng, plan.buffer_by_name[name]) for name in plan.inputs]

    def __call__(self, streams: StreamPlan) -> float:
        with self.device.load(with_streams(self.plan, streams), self.constants) as loaded:
            return float(np.median(loaded.time(self.inputs, REPLAYS)))


def _random(rng: np.random.Generator, buffer: Any) -> np.ndarray:
    if buffer.dtype.startswith(("int", "uint")):
        return rng.integers(0, 2, buffer.shape).astype(buffer.dtype)
    return rng.standard_normal(buffer.shape).astype(buffer.dtype)
