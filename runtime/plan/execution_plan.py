"""The execution plan: frozen plain data that says which kernels run on which bytes in which order.

Devices (`tilewright.runtime.interface.device`) load and replay it; `tilewright.runtime.plan.check` says if it
is well-formed, `tilewright.runtime.plan.json_form` reads and writes it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from tilewright.runtime.dag import Dag
from tilewright.runtime.plan.tensor_map import LaunchMap

#: the version of plans without state, which programs before state read as well
FORMAT_VERSION = 1
#: the version of plans with state
STATE_VERSION = 2
#: the version of plans in which a launch has tensor maps or clusters
MAPS_VERSION = 3
#: the cluster of a launch whose blocks run each by itself
NO_CLUSTER = (1, 1, 1)

BufferKind = Literal["input", "output", "constant", "state", "arena", "alias"]
Language = Literal["cuda", "opencl", "library", "communication"]
BUFFER_KINDS: tuple[str, ...] = get_args(BufferKind)
LANGUAGES: tuple[str, ...] = get_args(Language)


@dataclass(frozen=True)
class Buffer:
    """A named tensor in device memory, row-major and dense.

    `nbytes` is at least the tensor's size. `offset` counts bytes: inside the arena for `arena`, inside the
    buffer `base` for `alias`; it is 0 for the other kinds, whose memory the device allocates apart.
    `label` is what the network calls an input, constant or state, where that is no name that a plan can hold.
    Memory of kind `state` keeps its content between runs. Its name stands for what a run finds there; its
    alias (one, of all of it) is the new value, which one launch writes once everything has read the old one.
    An alias with `strides` (elements, those of the base's row-major shape) is no dense array but the box of
    its shape inside its base, whose first element lies `start` elements after `offset`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: BufferKind
    nbytes: int
    offset: int = 0
    base: str = ""
    strides: tuple[int, ...] = ()
    start: int = 0
    label: str = ""

    @property
    def title(self) -> str:
        """The name that users know: the network's own."""
        return self.label or self.name

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class KernelResources:
    """Resources of one kernel on a GPU: registers and spilled bytes per thread, shared bytes per block."""

    registers: int
    spill_bytes: int
    shared_bytes: int


@dataclass(frozen=True)
class KernelContract:
    """The launch that a kernel's text was made for: all have this grid, block and dynamic shared memory.

    spans: per argument the bytes from its begin that the kernel may touch; writes: positions it writes.
    maps, cluster: those of `Launch`.
    """

    grid: tuple[int, int, int]
    block: int
    shared_bytes: int
    spans: tuple[int, ...]
    writes: tuple[int, ...]
    maps: tuple[LaunchMap, ...] = field(default=(), metadata={"optional": True})
    cluster: tuple[int, int, int] = field(default=NO_CLUSTER, metadata={"optional": True})


@dataclass(frozen=True)
class KernelCode:
    """One kernel's source and, where it was built ahead of time, its binary (a CUBIN for `arch`).

    Of language `library`, `source` is a `tilewright.runtime.libraries.kernel.LibraryKernel` as JSON: the
    device hands its launches (one block of one thread; the last argument is the workspace) to that library.
    Of language `communication`, it is a `tilewright.runtime.plan.communication_kernel.CommunicationKernel`:
    the device hands its launches (one block of one thread) to its communicator, in the order of the plan.

    `overlaps`: it waits itself for the launches it depends on before it touches memory that they write or
    read, so it may start before they have ended: edges between such kernels may be programmatic.
    `releases`: it lets launches that may start early do so before it ends; its launches fit beside theirs.
    `contract`: what its launches must be, where the text was emitted for one way of launching it.
    """

    name: str
    entry: str
    language: Language
    source: str
    binary: bytes | None = field(default=None, repr=False)
    arch: str = ""
    resources: KernelResources | None = None
    overlaps: bool = False
    contract: KernelContract | None = None
    releases: bool = False


@dataclass(frozen=True)
class Launch:
    """One run of a kernel: buffers in parameter order, blocks (work-groups), threads (work-items) per block.

    `deps` are indices of earlier launches that must have finished; `stream` is a hint for eager replay and
    orders nothing by itself. `writes` are the positions in `args` that the kernel writes (and may read).
    `shared_bytes` is dynamic shared memory. `origin` names the network's ops the kernel comes from.
    `in_place` are pairs of positions (read, written): each thread reads only those elements of the one that
    it later writes of the other, so the two may share bytes (of several pairs with one buffer, one may).
    `maps` are the tensor maps that the kernel takes behind its arguments, in order: ways to read or write
    some of these. `cluster` counts the blocks along x, y, z that run together and see each other's shared
    memory; the text of the kernel says it too.
    """

    kernel: str
    args: tuple[str, ...]
    grid: tuple[int, int, int]
    block: int
    shared_bytes: int = 0
    deps: tuple[int, ...] = ()
    stream: int = 0
    origin: tuple[str, ...] = ()
    writes: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    maps: tuple[LaunchMap, ...] = ()
    cluster: tuple[int, int, int] = NO_CLUSTER


def version_for(buffers: Sequence[Buffer], launches: Sequence[Launch]) -> int:
    """The lowest format version that says all that these buffers and launches say."""
    if any(launch.maps or tuple(launch.cluster) != NO_CLUSTER for launch in launches):
        return MAPS_VERSION
    return STATE_VERSION if any(b.kind == "state" for b in buffers) else FORMAT_VERSION


@dataclass(frozen=True)
class PlanFault:
    """A fault of a plan, and the part that has it: `part` is its field, `index` the place in that field.

    `part` is `kernels`, `buffers` or `launches`, and empty for what is wrong with the plan as a whole.
    """

    text: str
    part: str = ""
    index: int = 0

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class ExecutionPlan:
    """Buffers, kernels and launches of one compiled network; `launches` is in a topological order."""

    target: str
    buffers: tuple[Buffer, ...]
    kernels: tuple[KernelCode, ...]
    launches: tuple[Launch, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    arena_bytes: int
    format_version: int = FORMAT_VERSION

    @cached_property
    def buffer_by_name(self) -> Mapping[str, Buffer]:
        return {buffer.name: buffer for buffer in self.buffers}

    @cached_property
    def kernel_by_name(self) -> Mapping[str, KernelCode]:
        return {kernel.name: kernel for kernel in self.kernels}

    @property
    def input_titles(self) -> tuple[str, ...]:
        """The network's own names of the inputs, in calling order."""
        return tuple(self.buffer_by_name[name].title for name in self.inputs)

    @cached_property
    def states(self) -> tuple[Buffer, ...]:
        """The buffers that keep their content between runs, in the order of `buffers`."""
        return tuple(buffer for buffer in self.buffers if buffer.kind == "state")

    @cached_property
    def new_values(self) -> Mapping[str, str]:
        """The alias that is the new value, by the name of its state; state that never changes has none."""
        return {b.base: b.name for b in self.buffers if b.kind == "alias" and self._is_state(b.base)}

    def _is_state(self, name: str) -> bool:
        buffer = self.buffer_by_name.get(name)
        return buffer is not None and buffer.kind == "state"

    def locate(self, name: str) -> tuple[Buffer, int]:
        """The buffer that owns the memory of `name` (aliases followed) and the byte offset inside it."""
        buffer, offset = self.buffer_by_name[name], 0
        while buffer.kind == "alias":
            offset += buffer.offset
            buffer = self.buffer_by_name[buffer.base]
        return buffer, offset

    @cached_property
    def dag(self) -> Dag:
        """Launches as nodes, dependencies as edges; raises `InputError` for a bad dependency."""
        return Dag.of_launches([launch.deps for launch in self.launches])

    def replace(self, **changes: object) -> ExecutionPlan:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


def starts_early(plan: ExecutionPlan, launch: Launch) -> bool:
    """Return whether a launch has places on the device before all that it waits for has ended: each launch
    that it depends on releases it, and it waits itself.
    """
    kernels = [plan.kernel_by_name[plan.launches[dep].kernel] for dep in launch.deps]
    own = plan.kernel_by_name[launch.kernel]
    return bool(kernels) and own.overlaps and all(kernel.releases for kernel in kernels)


def describe_launch(index: int, launch: Launch) -> str:
    """Describe a launch of a plan: its index, its kernel, the network's ops it computes."""
    origin = f" for {', '.join(launch.origin)}" if launch.origin else ""
    return f"launch {index} of kernel {launch.kernel!r}{origin}"
