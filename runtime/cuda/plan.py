"""A plan loaded on a GPU: fixed inputs and outputs, one call that replays it, and how replays are timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np

from tilewright.runtime.closable import Closable
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.cuda.arrays import CopyIn, DeviceArray, LentArray, copies_in
from tilewright.runtime.cuda.communication import CudaCommunications
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.cuda.eager import EagerReplay
from tilewright.runtime.cuda.graph import CapturedGraph, ExplicitGraph, GraphEdge, GraphReplay
from tilewright.runtime.cuda.launch import AnyLaunch, prepare_launches
from tilewright.runtime.cuda.memory import CudaPlanMemory, CudaPool, CudaState, Staging
from tilewright.runtime.cuda.plan_libraries import PlanLibraries
from tilewright.runtime.cuda.steps import StepRing
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.lazy import LazyArray, ready
from tilewright.runtime.interface.state import NO_STATE, PlanState
from tilewright.runtime.plan.arrays import check_repeats
from tilewright.runtime.plan.execution_plan import ExecutionPlan

MILLISECOND = 1e-3

ReplayKind = Literal["graph", "capture", "eager", "checked"]


@dataclass(frozen=True)
class PlacedAddresses:
    """Memory of the caller's in place of a plan's own: addresses of buffers (constants too) and arena."""

    buffers: Mapping[str, int]
    arena: int


class CudaPlan(Closable):
    """See `LoadedPlan`. Holds a reference to the primary context, so it may outlive its device object.

    One call at a time: threads that call it together wait for each other. Load the plan again for calls that
    shall run side by side; weights and modules are shared between loads.
    """

    def __init__(
        self,
        context: Context,
        pool: CudaPool,
        plan: ExecutionPlan,
        constants: Mapping[str, Array] | PlacedAddresses,
        *,
        replay: ReplayKind = "graph",
        communicator: AnyCommunicator | None = None,
        state: PlanState = NO_STATE,
    ) -> None:
        """communicator: see `CudaCommunications`; for a plan that communicates. state: taken over."""
        self.plan = plan
        self._context = context.again()
        self._pool = pool
        self._modules: list[bytes] = []
        self._stream: Any = None
        self._replay: GraphReplay | EagerReplay | None = None
        self._launches: list[AnyLaunch] = []
        self._libraries: PlanLibraries | None = None
        self._communications: CudaCommunications | None = None
        self._staging: Staging | None = None
        self._started: list[CopyIn] | None = None
        self._broken = False
        self._state = state
        self._lock = state.lock
        self._steps: StepRing | None = None
        self._memory: CudaPlanMemory | None = None
        try:
            with self._working():
                if isinstance(state.memory, CudaState):
                    self._stream = state.memory.stream
                else:
                    flag = int(context.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
                    self._stream = self._context.call("cuStreamCreate", flag)
                self._memory = CudaPlanMemory(self._context, pool, plan, self._stream)
                if isinstance(constants, PlacedAddresses):
                    self._memory.place(constants.buffers, constants.arena)
                else:
                    self._memory.allocate(constants, state.memory)
                self._libraries = PlanLibraries(pool.libraries, plan)
                functions = self._load_functions()
                addresses, own = self._memory.addresses, self._context
                self._communications = CudaCommunications.of(own, plan, communicator)
                self._launches = prepare_launches(
                    own, plan, functions, addresses, self._libraries, self._communications
                )
                self._replay = self._make_replay(replay)
        except BaseException:
            self.close()
            raise
        self._addresses = self._memory.addresses

    @contextmanager
    def _working(self) -> Iterator[None]:
        """The context is current and nobody else works with the plan; a driver failure marks the plan.

        Some failures poison the context for good: what then frees must not hide them.
        """
        with self._lock, self._context.current():
            self.check_open()
            try:
                yield
            except DeviceError:
                self._broken = True
                raise

    def _failed(self, error: DeviceError) -> None:
        """Note that what was queued did not run to its end."""
        self._broken = True
        if self._state.memory is not None:
            self._state.memory.lose(error)

    def _load_functions(self) -> dict[str, Any]:
        functions: dict[str, Any] = {}
        for kernel in self.plan.kernels:
            if kernel.language in ("library", "communication"):
                continue
            assert kernel.binary is not None
            doing = f"kernel {kernel.name!r}"
            load = partial(self._context.call, "cuModuleLoadData", kernel.binary, doing=doing)
            module = self._pool.modules.take(kernel.binary, load)
            self._modules.append(kernel.binary)
            functions[kernel.name] = self._context.call(
                "cuModuleGetFunction", module, kernel.entry.encode(), doing=doing
            )
        return functions

    def _make_replay(self, kind: ReplayKind) -> GraphReplay | EagerReplay:
        talking = self._communications
        wait = talking.wait if talking is not None else None
        if kind in ("graph", "capture") and (talking is None or talking.ranks.capturable):
            graph = ExplicitGraph if kind == "graph" else CapturedGraph
            return graph(self._context, self._launches, self._stream, wait)
        checked = kind == "checked"
        return EagerReplay(self._context, self._launches, self._stream, check_each_launch=checked, wait=wait)

    # Fixed buffers and replays

    @property
    def inputs(self) -> dict[str, LentArray]:
        """The fixed inputs: arrays in GPU memory that a caller may write in place through DLPack."""
        return {name: self._lent(name) for name in self.plan.inputs}

    @property
    def outputs(self) -> list[LentArray]:
        """The fixed outputs, overwritten by every replay."""
        return [self._lent(name) for name in self.plan.outputs]

    def _lent(self, name: str) -> LentArray:
        self.check_open()
        buffer = self.plan.buffer_by_name[name]
        return LentArray(self._context, buffer.dtype, buffer.shape, self._addresses[name], self)

    def replay(self, stream: int | None = None) -> None:
        """Queue one replay on the plan's stream, or on a stream of the caller's, and return at once.

        It reads the fixed inputs and writes the fixed outputs. Replays must not overlap: queue them on one
        stream, or wait between them.
        """
        assert self._replay is not None
        # Plain calls in place of `_working`: this is the path whose host time counts.
        with self._lock:
            self.check_open()
            self._context.push()
            try:
                self._replay.launch(stream)
            except DeviceError as error:
                self._failed(error)
                raise
            finally:
                self._context.pop()

    def synchronize(self) -> None:
        """Wait for everything queued on the plan's stream."""
        with self._working():
            self._wait()

    def graph_edges(self) -> list[GraphEdge]:
        """The edges between launches that the driver holds, sorted.

        Raises `DeviceError` where the plan is launched step by step and has no graph.
        """
        if not isinstance(self._replay, GraphReplay):
            raise DeviceError("this plan was loaded to be launched step by step: it has no graph")
        with self._working():
            return self._replay.edges()

    def _launch(self) -> None:
        assert self._replay is not None
        self._replay.launch()

    def _wait(self) -> None:
        if self._communications is not None:
            self._communications.wait(self._stream)
            return
        doing = f"running {len(self._launches)} kernels"
        self._context.call("cuStreamSynchronize", self._stream, doing=doing)

    # Runs

    def _fill_inputs(self, inputs: Sequence[object]) -> list[CopyIn]:
        """Queue the copies of the inputs; what they read must live until they are done."""
        steps = copies_in(self._context, self.plan, self._addresses, inputs, self._stream)
        for step in steps:
            step.start(self._context, self._stream)
        return steps

    def run(self, inputs: Sequence[object]) -> list[Array]:
        """See `LoadedPlan.run`; inputs may also be DLPack arrays on this GPU."""
        with self._working(), ExitStack() as stack:
            alive = self._fill_inputs(inputs)
            stack.enter_context(self._state.changing())
            self._launch()
            if self._communications is not None:
                # A copy to pageable memory keeps the host until it is done: no hung peer would be noticed.
                self._wait()
            outputs = []
            for name in self.plan.outputs:
                buffer = self.plan.buffer_by_name[name]
                result = np.empty(buffer.shape, DTYPES[buffer.dtype])
                if result.nbytes:
                    self._copy("cuMemcpyDtoHAsync", result.ctypes.data, self._addresses[name], result.nbytes)
                outputs.append(result)
            self._wait()
            del alive
            return outputs

    def run_on_device(self, inputs: Sequence[object]) -> list[DeviceArray]:
        """Like `run`, but the outputs stay on the GPU, each in memory of its own, and export `__dlpack__`."""
        with self._working(), ExitStack() as stack:
            alive = self._fill_inputs(inputs)
            stack.enter_context(self._state.changing())
            self._launch()
            outputs = []
            for name in self.plan.outputs:
                buffer = self.plan.buffer_by_name[name]
                result = DeviceArray(self._context, buffer.dtype, buffer.shape, f"output {name!r}")
                if result.nbytes:
                    self._copy("cuMemcpyDtoDAsync", result.address, self._addresses[name], result.nbytes)
                outputs.append(result)
            self._wait()
            del alive
            return outputs

    def _copy(self, function: str, target: int, source: int, nbytes: int) -> None:
        self._context.call(function, target, source, nbytes, self._stream)

    def start(self, inputs: Sequence[object]) -> None:
        """Queue copy-in, replay and copy-out of one batch through pinned memory, and return at once.

        `finish` waits for it. Raises `DeviceError` where a batch is under way already.
        """
        with self._working(), ExitStack() as stack:
            if self._started is not None:
                raise DeviceError("a batch is under way in this plan: finish it first")
            names = dict.fromkeys((*self.plan.inputs, *self.plan.outputs))
            if self._staging is None:
                buffers = [self.plan.buffer_by_name[name] for name in names]
                self._staging = Staging(self._context, buffers)
            steps = copies_in(self._context, self.plan, self._addresses, inputs, self._stream)
            pinned = self._staging.arrays
            for step in steps:
                if step.array is not None:
                    pinned[step.name][...] = step.array
                    source = pinned[step.name].ctypes.data
                    if step.nbytes:
                        self._copy("cuMemcpyHtoDAsync", step.target, source, step.nbytes)
                else:
                    step.start(self._context, self._stream)
            stack.enter_context(self._state.changing())
            self._launch()
            for name in dict.fromkeys(self.plan.outputs):
                target = pinned[name]
                if target.nbytes:
                    self._copy("cuMemcpyDtoHAsync", target.ctypes.data, self._addresses[name], target.nbytes)
            self._started = steps

    def finish(self) -> list[Array]:
        """Wait for the batch that `start` queued and give its outputs as fresh arrays."""
        with self._working():
            if self._started is None or self._staging is None:
                raise DeviceError("no batch is under way in this plan")
            self._started = None
            with self._state.changing():
                self._wait()
            return [self._staging.arrays[name].copy() for name in self.plan.outputs]

    def step(self, inputs: Sequence[object]) -> tuple[LazyArray, ...]:
        """See `Steps.step`: copies, replay and copies back are queued behind what is queued."""
        if self._communications is not None:
            return tuple(map(ready, self.run(inputs)))
        # Plain calls in place of `_working`: this is the path whose host time counts.
        self._lock.acquire()
        try:
            if self._closed:
                self.check_open()
            if self._state.memory is not None:
                self._state.memory.check_whole()
            self._context.push()
            try:
                if self._steps is None:
                    assert self._replay is not None
                    self._steps = StepRing(
                        self._context, self.plan, self._addresses, self._stream, self._replay, self._lock,
                        self._failed,
                    )  # fmt: skip
                return self._steps.step(inputs)
            finally:
                self._context.pop()
        finally:
            self._lock.release()

    # Timing

    def time(self, inputs: Sequence[object], repeats: int) -> list[float]:
        """See `LoadedPlan.time`: CUDA events around each replay, all queued before the first wait."""
        check_repeats(repeats)
        with self._working(), self._state.kept(), self._events(2 * repeats) as events:
            self._warm_up(inputs)
            for index in range(repeats):
                self._context.call("cuEventRecord", events[2 * index], self._stream)
                self._launch()
                self._context.call("cuEventRecord", events[2 * index + 1], self._stream)
            if self._communications is not None:
                self._communications.wait_events(events[1::2])
            self._wait()
            return self._elapsed(events)

    def time_kernels(self, inputs: Sequence[object], repeats: int) -> list[list[float]]:
        """See `LoadedPlan.time_kernels`: events around every launch, on one stream in plan order."""
        check_repeats(repeats)
        with self._working(), self._state.kept(), self._events(2 * len(self._launches)) as events:
            self._warm_up(inputs)
            columns = []
            for _ in range(repeats):
                for index, launch in enumerate(self._launches):
                    self._context.call("cuEventRecord", events[2 * index], self._stream)
                    launch.start(self._context, self._stream)
                    self._context.call("cuEventRecord", events[2 * index + 1], self._stream)
                self._wait()
                columns.append(self._elapsed(events))
            return [list(row) for row in zip(*columns, strict=True)]

    def _warm_up(self, inputs: Sequence[object]) -> None:
        alive = self._fill_inputs(inputs)
        self._launch()
        self._wait()
        del alive

    @contextmanager
    def _events(self, count: int) -> Iterator[list[Any]]:
        events: list[Any] = []
        try:
            for _ in range(count):
                events.append(self._context.call("cuEventCreate", 0))
            yield events
        finally:
            for event in events:
                self._destroy("cuEventDestroy", event)

    def _elapsed(self, events: Sequence[Any]) -> list[float]:
        pairs = zip(events[::2], events[1::2], strict=True)
        return [float(self._context.call("cuEventElapsedTime", a, b)) * MILLISECOND for a, b in pairs]

    # Release

    def _destroy(self, function: str, *handle: Any) -> None:
        """Free one thing; after a failed launch the context may be beyond use, and then freeing fails too."""
        try:
            self._context.call(function, *handle)
        except DeviceError:
            if not self._broken:
                raise

    def _release(self) -> None:
        with self._lock:
            self._destroy("cuCtxPushCurrent", self._context.handle)
            if self._communications is not None and not self._communications.drained(self._stream):
                # What still runs uses everything: the driver frees it with the process.
                self._destroy("cuCtxPopCurrent")
                return
            if self._stream is not None:
                self._destroy("cuStreamSynchronize", self._stream)
            if self._steps is not None:
                self._steps.release(self._destroy, failed=self._broken)
            if self._replay is not None:
                for function, handle in self._replay.handles():
                    self._destroy(function, handle)
            if self._communications is not None:
                self._communications.close()
            if self._libraries is not None:
                self._libraries.close()
            while self._modules:
                self._pool.modules.give_back(self._modules.pop(), partial(self._destroy, "cuModuleUnload"))
            for memory in (self._memory, self._staging):
                if memory is not None:
                    memory.release(self._destroy)
            if self._stream is not None and self._state.memory is None:
                self._destroy("cuStreamDestroy", self._stream)
            self._state.release()
            self._destroy("cuCtxPopCurrent")
            self._destroy("cuDevicePrimaryCtxRelease", self._context.device)
