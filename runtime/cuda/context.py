"""One GPU's primary context: every driver call is checked, and its failures become our errors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tilewright.runtime.errors import DeviceError, DeviceLostError, DeviceMissingError, OutOfMemoryError

#: statuses after which every further call of the process on this GPU fails, as the driver documents them
LOSING = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ASSERT",
        "CONTEXT_IS_DESTROYED",
        "ECC_UNCORRECTABLE",
        "HARDWARE_STACK_ERROR",
        "ILLEGAL_ADDRESS",
        "ILLEGAL_INSTRUCTION",
        "INVALID_ADDRESS_SPACE",
        "INVALID_PC",
        "LAUNCH_FAILED",
        "LAUNCH_TIMEOUT",
        "MISALIGNED_ADDRESS",
        "NVLINK_UNCORRECTABLE",
    )
)


#: by which launchers (Open MPI, Intel MPI and MPICH, Slurm) tell a process its place on its machine
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID")


def own_ordinal(gpus: int, environment: Mapping[str, str] = os.environ) -> int:
    """The number of this process's GPU among those it sees: its place among the ranks of its machine.

    The first one where no launcher tells a place; where there are more ranks than GPUs, ranks share GPUs.
    """
    places = (environment.get(name, "") for name in LOCAL_RANK)
    place = next((int(text) for text in places if text.isdecimal()), 0)
    return place % max(1, gpus)


def explain_status(driver: ModuleType, status: Any) -> str:
    """The driver's name and text for a status."""
    name, text = driver.cuGetErrorName(status)[1], driver.cuGetErrorString(status)[1]
    if name is None or text is None:
        return str(status)
    return f"{name.decode()} ({text.decode()})"


class Context:
    """The primary context of one GPU, shared with whatever else uses it in this process."""

    def __init__(self, api: ModuleType, ordinal: int | None) -> None:
        """ordinal: the GPU's number; None means this process's own (see `own_ordinal`)."""
        self.api: Any = api
        self._push = api.cuCtxPushCurrent
        self.success: Any = api.CUresult.CUDA_SUCCESS
        count = self.call("cuDeviceGetCount")
        ordinal = own_ordinal(count) if ordinal is None else ordinal
        if not 0 <= ordinal < count:
            raise DeviceMissingError(f"expected a GPU number in 0..{count - 1}, got {ordinal}")
        self.ordinal = ordinal
        self.device = self.call("cuDeviceGet", ordinal)
        self.handle = self.call("cuDevicePrimaryCtxRetain", self.device)

    def again(self) -> Context:
        """One more reference to the same primary context, to be released apart."""
        return Context(self.api, self.ordinal)

    def release(self) -> None:
        """Give the context back to the driver; nothing may be used or freed through it afterwards."""
        self.call("cuDevicePrimaryCtxRelease", self.device)

    def call(self, function: str, *args: Any, doing: str = "") -> Any:
        """Call the driver; returns its value, its tuple of values or None, and raises `DeviceError`.

        `doing` says for which kernel and op the call is made.
        """
        results = getattr(self.api, function)(*args)
        if results[0] != self.success:
            raise self.failure(f"{function} ({doing})" if doing else function, results[0])
        if len(results) > 2:
            return results[1:]
        return results[1] if len(results) == 2 else None

    def finished(self, query: str, handle: Any, *, doing: str = "") -> bool:
        """Ask `cuStreamQuery` or `cuEventQuery` whether work ended; raises `DeviceError` as `call` does."""
        (status,) = getattr(self.api, query)(handle)
        if status not in (self.success, self.api.CUresult.CUDA_ERROR_NOT_READY):
            raise self.failure(f"{query} ({doing})" if doing else query, status)
        return bool(status == self.success)

    def failure(self, doing: str, status: Any) -> DeviceError:
        """What to raise where a driver call gave another status than `success`."""
        text = f"{doing} failed: {explain_status(self.api, status)}"
        if status == self.api.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            return OutOfMemoryError(text)
        if status.name in LOSING:
            return DeviceLostError(f"{text}; this process can do no more work on the GPU: start it again")
        return DeviceError(text)

    def push(self) -> None:
        """Make the context current for this thread; `pop` brings the previous one back."""
        status = self._push(self.handle)[0]
        if status != self.success:
            raise self.failure("cuCtxPushCurrent", status)

    def pop(self) -> None:
        """Undo `push`. A status here could only repeat an earlier failure, so there is none."""
        self.api.cuCtxPopCurrent()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current for this thread, and the previous one again afterwards."""
        self.push()
        try:
            yield
        finally:
            self.pop()

    def allocate(self, nbytes: int, what: str) -> int:
        """The address of at least `nbytes` (never 0) of device memory; the context must be current."""
        try:
            return int(self.call("cuMemAlloc", max(1, nbytes)))
        except OutOfMemoryError:
            free, total = self.call("cuMemGetInfo")
            raise OutOfMemoryError(
                f"the GPU is out of memory: {what} asks for {nbytes} bytes, {free} of {total} are free"
            ) from None

    def attribute(self, name: str) -> int:
        """An attribute of the GPU by the end of its enum name, for instance `MULTIPROCESSOR_COUNT`."""
        key = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", key, self.device))

    def name(self) -> str:
        """The GPU's product name."""
        raw: bytes = self.call("cuDeviceGetName", 256, self.device)
        return raw.split(b"\0", 1)[0].decode(errors="replace").strip()

    def uuid(self) -> str:
        """Text that no other GPU has, on whichever machine."""
        return f"GPU-{bytes(self.call('cuDeviceGetUuid', self.device).bytes).hex()}"

    def capability(self) -> tuple[int, int]:
        """Compute capability, for instance (9, 0)."""
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")
