"""The protocol every device follows: load a plan once, then run or time it many times.

Each device lives in a module of its own that imports its driver package only when a device is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.dtypes import Array
from tilewright.runtime.interface.state import StateMemory
from tilewright.runtime.plan.execution_plan import ExecutionPlan

Progress = Callable[[int, int, str], None]
"""Called as `progress(done, total, kernel_name)` while kernels are being built."""


class LoadedPlan(Protocol):
    """A plan whose memory is allocated, constants uploaded and kernels built on one device."""

    @property
    def plan(self) -> ExecutionPlan: ...

    def run(self, inputs: Sequence[object]) -> list[Array]:
        """Outputs for `inputs` (one NumPy or DLPack array per `plan.inputs`, shapes and dtypes as planned).

        The outputs are fresh arrays. The state of the plan becomes its new values; a run that fails on the
        way loses it (`StateMemory.lose`). Methods that take times leave the state as it was. Raises
        `InputError` naming the wrong input, and `DeviceError`.
        """
        ...

    def time(self, inputs: Sequence[object], repeats: int) -> list[float]:
        """Seconds of each of `repeats` replays after one warm-up, on the device's clock, copies excluded."""
        ...

    def time_kernels(self, inputs: Sequence[object], repeats: int) -> list[list[float]]:
        """Seconds per launch (outer list, in plan order) and repeat (inner list), launches run one by one."""
        ...

    def close(self) -> None:
        """Free everything; may be called twice. Any other method then raises `DeviceError`."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Device(Protocol):
    """Something that can run plans: a GPU, a CPU through OpenCL, an emulator, or nothing at all."""

    @property
    def name(self) -> str:
        """The name that a person knows, for instance `NVIDIA H100 80GB HBM3`."""
        ...

    @property
    def language(self) -> str:
        """The kernel language it takes: `cuda` or `opencl` (`any` for the null device)."""
        ...

    @property
    def driver_version(self) -> str:
        """Other facts that decide how fast it is: versions of the driver, and what its name does not tell."""
        ...

    def load(
        self,
        plan: ExecutionPlan,
        constants: Mapping[str, Array],
        *,
        progress: Progress | None = None,
        communicator: AnyCommunicator | None = None,
        state: StateMemory | None = None,
    ) -> LoadedPlan:
        """Allocate, upload `constants` (by buffer name; extra names are an error) and build the kernels.

        communicator: the other ranks, for a plan that communicates; a device that cannot says so.
        state: memory of `new_state` that holds the state of the plan, and stays the caller's. Without it the
        loaded plan has state of its own, which starts as `constants` say.
        Raises `InputError` for a bad plan or constant, `OutOfMemoryError`, `KernelBuildError` and
        `DeviceError`.
        """
        ...

    def new_state(self) -> StateMemory:
        """Memory for state, empty so far, which plans loaded on this device may share."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
