"""A plan loaded on a GPU: its modules, memory, inputs and outputs, and how one replay is made and timed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilewright.runtime import dlpack
from tilewright.runtime.arrays import (
    Array,
    check_input_count,
    check_repeats,
    export_dlpack,
    host_array,
    view_dlpack,
)
from tilewright.runtime.cuda_context import Context
from tilewright.runtime.cuda_replay import GraphReplay, PreparedLaunch, StreamReplay, prepare_launches
from tilewright.runtime.device_array import DeviceArray
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.errors import DeviceError, RuntimeInputError
from tilewright.runtime.loaded import Closable
from tilewright.runtime.plan import Buffer, ExecutionPlan
from tilewright.runtime.plan_check import ALIGNMENT

MILLISECOND = 1e-3


class CudaPlan(Closable):
    """See `LoadedPlan`. Holds a reference to the primary context, so it may outlive its device object."""

    def __init__(
        self,
        context: Context,
        plan: ExecutionPlan,
        constants: Mapping[str, Array],
        *,
        graph: bool,
        check_each_launch: bool,
    ) -> None:
        self.plan = plan
        self._context = context.again()
        self._blocks: list[int] = []
        self._modules: list[Any] = []
        self._addresses: dict[str, int] = {}
        self._stream: Any = None
        self._replay: GraphReplay | StreamReplay | None = None
        self._launches: list[PreparedLaunch] = []
        self._broken = False
        try:
            with self._working():
                self._stream = self._context.call(
                    "cuStreamCreate", int(context.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
                )
                self._allocate()
                self._upload_constants(constants)
                self._launches = self._prepare()
                self._replay = (
                    GraphReplay(self._context, self._launches, self._stream)
                    if graph
                    else StreamReplay(self._context, self._launches, self._stream, check_each_launch)
                )
        except BaseException:
            self.close()
            raise

    @contextmanager
    def _working(self) -> Iterator[None]:
        """The context is current; a driver failure marks the plan, since some of them poison the context."""
        with self._context.current():
            try:
                yield
            except DeviceError:
                self._broken = True
                raise

    # Memory

    def _allocate(self) -> None:
        arena = self._new_block(self.plan.arena_bytes, "the arena")
        for kind in ("constant", "input", "output"):
            buffers = [buffer for buffer in self.plan.buffers if buffer.kind == kind]
            sizes = [-(-buffer.nbytes // ALIGNMENT) * ALIGNMENT for buffer in buffers]
            address = self._new_block(sum(sizes), f"all buffers of kind {kind}")
            for buffer, size in zip(buffers, sizes, strict=True):
                self._addresses[buffer.name] = address
                address += size
        for buffer in self.plan.buffers:
            if buffer.kind == "arena":
                self._addresses[buffer.name] = arena + buffer.offset
        for buffer in self.plan.buffers:
            if buffer.kind == "alias":
                owner, offset = self.plan.locate(buffer.name)
                self._addresses[buffer.name] = self._addresses[owner.name] + offset

    def _new_block(self, nbytes: int, what: str) -> int:
        if nbytes == 0:
            return 0
        address = self._context.allocate(nbytes, what)
        self._blocks.append(address)
        return address

    def _upload_constants(self, constants: Mapping[str, Array]) -> None:
        # On the plan's own stream: it does not wait for copies on the default stream.
        for name, array in constants.items():
            if array.nbytes:
                self._copy("cuMemcpyHtoDAsync", self._addresses[name], array.ctypes.data, array.nbytes)
        self._context.call("cuStreamSynchronize", self._stream, doing="copying the constants")

    def _copy(self, function: str, target: int, source: int, nbytes: int) -> None:
        self._context.call(function, target, source, nbytes, self._stream)

    def _prepare(self) -> list[PreparedLaunch]:
        modules: dict[bytes, Any] = {}
        functions: dict[str, Any] = {}
        for kernel in self.plan.kernels:
            assert kernel.binary is not None
            doing = f"kernel {kernel.name!r}"
            if kernel.binary not in modules:
                modules[kernel.binary] = self._context.call("cuModuleLoadData", kernel.binary, doing=doing)
                self._modules.append(modules[kernel.binary])
            functions[kernel.name] = self._context.call(
                "cuModuleGetFunction", modules[kernel.binary], kernel.entry.encode(), doing=doing
            )
        return prepare_launches(self._context, self.plan, functions, self._addresses)

    # Inputs and outputs

    def _fill_inputs(self, inputs: Sequence[object]) -> None:
        check_input_count(self.plan, inputs)
        # Everything is checked before the first copy, and exporters live until the copies are done.
        steps = [
            self._input_step(value, self.plan.buffer_by_name[name])
            for name, value in zip(self.plan.inputs, inputs, strict=True)
        ]
        for function, address, source, nbytes, _ in steps:
            if nbytes:
                self._copy(function, address, source, nbytes)
        self._context.call("cuStreamSynchronize", self._stream, doing="copying the inputs")

    def _input_step(self, value: Any, buffer: Buffer) -> tuple[str, int, int, int, object]:
        """The copy that fills `buffer`: driver function, target, source, bytes, and what must stay alive."""
        nbytes = buffer.size * DTYPES[buffer.dtype].itemsize
        address = self._addresses[buffer.name]
        kind, index = dlpack.CPU, 0
        if hasattr(value, "__dlpack_device__") and not isinstance(value, np.ndarray | np.generic):
            kind, index = (int(part) for part in value.__dlpack_device__())
        if kind not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
            array = host_array(value, buffer, "input")
            return "cuMemcpyHtoDAsync", address, array.ctypes.data, nbytes, array
        if kind == dlpack.CUDA and index != self._context.ordinal:
            raise RuntimeInputError(
                f"input {buffer.name!r}: expected an array on GPU {self._context.ordinal}, "
                f"got one on GPU {index}"
            )
        # The producer makes our stream wait for whatever still writes the array.
        capsule = export_dlpack(value, buffer, "input", stream=int(self._stream))
        view = view_dlpack(capsule, buffer, "input")
        if view.is_dense or nbytes == 0:
            return "cuMemcpyDtoDAsync", address, view.address, nbytes, capsule
        array = self._gather(view)
        return "cuMemcpyHtoDAsync", address, array.ctypes.data, nbytes, array

    def _gather(self, view: dlpack.TensorView) -> Array:
        """A dense host copy of a strided device array; its whole span travels once."""
        low, nbytes = view.byte_span()
        span = np.empty(nbytes, np.uint8)
        self._copy("cuMemcpyDtoHAsync", span.ctypes.data, view.address + low, nbytes)
        self._context.call("cuStreamSynchronize", self._stream)
        return np.array(view.gather(span), order="C", copy=True)

    def run(self, inputs: Sequence[object]) -> list[Array]:
        """See `LoadedPlan.run`; inputs may also be DLPack arrays on this GPU."""
        self.check_open()
        with self._working():
            self._fill_inputs(inputs)
            self._run_once()
            outputs = []
            for name in self.plan.outputs:
                buffer = self.plan.buffer_by_name[name]
                result = np.empty(buffer.shape, DTYPES[buffer.dtype])
                if result.nbytes:
                    source = self._addresses[name]
                    self._context.call("cuMemcpyDtoH", result.ctypes.data, source, result.nbytes, doing=name)
                outputs.append(result)
            return outputs

    def run_on_device(self, inputs: Sequence[object]) -> list[DeviceArray]:
        """Like `run`, but the outputs stay on the GPU, each in memory of its own, and export `__dlpack__`."""
        self.check_open()
        with self._working():
            self._fill_inputs(inputs)
            self._run_once()
            outputs = []
            for name in self.plan.outputs:
                buffer = self.plan.buffer_by_name[name]
                result = DeviceArray(self._context, buffer.dtype, buffer.shape, f"output {name!r}")
                if result.nbytes:
                    self._copy("cuMemcpyDtoDAsync", result.address, self._addresses[name], result.nbytes)
                outputs.append(result)
            self._context.call("cuStreamSynchronize", self._stream, doing="copying the outputs")
            return outputs

    def _launch(self) -> None:
        assert self._replay is not None
        self._replay.launch()

    def _run_once(self) -> None:
        self._launch()
        self._context.call(
            "cuStreamSynchronize", self._stream, doing=f"running {len(self._launches)} kernels"
        )

    # Timing

    def time(self, inputs: Sequence[object], repeats: int) -> list[float]:
        """See `LoadedPlan.time`: CUDA events around each replay, all queued before the first wait."""
        check_repeats(repeats)
        self.check_open()
        with self._working(), self._events(2 * repeats) as events:
            self._fill_inputs(inputs)
            self._run_once()
            for index in range(repeats):
                self._context.call("cuEventRecord", events[2 * index], self._stream)
                self._launch()
                self._context.call("cuEventRecord", events[2 * index + 1], self._stream)
            self._context.call("cuStreamSynchronize", self._stream, doing="timing the plan")
            return self._elapsed(events)

    def time_kernels(self, inputs: Sequence[object], repeats: int) -> list[list[float]]:
        """See `LoadedPlan.time_kernels`: events around every launch, on one stream in plan order."""
        check_repeats(repeats)
        self.check_open()
        with self._working(), self._events(2 * len(self._launches)) as events:
            self._fill_inputs(inputs)
            self._run_once()
            columns = []
            for _ in range(repeats):
                for index, launch in enumerate(self._launches):
                    self._context.call("cuEventRecord", events[2 * index], self._stream)
                    launch.start(self._context, self._stream)
                    self._context.call("cuEventRecord", events[2 * index + 1], self._stream)
                self._context.call("cuStreamSynchronize", self._stream, doing="timing the kernels")
                columns.append(self._elapsed(events))
            return [list(row) for row in zip(*columns, strict=True)]

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
        self._destroy("cuCtxPushCurrent", self._context.handle)
        if self._stream is not None:
            self._destroy("cuStreamSynchronize", self._stream)
        if self._replay is not None:
            for function, handle in self._replay.handles():
                self._destroy(function, handle)
        for module in self._modules:
            self._destroy("cuModuleUnload", module)
        for address in self._blocks:
            self._destroy("cuMemFree", address)
        if self._stream is not None:
            self._destroy("cuStreamDestroy", self._stream)
        self._destroy("cuCtxPopCurrent")
        self._destroy("cuDevicePrimaryCtxRelease", self._context.device)
