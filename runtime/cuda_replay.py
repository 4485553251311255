"""Two ways to run a plan's launches on a GPU: one CUDA graph with its edges, or stream by stream."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.runtime.cuda_context import Context
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.plan import ExecutionPlan, Launch

SHARED_BYTES_WITHOUT_OPT_IN = 48 << 10


@dataclass(frozen=True)
class PreparedLaunch:
    """A launch with its function and its parameters as the driver wants them: pointers to values."""

    launch: Launch
    function: Any
    values: ctypes.Array[ctypes.c_uint64] = field(repr=False)
    pointers: ctypes.Array[ctypes.c_void_p] = field(repr=False)
    doing: str

    def parameters(self) -> int:
        """The address of the pointer array, valid while this object lives."""
        return ctypes.addressof(self.pointers)

    def start(self, context: Context, stream: Any) -> None:
        """Launch the kernel on `stream`."""
        launch = self.launch
        context.call(
            "cuLaunchKernel", self.function, *launch.grid, launch.block, 1, 1, launch.shared_bytes,
            stream, self.parameters(), 0, doing=self.doing,
        )  # fmt: skip


def prepare_launches(
    context: Context, plan: ExecutionPlan, functions: Mapping[str, Any], addresses: Mapping[str, int]
) -> list[PreparedLaunch]:
    """Fix every launch's parameters, check them against the kernel and opt in to large shared memory."""
    prepared = []
    for index, launch in enumerate(plan.launches):
        origin = f" for {', '.join(launch.origin)}" if launch.origin else ""
        doing = f"launch {index} of kernel {launch.kernel!r}{origin}"
        count = len(launch.args)
        values = (ctypes.c_uint64 * max(1, count))(*(addresses[name] for name in launch.args))
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * max(1, count))(*(first + 8 * position for position in range(count)))
        prepared.append(PreparedLaunch(launch, functions[launch.kernel], values, pointers, doing))
        _check_function(context, prepared[-1])
    _opt_in_to_shared_memory(context, prepared)
    return prepared


def _check_function(context: Context, prepared: PreparedLaunch) -> None:
    launch, function, doing = prepared.launch, prepared.function, prepared.doing
    attribute = context.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
    threads = context.call("cuFuncGetAttribute", attribute, function, doing=doing)
    if launch.block > threads:
        raise DeviceError(
            f"{doing} asks for {launch.block} threads per block; the kernel runs with {threads}"
        )
    # A kernel reads as many parameters as it has, so a wrong count would hand it stray memory.
    ok, count = context.api.CUresult.CUDA_SUCCESS, len(launch.args)
    sizes = [context.api.cuFuncGetParamInfo(function, position) for position in range(count + 1)]
    if any(status != ok or size != 8 for status, _, size in sizes[:count]) or sizes[count][0] == ok:
        raise DeviceError(f"{doing}: the kernel does not take {count} pointers")


def _opt_in_to_shared_memory(context: Context, launches: Sequence[PreparedLaunch]) -> None:
    key = context.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    largest: dict[str, PreparedLaunch] = {}
    for prepared in launches:
        name = prepared.launch.kernel
        known = largest.get(name)
        if known is None or known.launch.shared_bytes < prepared.launch.shared_bytes:
            largest[name] = prepared
    for prepared in largest.values():
        nbytes = prepared.launch.shared_bytes
        if nbytes > SHARED_BYTES_WITHOUT_OPT_IN:
            context.call(
                "cuFuncSetAttribute", prepared.function, key, nbytes,
                doing=f"{prepared.doing} asks for {nbytes} bytes of shared memory",
            )  # fmt: skip


class GraphReplay:
    """The launches as one instantiated CUDA graph, whose edges are exactly the plan's dependencies."""

    def __init__(self, context: Context, launches: Sequence[PreparedLaunch], stream: Any) -> None:
        self._context = context
        self._stream = stream
        self._graph = context.call("cuGraphCreate", 0)
        self._executable: Any = None
        try:
            self._add_nodes(launches)
            self._executable = context.call("cuGraphInstantiate", self._graph, 0)
            context.call("cuGraphUpload", self._executable, stream)
        except BaseException:
            for function, handle in self.handles():
                context.call(function, handle)
            raise

    def _add_nodes(self, launches: Sequence[PreparedLaunch]) -> None:
        nodes: list[Any] = []
        for prepared in launches:
            launch = prepared.launch
            parameters = self._context.api.CUDA_KERNEL_NODE_PARAMS()
            parameters.func = prepared.function
            parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = launch.grid
            parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = launch.block, 1, 1
            parameters.sharedMemBytes = launch.shared_bytes
            parameters.kernelParams = prepared.parameters()
            before = [nodes[dep] for dep in launch.deps]
            # The driver copies the parameter values while it adds the node.
            nodes.append(
                self._context.call(
                    "cuGraphAddKernelNode", self._graph, before, len(before), parameters, doing=prepared.doing
                )
            )

    def launch(self) -> None:
        """Queue one replay on the plan's stream."""
        self._context.call("cuGraphLaunch", self._executable, self._stream)

    def handles(self) -> Iterator[tuple[str, Any]]:
        """What has to be destroyed, each with the driver function that does it."""
        if self._executable is not None:
            yield "cuGraphExecDestroy", self._executable
        yield "cuGraphDestroy", self._graph


class StreamReplay:
    """The launches one by one on the plan's streams, ordered across streams by events.

    With `check_each_launch` everything runs on one stream, and each launch is waited for.
    """

    def __init__(
        self, context: Context, launches: Sequence[PreparedLaunch], stream: Any, check_each_launch: bool
    ) -> None:
        self._context = context
        self._launches = launches
        self._check = check_each_launch
        self._streams: dict[int, Any] = {}
        self._own: list[tuple[str, Any]] = []
        self._main = stream
        try:
            self._create()
        except BaseException:
            for function, handle in self.handles():
                context.call(function, handle)
            raise

    def _create(self) -> None:
        numbers = sorted({prepared.launch.stream for prepared in self._launches})
        flag = int(self._context.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        for number in numbers:
            if number == numbers[0] or self._check:
                self._streams[number] = self._main
            else:
                self._streams[number] = self._context.call("cuStreamCreate", flag)
                self._own.append(("cuStreamDestroy", self._streams[number]))
        self._begin = self._new_event()
        self._done = {index: self._new_event() for index in self._awaited()}

    def _new_event(self) -> Any:
        flag = int(self._context.api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        event = self._context.call("cuEventCreate", flag)
        self._own.append(("cuEventDestroy", event))
        return event

    def _stream_of(self, index: int) -> int:
        return self._launches[index].launch.stream

    def _awaited(self) -> set[int]:
        """Launches another stream waits for: dependencies across streams, and each stream's last launch."""
        if self._check:
            return set()
        last = {prepared.launch.stream: index for index, prepared in enumerate(self._launches)}
        across = {
            dep
            for index, prepared in enumerate(self._launches)
            for dep in prepared.launch.deps
            if self._stream_of(dep) != self._stream_of(index)
        }
        return across | {index for number, index in last.items() if self._streams[number] is not self._main}

    def launch(self) -> None:
        """Queue one replay; the plan's stream sees its end."""
        call = self._context.call
        call("cuEventRecord", self._begin, self._main)
        side_streams = [s for s in self._streams.values() if s is not self._main]
        for stream in side_streams:
            call("cuStreamWaitEvent", stream, self._begin, 0)
        for index, prepared in enumerate(self._launches):
            number = prepared.launch.stream
            stream = self._streams[number]
            for dep in prepared.launch.deps:
                if dep in self._done and self._stream_of(dep) != number:
                    call("cuStreamWaitEvent", stream, self._done[dep], 0, doing=prepared.doing)
            prepared.start(self._context, stream)
            if index in self._done:
                call("cuEventRecord", self._done[index], stream, doing=prepared.doing)
            if self._check:
                call("cuStreamSynchronize", stream, doing=prepared.doing)
        for index, event in self._done.items():
            if self._streams[self._stream_of(index)] is not self._main:
                call("cuStreamWaitEvent", self._main, event, 0)

    def handles(self) -> Iterator[tuple[str, Any]]:
        """What has to be destroyed, each with the driver function that does it."""
        yield from reversed(self._own)
