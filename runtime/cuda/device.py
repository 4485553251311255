"""The CUDA device: loads plans of CUBINs onto an NVIDIA GPU and replays them as a CUDA graph."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

from tilewright.runtime.closable import Closable
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.communication.replay import refuse_communication
from tilewright.runtime.cuda.context import Context, explain_status
from tilewright.runtime.cuda.memory import CudaPool, CudaState
from tilewright.runtime.cuda.plan import CudaPlan, PlacedAddresses, ReplayKind
from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import DeviceError, DeviceMissingError, InputError
from tilewright.runtime.interface.device import Progress
from tilewright.runtime.interface.state import PlanState, StateMemory
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.problem import Problem
from tilewright.runtime.libraries.provider import Provider, open_provider
from tilewright.runtime.plan.arrays import check_constants
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import ExecutionPlan

_ARCH = re.compile(r"sm_(\d+)(\d)([af]?)")
_MODULE_VERSION = Path("/sys/module/nvidia/version")


@cache
def load_driver() -> ModuleType:
    """The initialised driver bindings; raises `DeviceMissingError` saying what is missing."""
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise DeviceMissingError(
            f"CUDA needs the cuda-python package: pip install 'tilewright[cuda]' ({error})"
        ) from None
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as error:
        # The bindings report a driver library that cannot be loaded this way.
        raise DeviceMissingError(f"this machine has no NVIDIA driver ({error})") from None
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DeviceMissingError(
            f"this machine has no usable NVIDIA GPU: cuInit says {explain_status(driver, status)}"
        )
    module: ModuleType = driver
    return module


class CudaDevice(Closable):
    """One NVIDIA GPU by number; None is this process's own, which differs between ranks of one machine.

    replay: `graph` makes one CUDA graph of explicit nodes with the plan's dependency edges, `capture` one
    captured from the plan's streams; `eager` launches kernel by kernel on these streams; `checked` waits
    after every launch, so that a kernel that fails is named. Equal weights and binaries of all plans loaded
    through one device are stored once. Raises `DeviceMissingError` where there is no such GPU.
    """

    language = "cuda"

    def __init__(self, ordinal: int | None = None, *, replay: ReplayKind = "graph") -> None:
        self.context = Context(load_driver(), ordinal)
        self.name = self.context.name()
        self.capability = self.context.capability()
        self.replay = replay
        self.pool = CudaPool()
        self._libraries: dict[str, Provider] = {}

    @property
    def arch(self) -> str:
        """The architecture to compile for, for instance `sm_90a`: from Hopper on the specific one."""
        major, minor = self.capability
        return f"sm_{major}{minor}{'a' if major >= 9 else ''}"

    @property
    def multiprocessors(self) -> int:
        """The number of multiprocessors of the GPU, or of this process's part of it."""
        return self.context.attribute("MULTIPROCESSOR_COUNT")

    @property
    def driver_version(self) -> str:
        """CUDA version of the user-mode driver, and the kernel module's where Linux shows it."""
        version = int(self.context.call("cuDriverGetVersion"))
        text = f"CUDA {version // 1000}.{version % 1000 // 10}"
        try:
            return f"{text}, module {_MODULE_VERSION.read_text(encoding='ascii').strip()}"
        except OSError:
            return text

    def load(
        self,
        plan: ExecutionPlan,
        constants: Mapping[str, Array],
        *,
        progress: Progress | None = None,
        communicator: AnyCommunicator | None = None,
        state: StateMemory | None = None,
    ) -> CudaPlan:
        """See `Device.load`; kernels come with their CUBINs, so nothing is compiled here.

        communicator: where it is between host memory, loading is a collective of all its ranks, in which NCCL
            connects their GPUs. Raises the same `DisagreementError` on all ranks where two of them have one
            GPU or where their plans would wait for one another.
        """
        self._check(plan)
        checked = check_constants(plan, constants)
        kept = PlanState.of(plan, checked, state, self.new_state)
        loaded = CudaPlan(
            self.context,
            self.pool,
            plan,
            checked,
            replay=self.replay,
            communicator=communicator,
            state=kept,
        )
        if progress is not None and plan.kernels:
            progress(len(plan.kernels), len(plan.kernels), plan.kernels[-1].name)
        return loaded

    def new_state(self) -> CudaState:
        """See `Device.new_state`."""
        self.check_open()
        return CudaState(self.context)

    def load_placed(self, plan: ExecutionPlan, addresses: Mapping[str, int], arena: int) -> CudaPlan:
        """Load a plan into memory of the caller's: addresses of inputs, outputs, constants, and the arena.

        Raises as `load` does; the memory must outlive the loaded plan.
        """
        self._check(plan)
        refuse_communication(plan, f"{self.name} in memory of the caller's")
        placed = PlacedAddresses(addresses, arena)
        return CudaPlan(self.context, self.pool, plan, placed, replay=self.replay)

    def _check(self, plan: ExecutionPlan) -> None:
        """Raise unless the plan is well-formed and its kernels are built for this GPU."""
        self.check_open()
        validate(plan)
        for kernel in plan.kernels:
            if kernel.language in ("library", "communication"):
                continue
            if kernel.language != "cuda" or kernel.binary is None:
                raise InputError(
                    f"kernel {kernel.name!r}: expected CUDA C with a CUBIN for {self.name}, "
                    f"got {kernel.language} {'without' if kernel.binary is None else 'with'} a binary"
                )
            self._check_arch(kernel.name, kernel.arch)

    def library_kernels(
        self, provider: str, problem: Problem, workspace_bytes: int
    ) -> Iterator[LibraryKernel]:
        """The algorithms a library has here for a problem with so much workspace, most promising first.

        Each is prepared when it is asked for, which may take cuDNN a second. Raises, at the first,
        `DeviceMissingError` where the library is not installed, `DeviceError` where it fails.
        """
        with self.context.current():
            kernels = iter(self._library(provider).kernels(problem, workspace_bytes))
        while True:
            with self.context.current():
                kernel = next(kernels, None)
            if kernel is None:
                return
            yield kernel

    def library_version(self, provider: str) -> str:
        """The version of a library on this machine; raises `DeviceMissingError` where it is not installed."""
        with self.context.current():
            return self._library(provider).version

    def _library(self, provider: str) -> Provider:
        """A library, held open from the first use on: opening one takes milliseconds."""
        self.check_open()
        if provider not in self._libraries:
            self._libraries[provider] = self.pool.libraries.take(provider, lambda: open_provider(provider))
        return self._libraries[provider]

    def _check_arch(self, kernel: str, arch: str) -> None:
        match = _ARCH.fullmatch(arch)
        major, minor = self.capability
        # A CUBIN runs on its own major version from its minor on; with "a" on exactly its own.
        fits = match is not None and (
            (int(match[1]), int(match[2])) == (major, minor)
            or (match[3] != "a" and int(match[1]) == major and int(match[2]) <= minor)
        )
        if not fits:
            raise InputError(
                f"kernel {kernel!r} is built for {arch!r}; {self.name} is sm_{major}{minor}: compile it again"
            )

    def _release(self) -> None:
        # After a failure of the context handles cannot be freed, which would only repeat that failure.
        with suppress(DeviceError), self.context.current():
            while self._libraries:
                self.pool.libraries.give_back(self._libraries.popitem()[0], lambda opened: opened.close())
        self.context.release()
