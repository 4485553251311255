"""Record one replay of a loaded plan: by kernels that stamp their blocks, or by the events of OpenCL."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np

from tilewright.devices.targets import Target
from tilewright.ir import Module, UnsupportedError
from tilewright.profiling.profile import Profile
from tilewright.profiling.replay_record import Clock, CopySpan, LaunchSpan
from tilewright.profiling.stamps import launch_spans, processor_busy_s, resolution_ns, span_ns, stamped_plan
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.dtypes import Array
from tilewright.runtime.interface.device import Device, LoadedPlan
from tilewright.runtime.plan.arrays import check_repeats
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.streams import plan_streams
from tilewright.runtime.streams.assignment import with_streams

NANOSECOND = 1e-9


@dataclass(frozen=True)
class Subject:
    """The subject of a profile: a plan loaded on a device, and its constants.

    kernels: gives the module at the thread level that the plan was made of, where it is needed.
    communicator: the other ranks of a plan that communicates; they profile theirs at the same time.
    """

    target: Target
    device: Device
    loaded: LoadedPlan
    constants: Mapping[str, Array]
    kernels: Callable[[], Module]
    communicator: AnyCommunicator | None = None

    @property
    def plan(self) -> ExecutionPlan:
        """The plan as it is loaded."""
        return self.loaded.plan

    def load(self, plan: ExecutionPlan) -> LoadedPlan:
        """Another plan of the same constants and ranks."""
        return self.device.load(plan, self.constants, communicator=self.communicator)


@runtime_checkable
class TellsLaunchSpans(Protocol):
    """A loaded plan whose driver tells when launches ran."""

    def launch_spans(self, inputs: Sequence[object], repeats: int) -> list[list[tuple[float, float]]]:
        """Per replay, start and end of every launch in seconds since the first start."""
        ...


def profile_loaded(
    subject: Subject, inputs: Sequence[object], *, repeats: int, compare_serial: bool
) -> Profile:
    """Time `repeats` replays as they are, record as many, and keep the recorded one of median length.

    compare_serial: time the same kernels one after the other as well, unless they run so anyway, on one
    stream. Raises UnsupportedError for a device that runs nothing, InputError for bad inputs,
    DeviceError where the device fails.
    """
    check_repeats(repeats)
    if subject.target.kind == "null":
        raise UnsupportedError("the null target runs no kernels, so there is nothing to profile")
    if isinstance(subject.loaded, TellsLaunchSpans):
        profile = _by_events(subject, subject.loaded, inputs, repeats)
    else:
        profile = _by_stamps(subject, inputs, repeats)
    if subject.target.kind != "emulator":
        profile = replace(profile, copies=copy_spans(subject.device, subject.plan, inputs, repeats))
    if compare_serial and profile.streams > 1:
        total_s, serial_s = _against_serial(subject, inputs, repeats)
        profile = replace(profile, total_s=total_s, serial_s=serial_s)
    return profile


def _profile(subject: Subject, clock: Clock, repeats: int, launches: tuple[LaunchSpan, ...]) -> Profile:
    return Profile(str(subject.target), subject.device.name, clock, repeats, launches, 0.0, None, 0.0)


def _by_stamps(subject: Subject, inputs: Sequence[object], repeats: int) -> Profile:
    stamped = stamped_plan(subject.plan, subject.kernels(), subject.target)
    with subject.load(stamped.plan) as recording:
        recording.run(inputs)
        found = [recording.run(inputs)[-1] for _ in range(repeats)]
        recorded_s = float(np.median(recording.time(inputs, repeats)))
    stamps = sorted(found, key=span_ns)[(repeats - 1) // 2]
    spans = launch_spans(subject.plan, stamps, stamped.first_rows, stamped.marked)
    empty = _profile(subject, "stamps", repeats, spans)
    return replace(
        empty,
        total_s=float(np.median(subject.loaded.time(inputs, repeats))),
        recorded_s=recorded_s,
        resolution_s=resolution_ns(stamps) * NANOSECOND,
        processor_busy_s={} if stamped.marked.bounded else processor_busy_s(stamps),
    )


def _by_events(subject: Subject, loaded: TellsLaunchSpans, inputs: Sequence[object], repeats: int) -> Profile:
    replays = loaded.launch_spans(inputs, repeats)
    lengths = [max((end for _, end in spans), default=0.0) for spans in replays]
    at = sorted(range(repeats), key=lengths.__getitem__)[(repeats - 1) // 2]
    launches = tuple(
        LaunchSpan(i, x.kernel, x.origin, x.stream, x.deps, x.grid, x.block, start, start, end)
        for i, (x, (start, end)) in enumerate(zip(subject.plan.launches, replays[at], strict=True))
    )
    steps = np.diff(np.unique([t for spans in replays for span in spans for t in span]))
    return replace(
        _profile(subject, "events", repeats, launches),
        total_s=float(np.median(lengths)),
        resolution_s=float(steps[steps > NANOSECOND / 2].min(initial=np.inf)) if len(steps) else 0.0,
    )


def copy_spans(
    device: Device, plan: ExecutionPlan, inputs: Sequence[object], repeats: int
) -> tuple[CopySpan, ...]:
    """The times that `run` takes to copy all inputs in and all outputs out, by the host's clock.

    Plans of the same inputs or outputs without kernels are run, and a plan with neither is taken off.
    """
    outputs = tuple(dict.fromkeys(plan.outputs))
    sides: dict[Literal["in", "out"], tuple[str, ...]] = {"in": plan.inputs, "out": outputs}
    nothing = _copying(plan, ())
    floor_s = _run_s(device, nothing, (), repeats)
    spans = []
    for direction, names in sides.items():
        kind = "input" if direction == "in" else "output"
        buffers = [
            replace(plan.buffer_by_name[n], kind=kind, offset=0, base="")  # type: ignore[arg-type]
            for n in names
        ]
        copying = nothing.replace(buffers=tuple(buffers), **{f"{kind}s": names})
        seconds = _run_s(device, copying, inputs if direction == "in" else (), repeats)
        nbytes = sum(b.nbytes for b in buffers)
        spans.append(CopySpan(direction, names, nbytes, max(0.0, seconds - floor_s)))
    return tuple(spans)


def _copying(plan: ExecutionPlan, names: tuple[str, ...]) -> ExecutionPlan:
    return plan.replace(buffers=(), kernels=(), launches=(), inputs=names, outputs=(), arena_bytes=0)


def _run_s(device: Device, plan: ExecutionPlan, inputs: Sequence[object], repeats: int) -> float:
    with device.load(plan, {}) as loaded:
        loaded.run(inputs)
        seconds = []
        for _ in range(repeats):
            start = time.perf_counter()
            loaded.run(inputs)
            seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def serial_plan(plan: ExecutionPlan) -> ExecutionPlan:
    """The same kernels launched one after the other on one stream."""
    return with_streams(plan, plan_streams(plan.dag, "serial"))


#: turns that the plan and the serial plan take, so that slow changes of clocks meet both
ROUNDS = 3


def _against_serial(subject: Subject, inputs: Sequence[object], repeats: int) -> tuple[float, float]:
    """Median seconds of a replay of the plan and of its serial twin."""
    own: list[float] = []
    serial: list[float] = []
    with subject.load(serial_plan(subject.plan)) as chained:
        for _ in range(ROUNDS):
            own += subject.loaded.time(inputs, repeats)
            serial += chained.time(inputs, repeats)
    return float(np.median(own)), float(np.median(serial))
