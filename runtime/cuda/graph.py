"""CUDA graphs ahead of time, of explicit nodes and edges or captured from streams; one call replays them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.cuda.communication import CommunicationLaunch, urgent_stream
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.cuda.eager import EagerReplay, Wait, synchronise
from tilewright.runtime.cuda.launch import AnyLaunch, LibraryLaunch, PreparedLaunch


@dataclass(frozen=True)
class GraphEdge:
    """Node `after` runs after node `before` (positions of nodes in the order they were added).

    programmatic: `after` may start earlier, and waits itself for the end of `before`.
    """

    before: int
    after: int
    programmatic: bool = False


@dataclass(frozen=True)
class GraphCopy:
    """A copy that is a node beside the launches: bytes between addresses, of which one may be pinned memory.

    launches: those that wait for it, of a copy that brings inputs; those it waits for, of one of an output.
    """

    target: int
    source: int
    nbytes: int
    launches: tuple[int, ...]
    from_host: bool = False
    to_host: bool = False


Queue = Callable[[Context, Any], None]
#: the version of CUDA whose edges have records, the bytes of a record, and the place of the kind in it
_EDGES_SINCE, _EDGE_BYTES, _EDGE_KIND = 12030, 8, 2
#: launches that are what somebody else queues on a stream
_Queued = LibraryLaunch | CommunicationLaunch


class GraphReplay:
    """An instantiated CUDA graph, uploaded to the device. Subclasses make the graph."""

    def __init__(
        self, context: Context, launches: Sequence[AnyLaunch], stream: Any, wait: Wait | None = None
    ) -> None:
        """wait: in place of the driver's own, which could last for ever where launches communicate."""
        self._context = context
        self._wait = wait or synchronise(context)
        self._launches = launches
        self._stream = stream
        self._graph: Any = None
        self._executable: Any = None
        try:
            self._warm_up()
            self._graph = self._make()
            self._executable = context.call("cuGraphInstantiate", self._graph, self._flags())
            context.call("cuGraphUpload", self._executable, stream)
        except BaseException:
            for function, handle in self.handles():
                context.call(function, handle)
            raise

    def _warm_up(self) -> None:
        """Run what libraries launch once: they load their kernels at the first call, which captures forbid.

        So do GPUs that communicate: then they connect. All ranks do it, in the order of their plans. Nothing
        reads what this writes: results and the arena are overwritten by every replay.
        """
        queued = [prepared for prepared in self._launches if isinstance(prepared, _Queued)]
        for prepared in queued:
            prepared.start(self._context, self._stream)
        if queued:
            self._wait(self._stream, "the first calls of libraries")

    def _flags(self) -> int:
        """Communications keep the priority of the stream that they were captured from."""
        if not any(isinstance(prepared, CommunicationLaunch) for prepared in self._launches):
            return 0
        flags = self._context.api.CUgraphInstantiate_flags
        return int(flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

    def _make(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__} makes no graph")

    def launch(self, stream: Any = None) -> None:
        """Queue one replay on `stream` (default: the plan's)."""
        self._context.call("cuGraphLaunch", self._executable, self._stream if stream is None else stream)

    def edges(self) -> list[GraphEdge]:
        """The edges the driver holds, sorted; the context must be current."""
        nodes, count = self._context.call("cuGraphGetNodes", self._graph, 0)
        nodes, count = self._context.call("cuGraphGetNodes", self._graph, count)
        place = {int(node): index for index, node in enumerate(nodes[:count])}
        edges = [
            GraphEdge(place[u], place[v], kind != 0) for u, v, kind in edges_of(self._context, self._graph)
        ]
        return sorted(edges, key=lambda e: (e.before, e.after))

    def handles(self) -> Iterator[tuple[str, Any]]:
        """The handles that have to be destroyed, each with the driver function that does it."""
        if self._executable is not None:
            yield "cuGraphExecDestroy", self._executable
        if self._graph is not None:
            yield "cuGraphDestroy", self._graph


class ExplicitGraph(GraphReplay):
    """One node per launch, and exactly the plan's dependencies as edges.

    A launch of a library is a child graph of what the library queues, captured from the plan's stream. So is
    a communication, from an urgent stream; the order among communications is part of the dependencies.
    An edge between two kernels that both overlap is programmatic: the later one is launched while the earlier
    one still runs, and waits for its end itself (sm_90 and newer).
    """

    def with_copies(self, arrival: GraphCopy | None, outputs: Sequence[GraphCopy]) -> Any:
        """The same work between copies, as one more executable graph, which the caller has to destroy.

        What no launch writes is copied out once the inputs have arrived.
        """
        context, call = self._context, self._context.call
        graph = call("cuGraphClone", self._graph)
        try:
            first = []
            if arrival is not None:
                first = [call("cuGraphAddMemcpyNode", graph, [], 0, self._copy(arrival), context.handle)]
                after = [self._clone(graph, index) for index in arrival.launches]
                if after:
                    edges = [self._edge(False) for _ in after]
                    call("cuGraphAddDependencies", graph, first * len(after), after, edges, len(after))
            for copy in outputs:
                before = [self._clone(graph, index) for index in copy.launches] or first
                call("cuGraphAddMemcpyNode", graph, before, len(before), self._copy(copy), context.handle)
            executable = call("cuGraphInstantiate", graph, self._flags())
        finally:
            call("cuGraphDestroy", graph)
        try:
            call("cuGraphUpload", executable, self._stream)
        except BaseException:
            call("cuGraphExecDestroy", executable)
            raise
        return executable

    def _clone(self, graph: Any, index: int) -> Any:
        """The node of a launch in a clone of the graph."""
        return self._context.call("cuGraphNodeFindInClone", self._nodes[index], graph)

    def _copy(self, copy: GraphCopy) -> Any:
        """A copy as the driver wants it: a box of one row."""
        kinds = self._context.api.CUmemorytype
        box = self._context.api.CUDA_MEMCPY3D()
        box.WidthInBytes, box.Height, box.Depth = copy.nbytes, 1, 1
        box.srcPitch, box.srcHeight = box.dstPitch, box.dstHeight = copy.nbytes, 1
        if copy.from_host:
            box.srcMemoryType, box.srcHost = kinds.CU_MEMORYTYPE_HOST, copy.source
        else:
            box.srcMemoryType, box.srcDevice = kinds.CU_MEMORYTYPE_DEVICE, copy.source
        if copy.to_host:
            box.dstMemoryType, box.dstHost = kinds.CU_MEMORYTYPE_HOST, copy.target
        else:
            box.dstMemoryType, box.dstDevice = kinds.CU_MEMORYTYPE_DEVICE, copy.target
        return box

    def _make(self) -> Any:
        graph = self._context.call("cuGraphCreate", 0)
        nodes = self._nodes = [self._node(graph, prepared) for prepared in self._launches]
        before, after, data = [], [], []
        for index, prepared in enumerate(self._launches):
            for dep in prepared.launch.deps:
                before.append(nodes[dep])
                after.append(nodes[index])
                data.append(self._edge(prepared.overlaps and self._launches[dep].overlaps))
        if before:
            self._context.call("cuGraphAddDependencies", graph, before, after, data, len(before))
        return graph

    def _node(self, graph: Any, prepared: AnyLaunch) -> Any:
        if isinstance(prepared, _Queued):
            return self._child(graph, prepared)
        return self._kernel(graph, prepared)

    def _child(self, graph: Any, prepared: _Queued) -> Any:
        call = self._context.call
        urgent = urgent_stream(self._context) if isinstance(prepared, CommunicationLaunch) else None
        try:
            child = captured(
                self._context, self._stream if urgent is None else urgent, prepared.start, prepared.doing
            )
            try:
                # The driver clones the child while it adds the node.
                return call("cuGraphAddChildGraphNode", graph, [], 0, child, doing=prepared.doing)
            finally:
                call("cuGraphDestroy", child)
        finally:
            if urgent is not None:
                call("cuStreamDestroy", urgent)

    def _kernel(self, graph: Any, prepared: PreparedLaunch) -> Any:
        launch = prepared.launch
        parameters = self._context.api.CUDA_KERNEL_NODE_PARAMS()
        parameters.func = prepared.function
        parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ = launch.grid
        parameters.blockDimX, parameters.blockDimY, parameters.blockDimZ = launch.block, 1, 1
        parameters.sharedMemBytes = launch.shared_bytes
        parameters.kernelParams = prepared.parameters()
        # The driver copies the parameter values while it adds the node.
        return self._context.call("cuGraphAddKernelNode", graph, [], 0, parameters, doing=prepared.doing)

    def _edge(self, programmatic: bool) -> Any:
        api = self._context.api
        edge = api.CUgraphEdgeData()
        if programmatic:
            edge.type = int(api.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
            edge.from_port = 1  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, a macro the bindings leave out
        return edge


class CapturedGraph(GraphReplay):
    """The work of one stream-by-stream run, captured: for steps that only a library can launch.

    The driver keeps the order within streams and the waits between them, so the closure of its edges is that
    of the plan wherever the plan's streams are chains of its dependencies.
    """

    def _make(self) -> Any:
        context = self._context
        eager = EagerReplay(context, self._launches, self._stream)
        try:
            return captured(context, self._stream, lambda _, s: eager.launch(s), "the whole plan")
        finally:
            for function, handle in eager.handles():
                context.call(function, handle)


def captured(context: Context, stream: Any, queue: Queue, doing: str) -> Any:
    """The graph of what `queue(context, stream)` queues on the stream; nothing of it runs."""
    mode = context.api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
    context.call("cuStreamBeginCapture", stream, mode, doing=doing)
    try:
        queue(context, stream)
    except BaseException:
        # Ends the capture; its status can only repeat the failure that is being reported.
        context.api.cuStreamEndCapture(stream)
        raise
    return context.call("cuStreamEndCapture", stream, doing=doing)


def edges_of(context: Context, graph: Any) -> list[tuple[int, int, int]]:
    """The handles of the nodes of every edge that the driver holds, and its kind: 0 where it is a plain one.

    The driver is asked without the bindings, whose records of edges lie in memory that they have freed
    (issue 1804 of NVIDIA/cuda-python).
    """
    address, _ = context.call("cuGetProcAddress", b"cuGraphGetEdges", _EDGES_SINCE, 0)
    ask = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 5)(int(address))
    count = ctypes.c_size_t(0)

    def asked(*arrays: Any) -> None:
        if status := ask(int(graph), *arrays, ctypes.addressof(count)):
            raise context.failure("cuGraphGetEdges", context.api.CUresult(status))

    asked(None, None, None)
    before, after = ((ctypes.c_uint64 * count.value)() for _ in range(2))
    data = (ctypes.c_uint8 * (_EDGE_BYTES * count.value))()
    asked(before, after, data)
    return list(zip(before, after, data[_EDGE_KIND::_EDGE_BYTES], strict=True))
