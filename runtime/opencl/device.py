"""The OpenCL device on pyopencl: any CPU or GPU, with implementations of the package index as the default."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tilewright.runtime.arrays import Array, check_constants
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.device import Progress
from tilewright.runtime.errors import (
    DeviceError,
    KernelBuildError,
    OutOfMemoryError,
    RuntimeInputError,
)
from tilewright.runtime.loaded import Closable, describe_launch
from tilewright.runtime.memory import layout_of, plan_with_layout
from tilewright.runtime.opencl.driver import context_of, driver_errors, first_complaint
from tilewright.runtime.opencl.memory import OpenClPool, PlanMemory
from tilewright.runtime.opencl.plan import OpenClPlan
from tilewright.runtime.opencl.platforms import check_not_forked, full_name, import_pyopencl, version_of
from tilewright.runtime.opencl.streamed import OpenClStreamedPlan
from tilewright.runtime.opencl.trust import find_device
from tilewright.runtime.plan import ExecutionPlan, KernelCode
from tilewright.runtime.plan_check import ALIGNMENT

#: kernels that are built as one program
GROUP = 16
BUILD_OPTIONS = ("-cl-std=CL1.2", "-w")


class OpenClDevice(Closable):
    """One OpenCL device; equal weights and programs of all plans loaded through one object are stored once.

    `name` picks the first device that it means (`platforms.matches`); without it a GPU is preferred, then the
    order of `platforms.IMPLEMENTATIONS`. out_of_order: whether plans run on queues that are out of order,
    with events for their dependencies; None means those of several streams, where the device can. Raises
    `DeviceMissingError` where there is no such device, or none that computes rightly on this machine.
    """

    language = "opencl"

    def __init__(self, name: str | None = None, *, out_of_order: bool | None = None) -> None:
        self.cl: Any = import_pyopencl()
        self.device, self.vector_bits = find_device(name)
        self.name = full_name(self.device)
        self.out_of_order = out_of_order
        with driver_errors(self.cl, f"opening {self.name}"):
            self.context = context_of(self.cl, self.device)
        uploads = self.new_queue(out_of_order=False)
        self.pool = OpenClPool(self.cl, self.context, uploads, self.device, self.name)

    @property
    def has_out_of_order(self) -> bool:
        """Whether the device has queues that are out of order."""
        return bool(
            self.device.queue_properties & self.cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        )

    def new_queue(self, *, out_of_order: bool) -> Any:
        """A queue that takes times; every loaded plan has its own, so that plans need not wait for others."""
        properties = self.cl.command_queue_properties.PROFILING_ENABLE
        if out_of_order:
            properties |= self.cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        with driver_errors(self.cl, f"opening a queue of {self.name}"):
            return self.cl.CommandQueue(self.context, properties=properties)

    @property
    def driver_version(self) -> str:
        """See `Device.driver_version`."""
        return version_of(self.device)

    @property
    def alignment(self) -> int:
        """Bytes that the start of every buffer argument must be a multiple of."""
        return max(1, int(self.device.mem_base_addr_align) // 8)

    def load(
        self,
        plan: ExecutionPlan,
        constants: Mapping[str, Array],
        *,
        progress: Progress | None = None,
        communicator: AnyCommunicator | None = None,
    ) -> OpenClPlan:
        """See `Device.load`. The arena is laid out anew where the device wants a wider alignment."""
        self.check_open()
        check_not_forked()
        plan.validate()
        checked = check_constants(plan, constants)
        if plan.arena_bytes and self.alignment > ALIGNMENT:
            plan = plan_with_layout(plan, layout_of(plan, alignment=self.alignment))
        self._check_limits(plan)
        memory = PlanMemory(self.pool, plan)
        try:
            programs = self._build(plan, memory, progress)
            memory.allocate(checked)
            kind = OpenClPlan if communicator is None else OpenClStreamedPlan
            return kind(self, plan, memory, programs, communicator=communicator)
        except BaseException:
            memory.release()
            raise

    def load_placed(self, plan: ExecutionPlan, memory: PlanMemory, queue: Any) -> OpenClPlan:
        """Load a plan whose buffers are where `memory` says, to run on a queue that keeps the order.

        Raises as `load` does; `memory` belongs to the loaded plan, or is released.
        """
        self.check_open()
        plan.validate()
        self._check_limits(plan)
        try:
            return OpenClPlan(self, plan, memory, self._build(plan, memory, None), queue)
        except BaseException:
            memory.release()
            raise

    def _check_limits(self, plan: ExecutionPlan) -> None:
        for index, launch in enumerate(plan.launches):
            limits = (
                ("work-items per group", launch.block, int(self.device.max_work_group_size)),
                ("bytes of local memory", launch.shared_bytes, int(self.device.local_mem_size)),
            )
            for what, asked, limit in limits:
                if asked > limit:
                    raise DeviceError(
                        f"{describe_launch(index, launch)} asks for {asked} {what}; {self.name} has {limit}"
                    )
        largest = max((b for b in plan.buffers if b.kind != "alias"), key=lambda b: b.nbytes, default=None)
        asked = max(plan.arena_bytes, largest.nbytes if largest else 0)
        if asked > self.device.max_mem_alloc_size:
            raise OutOfMemoryError(
                f"the plan asks for one allocation of {asked} bytes; "
                f"{self.name} allows {self.device.max_mem_alloc_size}"
            )

    def _build(self, plan: ExecutionPlan, memory: PlanMemory, progress: Progress | None) -> dict[str, Any]:
        kernels = [k for k in plan.kernels if k.language != "communication"]
        for kernel in kernels:
            if kernel.language != "opencl":
                raise RuntimeInputError(
                    f"kernel {kernel.name!r}: expected OpenCL C for {self.name}, got {kernel.language}"
                )
        new = [k for k in kernels if not self.pool.programs.users(k.source)]
        group_of = {k.name: new[i - i % GROUP : i - i % GROUP + GROUP] for i, k in enumerate(new)}
        built: dict[str, Any] = {}  # by source: programs that nobody has taken yet
        programs: dict[str, Any] = {}
        for index, kernel in enumerate(kernels):
            build = partial(self._built_in_group, kernel, group_of.get(kernel.name, [kernel]), built)
            programs[kernel.name] = memory.program(kernel.source, build)
            if progress is not None:
                progress(index + 1, len(kernels), kernel.name)
        return programs

    def _built_in_group(self, kernel: KernelCode, group: Sequence[KernelCode], built: dict[str, Any]) -> Any:
        """The program of a kernel, built together with those of its group: a build of its own costs 0.2 s."""
        if kernel.source not in built:
            built.update(dict.fromkeys(k.source for k in group))
            if len({k.entry for k in group}) == len(group) > 1:
                with warnings.catch_warnings(), contextlib.suppress(self.cl.Error):
                    warnings.simplefilter("ignore", self.cl.CompilerWarning)
                    text = "\n".join(k.source for k in group)
                    program = self.cl.Program(self.context, text).build(list(BUILD_OPTIONS))
                    built.update((k.source, program) for k in group)
        # What cannot be built together is built alone, which names the kernel at fault.
        return built[kernel.source] or self._build_program(kernel.name, kernel.source)

    def _build_program(self, name: str, source: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", self.cl.CompilerWarning)
            try:
                return self.cl.Program(self.context, source).build(list(BUILD_OPTIONS))
            except self.cl.Error as error:
                raise KernelBuildError(
                    f"kernel {name!r}: {self.name} cannot build it: {first_complaint(str(error), source)}"
                ) from None

    def _release(self) -> None:
        return  # plans that are still open, or being loaded, have references of their own
