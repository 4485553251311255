"""Launches as the driver wants them: functions, parameters, limits, checked once ahead of time."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tilewright.runtime.cuda.carve_out import keep_carve_out
from tilewright.runtime.cuda.communication import CommunicationLaunch, CudaCommunications
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.cuda.plan_libraries import PlanLibraries
from tilewright.runtime.cuda.tensor_maps import MAP_BYTES, MapMemory
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.libraries.provider import PreparedCall
from tilewright.runtime.plan.execution_plan import NO_CLUSTER, ExecutionPlan, Launch, describe_launch

SHARED_BYTES_WITHOUT_OPT_IN = 48 << 10
#: blocks of a cluster that every device with clusters runs; others ask for more
PORTABLE_CLUSTER = 8


@dataclass(frozen=True)
class PreparedLaunch:
    """A launch with its function and its parameters: pointers to values, addresses first, then tensor maps.

    overlaps: the kernel waits itself for those before it, so it may start before they have ended.
    """

    launch: Launch
    function: Any
    values: ctypes.Array[ctypes.c_uint64] = field(repr=False)
    maps: MapMemory | None = field(repr=False)
    pointers: ctypes.Array[ctypes.c_void_p] = field(repr=False)
    doing: str
    overlaps: bool = False

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


@dataclass(frozen=True)
class LibraryLaunch:
    """A launch that a library queues: whatever kernels it takes, on the stream it is given."""

    launch: Launch
    queued: PreparedCall
    doing: str
    overlaps: bool = False

    def start(self, context: Context, stream: Any) -> None:
        """Queue the library's kernels on `stream`."""
        self.queued.start(int(stream))


AnyLaunch = PreparedLaunch | LibraryLaunch | CommunicationLaunch


def prepare_launches(
    context: Context,
    plan: ExecutionPlan,
    functions: Mapping[str, Any],
    addresses: Mapping[str, int],
    libraries: PlanLibraries,
    communications: CudaCommunications | None = None,
) -> list[AnyLaunch]:
    """Fix every launch's parameters, check them against the kernel and opt in to large shared memory.

    communications: those of a plan that has some.
    """
    prepared: list[AnyLaunch] = []
    own: list[PreparedLaunch] = []
    for index, launch in enumerate(plan.launches):
        doing = describe_launch(index, launch)
        language = plan.kernel_by_name[launch.kernel].language
        if language == "communication" and communications is not None:
            prepared.append(communications.launch(index, launch, addresses, doing))
            continue
        if language == "library":
            queued = libraries.prepare(launch, addresses, doing)
            prepared.append(LibraryLaunch(launch, queued, doing))
            continue
        count = len(launch.args)
        values = (ctypes.c_uint64 * max(1, count))(*(addresses[name] for name in launch.args))
        maps = MapMemory.of(context, launch, addresses, doing)
        first = ctypes.addressof(values)
        places = [*(first + 8 * position for position in range(count)), *(maps.places if maps else ())]
        pointers = (ctypes.c_void_p * max(1, len(places)))(*places)
        overlaps = plan.kernel_by_name[launch.kernel].overlaps
        function = functions[launch.kernel]
        own.append(PreparedLaunch(launch, function, values, maps, pointers, doing, overlaps))
        prepared.append(own[-1])
        _check_function(context, own[-1])
    _opt_in_to_shared_memory(context, own)
    keep_carve_out(context, plan, {one.launch.kernel: one.function for one in own}.values())
    if communications is not None:
        # The driver may load code at the first launch, when all that runs has ended: not before a message
        # that waits for another GPU has come, which may do the same.
        for one in own:
            context.call("cuFuncLoad", one.function, doing=one.doing)
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
    ok, pointers, maps = context.api.CUresult.CUDA_SUCCESS, len(launch.args), len(launch.maps)
    expected = [8] * pointers + [MAP_BYTES] * maps
    sizes = [context.api.cuFuncGetParamInfo(function, position) for position in range(len(expected) + 1)]
    taken = [size for status, _, size in sizes[:-1] if status == ok]
    if taken != expected or sizes[-1][0] == ok:
        also = f" and {maps} tensor maps" if maps else ""
        raise DeviceError(f"{doing}: the kernel does not take {pointers} pointers{also}")
    if tuple(launch.cluster) != NO_CLUSTER:
        _check_cluster(context, prepared)


def _check_cluster(context: Context, prepared: PreparedLaunch) -> None:
    """Raise unless the kernel's own text asks for the clusters of its launch.

    The driver starts a kernel with the clusters that its text names, by a call, in a graph and in a capture.
    """
    kinds = context.api.CUfunction_attribute
    keys = [getattr(kinds, f"CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_{n}") for n in ("WIDTH", "HEIGHT", "DEPTH")]
    own = tuple(
        int(context.call("cuFuncGetAttribute", key, prepared.function, doing=prepared.doing)) for key in keys
    )
    if own != tuple(prepared.launch.cluster):
        raise DeviceError(
            f"{prepared.doing} asks for clusters of {tuple(prepared.launch.cluster)} blocks; "
            f"the kernel runs in clusters of {own}"
        )
    if prod(own) > PORTABLE_CLUSTER:
        context.call(
            "cuFuncSetAttribute", prepared.function,
            kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1,
            doing=f"{prepared.doing} asks for a cluster of {prod(own)} blocks",
        )  # fmt: skip


def _opt_in_to_shared_memory(context: Context, launches: Sequence[PreparedLaunch]) -> None:
    attributes = context.api.CUfunction_attribute
    key = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    largest: dict[str, PreparedLaunch] = {}
    for prepared in launches:
        name = prepared.launch.kernel
        known = largest.get(name)
        if known is None or known.launch.shared_bytes < prepared.launch.shared_bytes:
            largest[name] = prepared
    for prepared in largest.values():
        nbytes = prepared.launch.shared_bytes
        if not nbytes:
            continue
        # What the text declares counts as well: a kernel may ask for little beside much of that.
        declared = context.call(
            "cuFuncGetAttribute", attributes.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, prepared.function,
            doing=prepared.doing,
        )  # fmt: skip
        if declared + nbytes > SHARED_BYTES_WITHOUT_OPT_IN:
            context.call(
                "cuFuncSetAttribute", prepared.function, key, nbytes,
                doing=f"{prepared.doing} asks for {nbytes} bytes of shared memory",
            )  # fmt: skip
