"""A plan loaded on an OpenCL device: its kernels, its queue, and replays with copies in and out.

Requests of a plan that communicates begin while other ranks work on earlier ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.runtime.closable import Closable
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.communication.replay import communicator_for
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import DeviceError, InputError
from tilewright.runtime.interface.state import NO_STATE, PlanState
from tilewright.runtime.opencl.communication import CommunicationEvent, OpenClCommunications, Replay
from tilewright.runtime.opencl.driver import driver_error, driver_errors
from tilewright.runtime.opencl.memory import OpenClPlanMemory
from tilewright.runtime.opencl.platforms import check_not_forked
from tilewright.runtime.plan.arrays import check_repeats, host_inputs
from tilewright.runtime.plan.execution_plan import ExecutionPlan, Launch, describe_launch


@dataclass(frozen=True)
class ReplayOrder:
    """The commands that each command of a replay waits for, where the queue does not keep the order.

    `deps[i]`: launches that launch i waits for, those of the plan. `copies[i]`: positions of the inputs it
    uses, whose copies to the device it waits for. `last`: launches that no other waits for; copies to the
    host wait for these, which are after all others. `out_of_order` is false where the queue keeps the order
    and nothing waits; `reason` says in words why it is so.
    """

    out_of_order: bool
    reason: str
    deps: tuple[tuple[int, ...], ...]
    copies: tuple[tuple[int, ...], ...]
    last: tuple[int, ...]


def order_of(plan: ExecutionPlan, *, wanted: bool | None, supported: bool, device: str) -> ReplayOrder:
    """The order of a plan's replays.

    wanted: out of order or not; None means for plans of several streams, where one of communications alone is
    none: these run beside the queue. supported: whether the device has
    queues that are out of order. Without them a plan runs in order, which keeps every dependency as well.
    """
    talking = {kernel.name for kernel in plan.kernels if kernel.language == "communication"}
    streams = len({launch.stream for launch in plan.launches if launch.kernel not in talking})
    used = f"{streams} stream{'' if streams == 1 else 's'}"
    if wanted is False:
        out_of_order, reason = False, "in order, as asked for"
    elif wanted is None and streams < 2:
        out_of_order, reason = False, f"in order: the plan has {used}"
    elif not supported:
        out_of_order, reason = False, f"in order: {device} has no queues that are out of order ({used})"
    else:
        out_of_order, reason = True, f"out of order: the plan has {used}"
    position = {name: i for i, name in enumerate(plan.inputs)}
    copies = []
    for launch in plan.launches:
        owners = {plan.locate(name)[0] for name in launch.args}
        copies.append(tuple(sorted(position[o.name] for o in owners if o.kind == "input" and o.size)))
    awaited = {dep for launch in plan.launches for dep in launch.deps}
    last = tuple(i for i in range(len(plan.launches)) if i not in awaited)
    return ReplayOrder(
        out_of_order, reason, tuple(launch.deps for launch in plan.launches), tuple(copies), last
    )


NANOSECOND = 1e-9


class QueueSource(Protocol):
    """The needs of a loaded plan from the device that it is on (`OpenClDevice`)."""

    cl: Any
    name: str
    out_of_order: bool | None

    @property
    def has_out_of_order(self) -> bool:
        """True where the device has queues that are out of order."""

    @property
    def alignment(self) -> int:
        """Bytes that the start of every buffer argument must be a multiple of."""

    def new_queue(self, *, out_of_order: bool, times: bool = True) -> Any:
        """A queue; times: whether its events know when commands ran."""

    def check_open(self) -> None:
        """Raise `DeviceError` if the device was closed."""


class OpenClPlan(Closable):
    """Runs are atomic: several threads may call one plan, whose runs then follow one another."""

    def __init__(
        self,
        device: QueueSource,
        plan: ExecutionPlan,
        memory: OpenClPlanMemory,
        programs: Mapping[str, Any],
        queue: Any = None,
        communicator: AnyCommunicator | None = None,
        state: PlanState = NO_STATE,
    ) -> None:
        """Takes `memory` and `state` over, filled; raises `DeviceError` and `InputError`.

        queue: one that keeps the order and is shared with other plans; None opens one of its own.
        communicator: between host memory, for the communications of the plan; needed where it has any.
        """
        self.plan = plan
        self._device, self._cl, self._memory = device, device.cl, memory
        self._state = state
        self._lock = state.lock
        self._arguments: list[Any] = []  # of all kernels: OpenCL keeps no reference to a kernel's arguments
        wanted = device.out_of_order if queue is None else False
        self._order = order_of(plan, wanted=wanted, supported=device.has_out_of_order, device=device.name)
        self._queue = queue or device.new_queue(out_of_order=self._order.out_of_order, times=False)
        self._timed: Any = queue  # what times are taken on; None until somebody asks for times
        talking = communicator_for(plan, communicator, "host", device.name)
        if talking and self._timed is None:  # communications stay on the queue that they begin on
            self._queue = self._timed = device.new_queue(out_of_order=self._order.out_of_order)
        self._communications = (
            OpenClCommunications(self._cl, self._queue, plan, memory, talking) if talking else None
        )
        others = self._communications.order.kernels if self._communications else {}
        self._commands = [
            None
            if index in others
            else (
                self._bind(index, launch, programs),
                (launch.grid[0] * launch.block, *launch.grid[1:]),
                (launch.block, 1, 1),
            )
            for index, launch in enumerate(plan.launches)
        ]
        self._outputs = [plan.buffer_by_name[name] for name in plan.outputs]

    @property
    def out_of_order(self) -> bool:
        """True where replays run on a queue that is out of order, with events for the plan's dependencies."""
        return self._order.out_of_order

    @property
    def order(self) -> str:
        """The order of replays and its reason, in words."""
        return self._order.reason

    def _bind(self, index: int, launch: Launch, programs: Mapping[str, Any]) -> Any:
        entry = self.plan.kernel_by_name[launch.kernel].entry
        doing = describe_launch(index, launch)
        with driver_errors(self._cl, doing):
            kernel = self._cl.Kernel(programs[launch.kernel], entry)
            buffers = (self.plan.buffer_by_name[name] for name in launch.args)
            args = [self._memory.argument(buffer, self._device.alignment) for buffer in buffers]
            if launch.shared_bytes:
                args.append(self._cl.LocalMemory(launch.shared_bytes))
            if kernel.num_args != len(args):
                raise InputError(f"{doing}: expected {kernel.num_args} arguments, got {len(args)}")
            for position, argument in enumerate(args):  # set_args would write and store a function first
                kernel.set_arg(position, argument)
        self._arguments += args
        return kernel

    @contextlib.contextmanager
    def _working(self, *, times: bool = False) -> Iterator[None]:
        """Exclusive use of the plan's memory; at the end, whatever happened, no command uses it any more.

        times: commands go to a queue whose events know when they ran.
        """
        check_not_forked()
        with self._lock:
            self.check_open()
            self._device.check_open()
            usual = self._queue
            try:
                if times:
                    self._queue = self._timing_queue()
                yield
            except BaseException:
                # What failed is the news; that what was enqueued before may fail as well is not.
                with contextlib.suppress(self._cl.Error):
                    self._queue.finish()
                raise
            finally:
                self._queue = usual

    def _timing_queue(self) -> Any:
        if self._timed is None:
            self._timed = self._device.new_queue(out_of_order=self._order.out_of_order)
        return self._timed

    def run(self, inputs: Sequence[object]) -> list[Array]:
        with self._working():
            copies = self._copy_in(inputs)
            with self._state.changing():
                return self._results(copies, self._launch_all(copies))

    def _results(self, copies: Sequence[Any], events: Sequence[Any]) -> list[Array]:
        """The outputs of what was launched, when it has ended."""
        results = [np.empty(buffer.shape, dtype=DTYPES[buffer.dtype]) for buffer in self._outputs]
        last = [event for i in self._order.last for event in _commands_of(events[i])]
        self._copy_out(results, [*last, *filter(None, copies)])
        self._settle(events)
        return results

    def _copy_in(self, inputs: Sequence[object]) -> list[Any]:
        """Start to copy the inputs; one event each, None for those without elements."""
        arrays = host_inputs(self.plan, inputs)
        copies: list[Any] = []
        for name, array in zip(self.plan.inputs, arrays, strict=True):
            target, _ = self._memory.region(name)
            copies.append(
                self._copy(target, array, f"input {name!r} to the device") if array.nbytes else None
            )
        return copies

    def _copy_out(self, results: Sequence[Array], waits: list[Any]) -> None:
        """Start to copy the outputs to the host, after `waits`."""
        for buffer, result in zip(self._outputs, results, strict=True):
            if result.nbytes:
                source, offset = self._memory.region(buffer.name)
                # The byte view spares pyopencl, which copies raw bytes, element types it does not know.
                flat = result.reshape(-1).view(np.uint8)
                after = waits if self._order.out_of_order else None
                what = f"output {buffer.name!r} to the host"
                self._copy(flat, source, what, src_offset=offset, wait_for=after)

    def _copy(self, target: Any, source: Any, what: str, **options: Any) -> Any:
        with driver_errors(self._cl, f"copying {what}"):
            return self._cl.enqueue_copy(self._queue, target, source, is_blocking=False, **options)

    def _launch_all(self, copies: Sequence[Any]) -> list[Any]:
        """Enqueue all launches after the `copies`; one event each. Only communications have finished then."""
        events: list[Any] = []
        for _ in self._launching(copies, events):
            pass
        return events

    def _launching(self, copies: Sequence[Any], events: list[Any]) -> Iterator[Replay]:
        """Enqueue all launches, their events into `events`, with a stop behind the last communication."""
        enqueue, queue, order = self._cl.enqueue_nd_range_kernel, self._queue, self._order
        replay = self._communications.replay() if self._communications else None
        waits = None
        try:
            for index, command in enumerate(self._commands):
                if replay is not None:
                    replay.before(index)
                if order.out_of_order:
                    waits = [event for dep in order.deps[index] for event in _commands_of(events[dep])]
                    if copies:
                        waits += [copies[i] for i in order.copies[index]]
                if command is not None:
                    kernel, total, group = command
                    events.append(enqueue(queue, kernel, total, group, None, waits))
                elif replay is not None:
                    events.append(replay.begin(index, waits))
                    if replay.all_begun:
                        yield replay
            if replay is not None:
                replay.finish()
        except self._cl.Error as error:
            raise driver_error(self._cl, self._describe(len(events)), error) from None

    def _settle(self, events: Sequence[Any]) -> None:
        """Wait for everything; raises `DeviceError` naming the first launch that failed."""
        with driver_errors(self._cl, "running the plan"):
            self._queue.finish()
            for index, event in enumerate(events):
                status = event.command_execution_status
                if status < 0:
                    raise DeviceError(f"{self._describe(index)} failed with OpenCL status {status}")

    def submit(self) -> list[Any]:
        """Queue one replay on the inputs that are there, and return at once; one event per launch."""
        with self._working():
            return self._launch_all(())

    def _describe(self, index: int) -> str:
        return describe_launch(index, self.plan.launches[index])

    def _replay(self) -> list[Any]:
        """One replay on the inputs that are there, to its end; the launches' events."""
        events = self._launch_all(())
        self._settle(events)
        return events

    def time(self, inputs: Sequence[object], repeats: int) -> list[float]:
        """See `LoadedPlan.time`: from the first kernel's start to the last one's end, by OpenCL profiling."""
        check_repeats(repeats)
        with self._working(times=True), self._state.kept():
            self._warm_up(inputs)
            return [_span(self._replay()) for _ in range(repeats)]

    def launch_spans(self, inputs: Sequence[object], repeats: int) -> list[list[tuple[float, float]]]:
        """Per replay, start and end of every launch in seconds since the first start, by OpenCL profiling."""
        check_repeats(repeats)
        with self._working(times=True), self._state.kept():
            self._warm_up(inputs)
            return [_spans(self._replay()) for _ in range(repeats)]

    def _warm_up(self, inputs: Sequence[object]) -> None:
        self._settle(self._launch_all(self._copy_in(inputs)))

    def time_kernels(self, inputs: Sequence[object], repeats: int) -> list[list[float]]:
        check_repeats(repeats)
        with self._working(times=True), self._state.kept():
            self._warm_up(inputs)
            seconds: list[list[float]] = [[] for _ in self.plan.launches]
            # Whole replays, so that every kernel sees the data it was made for: the arena's bytes are reused.
            for _ in range(repeats):
                for index, own in enumerate(seconds):
                    own.append(self._seconds_alone(index))
            return seconds

    def _seconds_alone(self, index: int) -> float:
        """Return the seconds of one launch; of a communication, with its waits for other ranks."""
        command = self._commands[index]
        with driver_errors(self._cl, self._describe(index)):
            if command is not None:
                event = self._cl.enqueue_nd_range_kernel(self._queue, *command)
            else:
                assert self._communications is not None
                replay = self._communications.replay()
                event = replay.begin(index, None)
                replay.finish()
            self._queue.finish()
        return _span([event])

    def _release(self) -> None:
        with self._lock:
            self._commands, self._arguments = [], []
            self._memory.release()
            self._state.release()


def _commands_of(event: Any) -> list[Any]:
    """The OpenCL events of a launch: a communication has several."""
    return event.commands if isinstance(event, CommunicationEvent) else [event]


def _span(events: Sequence[Any]) -> float:
    """Seconds from the first start to the last end."""
    starts = [event.profile.start for event in events]
    ends = [event.profile.end for event in events]
    return (max(ends) - min(starts)) * NANOSECOND if events else 0.0


def _spans(events: Sequence[Any]) -> list[tuple[float, float]]:
    """Start and end of every event in seconds since the first start."""
    times = [(event.profile.start, event.profile.end) for event in events]
    zero = min((start for start, _ in times), default=0)  # in nanoseconds, which a float cannot hold exactly
    return [((start - zero) * NANOSECOND, (end - zero) * NANOSECOND) for start, end in times]


class OpenClStreamedPlan(OpenClPlan):
    """A run in two halves, so that several loads of one plan can take turns.

    Between `start` and `finish` of one, others may be started: the first half ends when all messages of the
    run are posted, so that those of the next run follow them on every rank.
    """

    _under_way: tuple[list[Any], list[Any], Iterator[Replay]] | None = None

    def start(self, inputs: Sequence[object]) -> None:
        """Begin a run: up to where nothing is left to do but wait for what other ranks send.

        Raises `DeviceError` where one is under way.
        """
        if self._under_way is not None:
            raise DeviceError("this plan has a run under way: finish it before the next one is started")
        with self._working():
            copies, events = self._copy_in(inputs), list[Any]()
            steps = self._launching(copies, events)
            replay = next(steps, None)
            if replay is not None:
                replay.post_all()
            self._under_way = copies, events, steps

    def finish(self) -> list[Array]:
        """The outputs of the run that was started, when it has ended."""
        if self._under_way is None:
            raise DeviceError("this plan has no run under way")
        copies, events, steps = self._under_way
        self._under_way = None
        with self._working():
            for _ in steps:
                pass
            return self._results(copies, events)
