"""The OpenCL device on pyopencl: any CPU or GPU, with implementations of the package index as the default."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import count
from typing import Any

from tilewright.runtime.arena.placement import layout_of, plan_with_layout
from tilewright.runtime.closable import Closable
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import (
    DeviceError,
    InputError,
    OutOfMemoryError,
)
from tilewright.runtime.interface.device import Progress
from tilewright.runtime.interface.state import PlanState, StateMemory
from tilewright.runtime.opencl.driver import context_of, driver_errors
from tilewright.runtime.opencl.memory import OpenClPlanMemory, OpenClPool, OpenClState
from tilewright.runtime.opencl.plan import OpenClPlan, OpenClStreamedPlan
from tilewright.runtime.opencl.platforms import (
    check_not_forked,
    full_name,
    implementation_of,
    import_pyopencl,
    version_of,
)
from tilewright.runtime.opencl.programs import BinaryStore, ProgramBuilder
from tilewright.runtime.opencl.proof import Prover
from tilewright.runtime.opencl.trust import find_device
from tilewright.runtime.plan.arrays import check_constants
from tilewright.runtime.plan.check import ALIGNMENT, validate
from tilewright.runtime.plan.execution_plan import ExecutionPlan, KernelCode, describe_launch


class OpenClDevice(Closable):
    """One OpenCL device; equal weights and programs of all plans loaded through one object are stored once.

    `name` picks the first device that it means (`platforms.matches`); without it a GPU is preferred, then the
    order of `platforms.IMPLEMENTATIONS`. out_of_order: whether plans run on queues that are out of order,
    with events for their dependencies; None means those of several streams, where the device can. store:
    where compiled kernels are kept between runs, and which of them are proven; None keeps nothing. Raises
    `DeviceMissingError` where there is no such device, or none that computes rightly on this machine.
    """

    language = "opencl"

    def __init__(
        self, name: str | None = None, *, out_of_order: bool | None = None, store: BinaryStore | None = None
    ) -> None:
        self.cl: Any = import_pyopencl()
        self.device, self.vector_bits = find_device(name)
        self.name = full_name(self.device)
        self.out_of_order = out_of_order
        with driver_errors(self.cl, f"opening {self.name}"):
            self.context = context_of(self.cl, self.device)
        uploads = self.new_queue(out_of_order=False)
        self.pool = OpenClPool(self.cl, self.context, uploads, self.device, self.name)
        self.builder = ProgramBuilder(self.cl, self.context, self.device, store)
        made_by = implementation_of(self.device)
        proves = made_by is not None and made_by.self_test
        self.prover = Prover(self.device, store) if proves else None

    @property
    def has_out_of_order(self) -> bool:
        """True where the device has queues that are out of order."""
        return bool(
            self.device.queue_properties & self.cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        )

    def new_queue(self, *, out_of_order: bool, times: bool = True) -> Any:
        """A queue, of a loaded plan its own, so that plans need not wait for others.

        times: whether its events know when commands ran, which makes each command longer: of a small kernel
        Intel's runtime took 3.5 us with times and 1.9 us without on Zen 4.
        """
        properties = self.cl.command_queue_properties.PROFILING_ENABLE if times else 0
        if out_of_order:
            properties |= self.cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
        with driver_errors(self.cl, f"opening a queue of {self.name}"):
            return self.cl.CommandQueue(self.context, properties=properties)

    @property
    def driver_version(self) -> str:
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
        state: StateMemory | None = None,
    ) -> OpenClPlan:
        """See `Device.load`. The arena is laid out anew where the device wants a wider alignment."""
        self.check_open()
        check_not_forked()
        validate(plan)
        checked = check_constants(plan, constants)
        if plan.arena_bytes and self.alignment > ALIGNMENT:
            plan = plan_with_layout(plan, layout_of(plan, alignment=self.alignment))
        self._check_limits(plan)
        kept = PlanState.of(plan, checked, state, self.new_state)
        memory = OpenClPlanMemory(self.pool, plan)
        try:
            programs = self._build(plan, memory, progress)
            memory.allocate(checked, kept.memory)
            kind = OpenClPlan if communicator is None else OpenClStreamedPlan
            return kind(self, plan, memory, programs, communicator=communicator, state=kept)
        except BaseException:
            memory.release()
            kept.release()
            raise

    def new_state(self) -> OpenClState:
        """See `Device.new_state`."""
        self.check_open()
        return OpenClState(self.pool)

    def load_placed(self, plan: ExecutionPlan, memory: OpenClPlanMemory, queue: Any) -> OpenClPlan:
        """Load a plan whose buffers are where `memory` says, to run on a queue that keeps the order.

        Raises as `load` does; `memory` belongs to the loaded plan, or is released.
        """
        self.check_open()
        validate(plan)
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
            for what, needed, limit in limits:
                if needed > limit:
                    raise DeviceError(
                        f"{describe_launch(index, launch)} asks for {needed} {what}; {self.name} has {limit}"
                    )
        largest = max((b for b in plan.buffers if b.kind != "alias"), key=lambda b: b.nbytes, default=None)
        needed = max(plan.arena_bytes, largest.nbytes if largest else 0)
        if needed > self.device.max_mem_alloc_size:
            raise OutOfMemoryError(
                f"the plan asks for one allocation of {needed} bytes; "
                f"{self.name} allows {self.device.max_mem_alloc_size}"
            )

    def _build(
        self, plan: ExecutionPlan, memory: OpenClPlanMemory, progress: Progress | None
    ) -> dict[str, Any]:
        kernels = [k for k in plan.kernels if k.language != "communication"]
        for kernel in kernels:
            if kernel.language != "opencl":
                raise InputError(
                    f"kernel {kernel.name!r}: expected OpenCL C for {self.name}, got {kernel.language}"
                )
        new = [k for k in kernels if not self.pool.programs.users(k.source)]
        if self.prover is not None:
            self.prover.prove(plan, self.builder.groups(new))
        done = count(1)

        def advance(name: str) -> None:
            if progress is not None:
                progress(next(done), len(kernels), name)

        for kernel in kernels:
            if kernel not in new:
                advance(kernel.name)
        built = self.builder.build(new, advance)
        return {k.name: memory.program(k.source, partial(self._program, built, k)) for k in kernels}

    def _program(self, built: Mapping[str, Any], kernel: KernelCode) -> Any:
        """A program of `built`, or where another plan had it until now, a new one."""
        if kernel.source in built:
            return built[kernel.source]
        return self.builder.build([kernel], lambda _: None)[kernel.source]

    def _release(self) -> None:
        # Plans that are still open, or being loaded, have references to the rest.
        if self.prover is not None:
            self.prover.close()
