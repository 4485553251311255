"""The null device: checks everything, runs nothing, records what a real one would do, fails on demand."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from tilewright.runtime.closable import Closable
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.communication.replay import CommunicationOrder
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import (
    DeviceError,
    DeviceLostError,
    InputError,
    KernelBuildError,
    OutOfMemoryError,
)
from tilewright.runtime.interface.device import Progress
from tilewright.runtime.interface.state import NO_STATE, HostState, PlanState, StateMemory
from tilewright.runtime.plan.arrays import check_constants, check_repeats, host_inputs
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, describe_launch

Action = Literal[
    "allocate", "upload", "build", "copy-in", "launch", "wait", "start", "finish", "copy-out", "free"
]
ACTIONS: tuple[str, ...] = get_args(Action)


@dataclass(frozen=True)
class Operation:
    """One recorded step.

    `what` names a buffer or kernel; for `launch` and `wait`, `launch` is the index of the (awaited) launch
    and `stream` the stream that runs it (waits for it); `start` and `finish` are those of a communication.
    """

    action: Action
    what: str
    nbytes: int = 0
    launch: int = -1
    stream: int = 0


class NullDevice(Closable):
    """Needs no hardware; every operation ends up in `log`.

    memory_bytes: allocations beyond this many bytes raise `OutOfMemoryError`; None sets no limit.
    """

    name = "null"
    language = "any"
    driver_version = ""

    def __init__(self, *, memory_bytes: int | None = None) -> None:
        self.log: list[Operation] = []
        self.memory_bytes = memory_bytes
        self.bytes_in_use = 0
        self._faults: list[_Fault] = []
        self._lost = False
        self._lock = threading.Lock()

    def fail(self, action: Action, *, skip: int = 0, lost: bool = False) -> None:
        """Make one coming operation of this kind fail, after `skip` that succeed.

        The error is that of a real device. With `lost` the device is gone from then on: every later operation
        but `free` raises `DeviceLostError`. Raises `InputError` for an unknown kind.
        """
        if action not in ACTIONS or action == "free":
            raise InputError(f"expected an operation that may fail ({', '.join(ACTIONS)}), got {action!r}")
        with self._lock:
            self._faults.append(_Fault(action, skip, lost))

    def perform(self, operation: Operation, where: str) -> None:
        """Record one operation, or raise what it fails with; `where` says for messages what it is."""
        with self._lock:
            if self._lost:
                raise DeviceLostError(
                    f"{where}: the null device is gone; close what is on it and open it anew"
                )
            for fault in [fault for fault in self._faults if fault.action == operation.action]:
                if fault.skip:
                    fault.skip -= 1
                    continue
                self._faults.remove(fault)
                self._lost = fault.lost
                raise _error_of(fault, where)
            if operation.action == "allocate":
                self._reserve(operation.nbytes, where)
            self.log.append(operation)

    def _reserve(self, nbytes: int, where: str) -> None:
        if self.memory_bytes is not None and self.bytes_in_use + nbytes > self.memory_bytes:
            free = self.memory_bytes - self.bytes_in_use
            raise OutOfMemoryError(f"{where} takes {nbytes} bytes; the null device has {free} free")
        self.bytes_in_use += nbytes

    def free(self, nbytes: int) -> None:
        """Give memory back, also to a device that is lost."""
        with self._lock:
            self.bytes_in_use -= nbytes
            self.log.append(Operation("free", "plan", nbytes))

    def load(
        self,
        plan: ExecutionPlan,
        constants: Mapping[str, Array],
        *,
        progress: Progress | None = None,
        communicator: AnyCommunicator | None = None,
        state: StateMemory | None = None,
    ) -> NullPlan:
        """Validate the plan and its constants and record allocations, uploads and builds.

        Communications are recorded where they are started and finished; no other rank is needed.
        """
        self.check_open()
        validate(plan)
        checked = check_constants(plan, constants)
        loaded = NullPlan(plan, self, PlanState.of(plan, checked, state, self.new_state))
        try:
            loaded.prepare(checked, progress)
        except BaseException:
            loaded.close()
            raise
        return loaded

    def new_state(self) -> NullState:
        """See `Device.new_state`."""
        self.check_open()
        return NullState(self)

    def _release(self) -> None:
        return


class NullState(HostState):
    """State that no run changes; allocations and copies to the device are recorded."""

    def __init__(self, device: NullDevice) -> None:
        super().__init__()
        self._device, self._bytes = device, 0

    def _allocate(self, buffer: Buffer) -> None:
        what = f"allocating state {buffer.title!r}"
        self._device.perform(Operation("allocate", buffer.title, buffer.nbytes), what)
        self._bytes += buffer.nbytes

    def _upload(self, buffer: Buffer, array: Array) -> None:
        what = f"uploading state {buffer.title!r}"
        self._device.perform(Operation("upload", buffer.title, array.nbytes), what)
        super()._upload(buffer, array)

    def _release(self) -> None:
        super()._release()
        self._device.free(self._bytes)


@dataclass
class _Fault:
    action: Action
    skip: int
    lost: bool


def _error_of(fault: _Fault, where: str) -> DeviceError:
    if fault.lost:
        return DeviceLostError(f"{where}: the null device was lost, as asked for")
    kinds = {"allocate": OutOfMemoryError, "build": KernelBuildError}
    return kinds.get(fault.action, DeviceError)(f"{where}: failed, as asked for")


@dataclass
class NullPlan(Closable):
    """A plan on the null device: `run` records the stream operations and returns zeros.

    Runs are atomic: several threads may call one plan, whose runs then follow one another.
    """

    plan: ExecutionPlan
    device: NullDevice = field(repr=False)
    state: PlanState = field(default=NO_STATE, repr=False)

    def __post_init__(self) -> None:
        self._lock = self.state.lock
        self._bytes = 0

    def prepare(self, constants: Mapping[str, Array], progress: Progress | None) -> None:
        """Record what loading does, up to the first failure."""
        sizes = {b.name: b.nbytes for b in self.plan.buffers if b.kind in ("input", "output", "constant")}
        for name, nbytes in {"arena": self.plan.arena_bytes, **sizes}.items():
            self.device.perform(Operation("allocate", name, nbytes), f"allocating {name!r}")
            self._bytes += nbytes
        for name, array in constants.items():
            if self.plan.buffer_by_name[name].kind == "constant":
                self.device.perform(Operation("upload", name, array.nbytes), f"uploading constant {name!r}")
        for index, kernel in enumerate(self.plan.kernels):
            self.device.perform(Operation("build", kernel.name), f"kernel {kernel.name!r}")
            if progress is not None:
                progress(index + 1, len(self.plan.kernels), kernel.name)

    def run(self, inputs: Sequence[object]) -> list[Array]:
        """Zeros of the outputs' shapes; records copies, waits between streams and launches in plan order."""
        with self._lock:
            self.check_open()
            self.device.check_open()
            for name, array in zip(self.plan.inputs, host_inputs(self.plan, inputs), strict=True):
                self.device.perform(Operation("copy-in", name, array.nbytes), f"copying input {name!r}")
            with self.state.changing():
                self._replay()
                return [self._copy_out(name) for name in self.plan.outputs]

    def _copy_out(self, name: str) -> Array:
        buffer = self.plan.buffer_by_name[name]
        array = np.zeros(buffer.shape, dtype=DTYPES[buffer.dtype])
        self.device.perform(Operation("copy-out", name, array.nbytes), f"copying output {name!r}")
        return array

    def _replay(self) -> None:
        launches, order = self.plan.launches, CommunicationOrder.of(self.plan)
        begun, finished = list(order.kernels), 0
        for index, launch in enumerate(launches):
            where = describe_launch(index, launch)
            finished = self._finish(begun, finished, order.finished_before[index])
            for dep in launch.deps:
                if launches[dep].stream != launch.stream:
                    self.device.perform(Operation("wait", launches[dep].kernel, 0, dep, launch.stream), where)
            action: Action = "start" if index in order.kernels else "launch"
            self.device.perform(Operation(action, launch.kernel, 0, index, launch.stream), where)
        self._finish(begun, finished, len(begun))

    def _finish(self, begun: Sequence[int], first: int, last: int) -> int:
        """Finish communications, from `first` to before `last` of them; how many are finished then."""
        for index in begun[first:last]:
            launch = self.plan.launches[index]
            where = describe_launch(index, launch)
            self.device.perform(Operation("finish", launch.kernel, 0, index, launch.stream), where)
        return max(first, last)

    def time(self, inputs: Sequence[object], repeats: int) -> list[float]:
        """Zero seconds per replay."""
        check_repeats(repeats)
        with self.state.kept():
            self.run(inputs)
        return [0.0] * repeats

    def time_kernels(self, inputs: Sequence[object], repeats: int) -> list[list[float]]:
        """Zero seconds per launch and repeat."""
        check_repeats(repeats)
        with self.state.kept():
            self.run(inputs)
        return [[0.0] * repeats for _ in self.plan.launches]

    def _release(self) -> None:
        with self._lock:
            self.state.release()
            self.device.free(self._bytes)
