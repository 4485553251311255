"""The OpenCL device on pyopencl: any CPU or GPU, with the PoCL wheel as the embedded default.

The wheel `pocl-binary-distribution` puts PoCL beside pyopencl's own ICD loader, which finds it there.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from tilewright.runtime.arrays import Array, check_constants, check_repeats, host_inputs
from tilewright.runtime.device import Progress
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.errors import (
    DeviceError,
    DeviceMissingError,
    KernelBuildError,
    OutOfMemoryError,
    RuntimeInputError,
)
from tilewright.runtime.loaded import Closable
from tilewright.runtime.memory import layout_of, plan_with_layout
from tilewright.runtime.plan import Buffer, ExecutionPlan, Launch
from tilewright.runtime.plan_check import ALIGNMENT

BUILD_OPTIONS = ("-cl-std=CL1.2", "-w")
NANOSECOND = 1e-9


def _import_pyopencl() -> ModuleType:
    try:
        import pyopencl
    except ImportError as error:
        raise DeviceMissingError(
            f"OpenCL needs pyopencl and a driver: pip install 'tilewright[opencl]' ({error})"
        ) from None
    return pyopencl


@contextmanager
def _driver_errors(cl: ModuleType, doing: str) -> Iterator[None]:
    """Turn pyopencl's errors into ours, which say what was being done."""
    try:
        yield
    except cl.MemoryError as error:
        raise OutOfMemoryError(f"{doing}: the OpenCL device is out of memory ({error})") from None
    except cl.Error as error:
        raise DeviceError(f"{doing}: {error}") from None


def _describe(index: int, launch: Launch) -> str:
    origin = f" for {', '.join(launch.origin)}" if launch.origin else ""
    return f"launch {index} of kernel {launch.kernel!r}{origin}"


_COMPLAINT = re.compile(r"error: \S*?:(\d+):\d+: (.*)|:(\d+):\d+: error: (.*)")


def _first_complaint(log: str, source: str) -> str:
    """The first error of an OpenCL compiler's log with the source line it is about; else the whole log."""
    match = _COMPLAINT.search(log)
    if match is None:
        return log
    line, text = int(match[1] or match[3]), match[2] or match[4]
    lines = source.splitlines()
    return f"line {line}: {text}: {lines[line - 1].strip() if 0 < line <= len(lines) else ''}"


def list_opencl_devices() -> list[Any]:
    """Every OpenCL device of this machine, GPUs first; raises `DeviceMissingError` without pyopencl."""
    cl = _import_pyopencl()
    try:
        devices = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error:
        # A loader without any driver reports an error where it could report an empty list.
        return []
    return sorted(devices, key=lambda device: not device.type & cl.device_type.GPU)


class OpenClDevice(Closable):
    """One OpenCL device with one queue; with `out_of_order` the plan's dependencies become event waits.

    `name` picks the first device whose own or platform name contains it, whatever the case; without it a GPU
    is preferred. Raises `DeviceMissingError` where there is none.
    """

    language = "opencl"

    def __init__(self, name: str | None = None, *, out_of_order: bool = False) -> None:
        self.cl: Any = _import_pyopencl()
        devices = list_opencl_devices()
        wanted = (name or "").lower()
        found = [d for d in devices if wanted in d.name.lower() or wanted in d.platform.name.lower()]
        if not found:
            known = ", ".join(d.name.strip() for d in devices) or "none; pip install 'tilewright[opencl]'"
            raise DeviceMissingError(f"expected an OpenCL device named like {wanted!r}, found: {known}")
        self.device = found[0]
        self.name = f"{self.device.name.strip()} ({self.device.platform.name.strip()})"
        self.out_of_order = out_of_order
        properties = self.cl.command_queue_properties.PROFILING_ENABLE
        if out_of_order:
            properties |= self.cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        with _driver_errors(self.cl, f"opening {self.name}"):
            self.context = self.cl.Context([self.device])
            self.queue = self.cl.CommandQueue(self.context, properties=properties)

    @property
    def driver_version(self) -> str:
        """See `Device.driver_version`; a CPU's cores are those that this process may use."""
        platform, driver = self.device.platform.version.strip(), self.device.driver_version.strip()
        return f"{platform}, driver {driver}, {self.device.max_compute_units} compute units"

    @property
    def alignment(self) -> int:
        """Bytes that the start of every buffer argument must be a multiple of."""
        return max(1, int(self.device.mem_base_addr_align) // 8)

    def load(
        self, plan: ExecutionPlan, constants: Mapping[str, Array], *, progress: Progress | None = None
    ) -> OpenClPlan:
        """See `Device.load`. The arena is laid out anew where the device wants a wider alignment."""
        self.check_open()
        plan.validate()
        checked = check_constants(plan, constants)
        if plan.arena_bytes and self.alignment > ALIGNMENT:
            plan = plan_with_layout(plan, layout_of(plan, alignment=self.alignment))
        self._check_limits(plan)
        programs = self._build(plan, progress)
        return OpenClPlan(self, plan, checked, programs)

    def _check_limits(self, plan: ExecutionPlan) -> None:
        for index, launch in enumerate(plan.launches):
            limits = (
                ("work-items per group", launch.block, int(self.device.max_work_group_size)),
                ("bytes of local memory", launch.shared_bytes, int(self.device.local_mem_size)),
            )
            for what, asked, limit in limits:
                if asked > limit:
                    raise DeviceError(
                        f"{_describe(index, launch)} asks for {asked} {what}; {self.name} has {limit}"
                    )
        largest = max((b for b in plan.buffers if b.kind != "alias"), key=lambda b: b.nbytes, default=None)
        asked = max(plan.arena_bytes, largest.nbytes if largest else 0)
        if asked > self.device.max_mem_alloc_size:
            raise OutOfMemoryError(
                f"the plan asks for one allocation of {asked} bytes; "
                f"{self.name} allows {self.device.max_mem_alloc_size}"
            )

    def _build(self, plan: ExecutionPlan, progress: Progress | None) -> dict[str, Any]:
        programs: dict[str, Any] = {}
        by_source: dict[str, Any] = {}
        for index, kernel in enumerate(plan.kernels):
            if kernel.language != "opencl":
                raise RuntimeInputError(
                    f"kernel {kernel.name!r}: expected OpenCL C for {self.name}, got {kernel.language}"
                )
            if kernel.source not in by_source:
                by_source[kernel.source] = self._build_program(kernel.name, kernel.source)
            programs[kernel.name] = by_source[kernel.source]
            if progress is not None:
                progress(index + 1, len(plan.kernels), kernel.name)
        return programs

    def _build_program(self, name: str, source: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self.cl.CompilerWarning)
            try:
                return self.cl.Program(self.context, source).build(list(BUILD_OPTIONS))
            except self.cl.Error as error:
                raise KernelBuildError(
                    f"kernel {name!r}: {self.name} cannot build it: {_first_complaint(str(error), source)}"
                ) from None

    def _release(self) -> None:
        self.queue.finish()
        del self.queue, self.context


class OpenClPlan(Closable):
    """A plan loaded on an OpenCL device."""

    def __init__(
        self, device: OpenClDevice, plan: ExecutionPlan, constants: dict[str, Array], programs: dict[str, Any]
    ) -> None:
        self.plan = plan
        self._device = device
        self._cl = device.cl
        self._memory: dict[str, Any] = {}
        try:
            self._allocate()
            self._upload(constants)
            self._kernels = [self._bind(i, launch, programs) for i, launch in enumerate(plan.launches)]
        except BaseException:
            self.close()
            raise

    def _allocate(self) -> None:
        sizes = {b.name: b.nbytes for b in self.plan.buffers if b.kind not in ("arena", "alias")}
        flags = self._cl.mem_flags.READ_WRITE
        with _driver_errors(self._cl, f"allocating {sum(sizes.values()) + self.plan.arena_bytes} bytes"):
            for name, nbytes in sizes.items():
                self._memory[name] = self._cl.Buffer(self._device.context, flags, max(1, nbytes))
            self._arena = self._cl.Buffer(self._device.context, flags, max(1, self.plan.arena_bytes))

    def _upload(self, arrays: Mapping[str, Array]) -> None:
        with _driver_errors(self._cl, "copying data to the device"):
            for name, array in arrays.items():
                if array.nbytes:
                    self._cl.enqueue_copy(self._device.queue, self._memory[name], array, is_blocking=True)

    def _region(self, name: str) -> tuple[Any, int]:
        """The OpenCL buffer that owns the memory of `name` and the byte offset inside it."""
        owner, offset = self.plan.locate(name)
        if owner.kind == "arena":
            return self._arena, owner.offset + offset
        return self._memory[owner.name], offset

    def _argument(self, buffer: Buffer) -> Any:
        owner, offset = self._region(buffer.name)
        if buffer.nbytes == 0 or (offset == 0 and buffer.nbytes == owner.size):
            return owner
        if offset % self._device.alignment:
            raise RuntimeInputError(
                f"buffer {buffer.name!r} starts at byte {offset}; "
                f"{self._device.name} needs a multiple of {self._device.alignment}"
            )
        return owner.get_sub_region(offset, buffer.nbytes)

    def _bind(self, index: int, launch: Launch, programs: Mapping[str, Any]) -> Any:
        entry = self.plan.kernel_by_name[launch.kernel].entry
        with _driver_errors(self._cl, _describe(index, launch)):
            kernel = self._cl.Kernel(programs[launch.kernel], entry)
            args = [self._argument(self.plan.buffer_by_name[name]) for name in launch.args]
            if launch.shared_bytes:
                args.append(self._cl.LocalMemory(launch.shared_bytes))
            if kernel.num_args != len(args):
                raise RuntimeInputError(
                    f"{_describe(index, launch)}: expected {kernel.num_args} arguments, got {len(args)}"
                )
            kernel.set_args(*args)
        return kernel

    def _enqueue(self, index: int, waits: list[Any] | None) -> Any:
        launch = self.plan.launches[index]
        x, y, z = launch.grid
        with _driver_errors(self._cl, _describe(index, launch)):
            return self._cl.enqueue_nd_range_kernel(
                self._device.queue,
                self._kernels[index],
                (x * launch.block, y, z),
                (launch.block, 1, 1),
                wait_for=waits,
            )

    def _replay(self) -> list[Any]:
        events: list[Any] = []
        for index, launch in enumerate(self.plan.launches):
            waits = [events[dep] for dep in launch.deps] if self._device.out_of_order else None
            events.append(self._enqueue(index, waits or None))
        with _driver_errors(self._cl, "running the plan"):
            self._device.queue.finish()
        return events

    def _start(self, inputs: Sequence[object]) -> None:
        self.check_open()
        self._device.check_open()
        arrays = host_inputs(self.plan, inputs)
        self._upload(dict(zip(self.plan.inputs, arrays, strict=True)))

    def run(self, inputs: Sequence[object]) -> list[Array]:
        """See `LoadedPlan.run`."""
        self._start(inputs)
        self._replay()
        return [self._download(self.plan.buffer_by_name[name]) for name in self.plan.outputs]

    def _download(self, buffer: Buffer) -> Array:
        result = np.empty(buffer.shape, dtype=DTYPES[buffer.dtype])
        if result.nbytes:
            owner, offset = self._region(buffer.name)
            # pyopencl copies raw bytes; the byte view spares it element types it does not know (bfloat16).
            flat = result.reshape(-1).view(np.uint8)
            with _driver_errors(self._cl, f"copying output {buffer.name!r} to the host"):
                self._cl.enqueue_copy(self._device.queue, flat, owner, src_offset=offset, is_blocking=True)
        return result

    def time(self, inputs: Sequence[object], repeats: int) -> list[float]:
        """See `LoadedPlan.time`: from the first kernel's start to the last one's end, by OpenCL profiling."""
        check_repeats(repeats)
        self._start(inputs)
        self._replay()
        return [self._span(self._replay()) for _ in range(repeats)]

    def _span(self, events: Sequence[Any]) -> float:
        starts = [event.profile.start for event in events]
        ends = [event.profile.end for event in events]
        return (max(ends) - min(starts)) * NANOSECOND if events else 0.0

    def time_kernels(self, inputs: Sequence[object], repeats: int) -> list[list[float]]:
        """See `LoadedPlan.time_kernels`."""
        check_repeats(repeats)
        self._start(inputs)
        self._replay()
        seconds: list[list[float]] = [[] for _ in self.plan.launches]
        # Whole replays, so that every kernel sees the data it was made for: the arena's bytes are reused.
        for _ in range(repeats):
            for index, own in enumerate(seconds):
                event = self._enqueue(index, None)
                event.wait()
                own.append(self._span([event]))
        return seconds

    def _release(self) -> None:
        # pyopencl frees OpenCL objects with their last reference.
        self._kernels = []
        for memory in (*self._memory.values(), getattr(self, "_arena", None)):
            if memory is not None:
                memory.release()
        self._memory = {}
