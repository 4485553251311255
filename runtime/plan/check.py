"""Find every fault of an execution plan: bad names, ranges, references, sizes, writes and unordered uses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.errors import InputError
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.problem import POINTER_BYTES
from tilewright.runtime.plan.boxes import box_of, dense_strides
from tilewright.runtime.plan.communication_kernel import CommunicationKernel
from tilewright.runtime.plan.execution_plan import (
    BUFFER_KINDS,
    FORMAT_VERSION,
    LANGUAGES,
    MAPS_VERSION,
    NO_CLUSTER,
    STATE_VERSION,
    Buffer,
    ExecutionPlan,
    KernelCode,
    KernelContract,
    Launch,
    PlanFault,
    version_for,
)
from tilewright.runtime.plan.tensor_map import UNIT_BYTES, LaunchMap, map_faults

MAX_BYTES = 1 << 46  # 64 TiB: beyond any device, far from overflowing 64-bit sizes
MAX_RANK = 16
MAX_BUFFERS = 200_000
MAX_LAUNCHES = 50_000  # happens-before is a bit per pair of launches: 300 MB
MAX_ARGS = 1_000  # a CUDA kernel takes 4 KiB (32 KiB from Volta on CUDA 12.1) of 8-byte pointers
MAX_DEPS = 2_000_000
MAX_STREAMS = 1_024
MAX_SHARED_BYTES = 1 << 20
MAX_GRID = (2**31 - 1, 65_535, 65_535)
MAX_CLUSTER = 16  # what an H100 runs at most; 8 is what every device with clusters runs
MAX_MAPS = 24  # a CUDA kernel takes 4 KiB of parameters, a map is 128 bytes
MAX_BLOCK = 4_096  # CUDA allows 1024, PoCL 4096 work-items
ALIGNMENT = 256

_NAME = re.compile(r"[A-Za-z0-9_.%:/@#-]{1,200}")
_KERNEL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")  # also a file name inside a container
_ENTRY = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
#: ways of writing `#` or of continuing a line that no emitter uses; they would hide a directive
_DISGUISES = ("%:", "??", "\\\n", "\r", "\f", "\v", "\0")
_LINE = re.compile(r"^(?P<before>[^#\n]*)(?P<directive>#[^\n]*)$", re.MULTILINE)
_ALLOWED = re.compile(
    r"#\s*(?:define|undef|if|ifdef|ifndef|elif|else|endif|error)\b(?!.*__has_)"
    r"|#\s*pragma\s+(?:(?:no)?unroll\b|OPENCL\s+(?:EXTENSION|FP_CONTRACT)\b)"
)


def validate(plan: ExecutionPlan) -> ExecutionPlan:
    """Return the plan itself if it is well-formed; else raise one `InputError` with all faults."""
    faults = find_faults(plan)
    if faults:
        shown = "; ".join(faults[:20])
        more = f"; and {len(faults) - 20} more" if len(faults) > 20 else ""
        raise InputError(f"the execution plan is malformed: {shown}{more}")
    return plan


def find_faults(plan: ExecutionPlan) -> list[str]:
    """Every fault of `plan` as a short clause; an empty list means that devices may trust it."""
    return [str(fault) for fault in located_faults(plan)]


def located_faults(plan: ExecutionPlan) -> list[PlanFault]:
    """Every fault of `plan` with the part that has it."""
    faults = [PlanFault(text) for text in _count_faults(plan)]
    if faults:
        return faults
    faults += _duplicates("buffer", [b.name for b in plan.buffers], "buffers")
    faults += _duplicates("kernel", [k.name for k in plan.kernels], "kernels")
    for i, kernel in enumerate(plan.kernels):
        faults += _of("kernels", i, f"kernel {kernel.name!r}", _kernel_faults(kernel))
    for i, buffer in enumerate(plan.buffers):
        faults += _of("buffers", i, f"buffer {buffer.name!r}", _buffer_faults(plan, buffer))
    faults += _boundary_faults(plan)
    if faults:
        return faults
    faults += _launch_faults(plan)
    return faults or [*_contract_faults(plan), *_library_faults(plan), *_communication_faults(plan)]


def _of(part: str, index: int, name: str, texts: Iterable[str]) -> Iterator[PlanFault]:
    return (PlanFault(f"{name}: {text}", part, index) for text in texts)


def _of_launch(plan: ExecutionPlan, index: int, texts: Iterable[str]) -> Iterator[PlanFault]:
    return _of("launches", index, f"launch {index} ({plan.launches[index].kernel})", texts)


def _is_count(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _count_faults(plan: ExecutionPlan) -> Iterator[str]:
    least = version_for(plan.buffers, plan.launches)
    versions = [v for v in (FORMAT_VERSION, STATE_VERSION, MAPS_VERSION) if v >= least]
    if plan.format_version not in versions:
        expected = " or ".join(map(str, versions))
        yield f"expected format version {expected}, got {plan.format_version!r}"
    if not isinstance(plan.target, str) or not _NAME.fullmatch(plan.target):
        yield f"expected a target name, got {plan.target!r:.100}"
    if len(plan.buffers) > MAX_BUFFERS:
        yield f"expected at most {MAX_BUFFERS} buffers, got {len(plan.buffers)}"
    if len(plan.launches) > MAX_LAUNCHES:
        yield f"expected at most {MAX_LAUNCHES} launches, got {len(plan.launches)}"
    if sum(len(launch.deps) for launch in plan.launches) > MAX_DEPS:
        yield f"expected at most {MAX_DEPS} dependencies"
    if not _is_count(plan.arena_bytes, 0, MAX_BYTES):
        yield f"expected arena_bytes in 0..{MAX_BYTES}, got {plan.arena_bytes!r}"


def _duplicates(what: str, names: Sequence[str], part: str = "") -> Iterator[PlanFault]:
    """Names that no plan may hold, and those that occur twice; `part` is the field that has them."""
    seen: set[str] = set()
    for i, name in enumerate(names):
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            text = f"{what} name {name!r:.100} is not 1 to 200 letters, digits or _.%:/@#-"
            yield PlanFault(text, part, i)
        elif name in seen:
            yield PlanFault(f"{what} {name!r} occurs twice", part, i)
        else:
            seen.add(name)


def _kernel_faults(kernel: KernelCode) -> Iterator[str]:
    if not _KERNEL.fullmatch(kernel.name):
        yield "expected a name of letters, digits, _, . and -"
    if not _ENTRY.fullmatch(kernel.entry):
        yield f"entry {kernel.entry!r:.100} is not an identifier"
    if kernel.language not in LANGUAGES:
        yield f"expected a language among {', '.join(LANGUAGES)}, got {kernel.language!r:.100}"
    elif kernel.language in ("library", "communication"):
        read = LibraryKernel.from_json if kernel.language == "library" else CommunicationKernel.from_json
        try:
            read(kernel.source)
        except InputError as error:
            yield str(error)
        if kernel.overlaps or kernel.binary is not None:
            yield f"a {kernel.language} kernel has no binary and never overlaps"
    else:
        yield from source_faults(kernel.source)
    if type(kernel.overlaps) is not bool:
        yield f"expected overlaps to be true or false, got {kernel.overlaps!r:.100}"
    if type(kernel.releases) is not bool:
        yield f"expected releases to be true or false, got {kernel.releases!r:.100}"
    elif kernel.releases and not kernel.overlaps:
        yield "expected a kernel that releases others to wait itself (overlaps), or memory is read too early"
    resources = kernel.resources
    if resources is not None and not (
        _is_count(resources.registers, 0, 1 << 16)
        and _is_count(resources.spill_bytes, 0, 1 << 30)
        and _is_count(resources.shared_bytes, 0, MAX_SHARED_BYTES)
    ):
        yield f"resources out of range: {resources}"


def source_faults(source: str) -> Iterator[str]:
    """Directives of `source` that could read a file (`#include`, `#embed`, ...) or hide one, as clauses.

    A comment may stand before a directive, so what follows a block comment counts as one.
    """
    for disguise in _DISGUISES:
        if disguise in source:
            yield f"its source has {disguise!r}, which generated code never has"
            return
    for line in _LINE.finditer(source):
        before = line["before"].strip()
        begins = not before or "/*" in before or "*/" in before
        if begins and (before or not _ALLOWED.match(line["directive"])):
            shown = line["directive"].strip()
            yield f"its source has the directive {shown!r:.100}, which generated code never has"
            return


def _buffer_faults(plan: ExecutionPlan, buffer: Buffer) -> Iterator[str]:
    if buffer.kind not in BUFFER_KINDS:
        yield f"expected a kind among {', '.join(BUFFER_KINDS)}, got {buffer.kind!r:.100}"
        return
    if buffer.dtype not in DTYPES:
        yield f"unknown element type {buffer.dtype!r:.100}"
        return
    if len(buffer.shape) > MAX_RANK or not all(_is_count(extent, 0, MAX_BYTES) for extent in buffer.shape):
        yield f"expected at most {MAX_RANK} extents in 0..{MAX_BYTES}, got {buffer.shape!r:.200}"
        return
    tensor_bytes = math.prod(buffer.shape) * DTYPES[buffer.dtype].itemsize
    if not _is_count(buffer.nbytes, tensor_bytes, MAX_BYTES):
        yield f"expected nbytes in {tensor_bytes}..{MAX_BYTES}, got {buffer.nbytes!r}"
        return
    if not _is_count(buffer.offset, 0, MAX_BYTES):
        yield f"expected offset in 0..{MAX_BYTES}, got {buffer.offset!r}"
    elif buffer.kind == "arena":
        yield from _arena_faults(plan, buffer)
    elif buffer.kind == "alias":
        yield from _alias_faults(plan, buffer)
    elif buffer.offset:
        yield f"only arena and alias buffers have an offset, got {buffer.offset}"
    if buffer.base and buffer.kind != "alias":
        yield f"only alias buffers have a base, got {buffer.base!r:.100}"
    if (buffer.strides or buffer.start) and buffer.kind != "alias":
        yield f"only alias buffers have strides and a start, got {buffer.strides!r:.100}"


def _arena_faults(plan: ExecutionPlan, buffer: Buffer) -> Iterator[str]:
    if buffer.offset % ALIGNMENT:
        yield f"offset {buffer.offset} is not a multiple of {ALIGNMENT}"
    if buffer.offset + buffer.nbytes > plan.arena_bytes:
        yield f"ends at byte {buffer.offset + buffer.nbytes} of an arena of {plan.arena_bytes}"


def _state_faults(plan: ExecutionPlan, buffer: Buffer, base: Buffer) -> Iterator[str]:
    """Faults of the alias that is the new value of state."""
    of_all = (buffer.dtype, buffer.nbytes, buffer.offset) == (base.dtype, base.nbytes, 0)
    if not of_all or buffer.strides or buffer.start:
        yield f"expected the new value of the state {base.name!r} to be all of it"
    elif plan.new_values[base.name] != buffer.name:
        yield f"the state {base.name!r} has two new values"


def _alias_faults(plan: ExecutionPlan, buffer: Buffer) -> Iterator[str]:
    base = plan.buffer_by_name.get(buffer.base)
    if base is None:
        yield f"views the unknown buffer {buffer.base!r:.100}"
    elif base.kind == "alias":
        # One level only: chains would allow cycles, and the planner resolves them anyway.
        yield f"views {base.name!r}, which is an alias itself"
    elif type(base.nbytes) is int and buffer.offset + buffer.nbytes > base.nbytes:
        yield f"ends at byte {buffer.offset + buffer.nbytes} of {base.name!r}, which has {base.nbytes}"
    elif base.kind == "state":
        yield from _state_faults(plan, buffer, base)
    elif buffer.strides or buffer.start:
        yield from _box_faults(base, buffer)
    if buffer.dtype in DTYPES and buffer.offset % DTYPES[buffer.dtype].itemsize:
        yield f"offset {buffer.offset} is not a multiple of the element size"


def _box_faults(base: Buffer, buffer: Buffer) -> Iterator[str]:
    dense = dense_strides(base.shape)
    if tuple(buffer.strides) != dense or len(buffer.shape) != len(base.shape) or buffer.dtype != base.dtype:
        yield f"expected a box of {base.name!r} with its strides {dense}, got {buffer.strides!r:.100}"
    elif not _is_count(buffer.start, 0, MAX_BYTES):
        yield f"expected start in 0..{MAX_BYTES}, got {buffer.start!r}"
    elif box_of(base, buffer) is None:
        yield f"the box of {buffer.shape} elements leaves {base.name!r} of {base.shape}"


def _boundary_faults(plan: ExecutionPlan) -> Iterator[PlanFault]:
    yield from _duplicates("input", plan.inputs)
    places = {buffer.name: i for i, buffer in enumerate(plan.buffers)}
    titles: set[str] = set()
    for name in plan.inputs:
        buffer = plan.buffer_by_name.get(name)
        if buffer is None or buffer.kind != "input":
            yield PlanFault(f"input {name!r:.100} is no buffer of kind input")
        elif buffer.title in titles:
            text = f"two inputs are called {buffer.title!r:.100}"
            yield PlanFault(text, "buffers", places[name])
        else:
            titles.add(buffer.title)
    states: set[str] = set()
    for i, buffer in enumerate(plan.buffers):
        if buffer.kind == "state" and buffer.title in states:
            yield PlanFault(f"two states are called {buffer.title!r:.100}", "buffers", i)
        elif buffer.kind == "state":
            states.add(buffer.title)
    listed = set(plan.inputs)
    for i, buffer in enumerate(plan.buffers):
        if buffer.kind == "input" and buffer.name not in listed:
            text = f"buffer {buffer.name!r} is of kind input but not listed in inputs"
            yield PlanFault(text, "buffers", i)
    for name in plan.outputs:
        if name not in plan.buffer_by_name:
            yield PlanFault(f"output {name!r:.100} is no buffer")
        elif plan.buffer_by_name[name].strides or plan.buffer_by_name[name].start:
            yield PlanFault(f"output {name!r:.100} is a box, not a dense array", "buffers", places[name])


def _launch_faults(plan: ExecutionPlan) -> Iterator[PlanFault]:
    for index, launch in enumerate(plan.launches):
        yield from _of_launch(plan, index, _one_launch_faults(plan, index, launch))


def _one_launch_faults(plan: ExecutionPlan, index: int, launch: Launch) -> Iterator[str]:
    if launch.kernel not in plan.kernel_by_name:
        yield "no such kernel"
    if len(launch.grid) != 3 or not all(
        _is_count(g, 1, m) for g, m in zip(launch.grid, MAX_GRID, strict=False)
    ):
        yield f"expected a grid of three extents within {MAX_GRID}, got {launch.grid!r:.100}"
    for what, value, low, high in (
        ("block", launch.block, 1, MAX_BLOCK),
        ("shared_bytes", launch.shared_bytes, 0, MAX_SHARED_BYTES),
        ("stream", launch.stream, 0, MAX_STREAMS - 1),
    ):
        if not _is_count(value, low, high):
            yield f"expected {what} in {low}..{high}, got {value!r}"
    if not all(_is_count(dep, 0, index - 1) for dep in launch.deps):
        yield f"expected deps to name earlier launches only, got {launch.deps!r:.100}"
    if len(set(launch.deps)) != len(launch.deps):
        yield f"deps repeat a launch: {launch.deps!r:.100}"
    if len(launch.args) > MAX_ARGS:
        yield f"expected at most {MAX_ARGS} arguments, got {len(launch.args)}"
    unknown = [name for name in launch.args if name not in plan.buffer_by_name]
    if unknown:
        yield f"argument {unknown[0]!r:.100} is no buffer"
    elif not all(_is_count(position, 0, len(launch.args) - 1) for position in launch.writes):
        yield f"expected writes to be positions of arguments, got {launch.writes!r:.100}"
    else:
        for position in launch.writes:
            owner = plan.locate(launch.args[position])[0]
            if owner.kind in ("input", "constant"):
                yield f"writes {owner.name!r}, which is of kind {owner.kind}"
            elif owner.kind == "state" and owner.name == launch.args[position]:
                yield f"writes the state {owner.name!r} under the name of its old value"
        yield from _in_place_faults(plan, launch)
        yield from _map_faults(plan, launch)
    yield from _cluster_faults(plan, launch)


def _in_place_faults(plan: ExecutionPlan, launch: Launch) -> Iterator[str]:
    for read, written in launch.in_place:
        positions = _is_count(read, 0, len(launch.args) - 1) and _is_count(written, 0, len(launch.args) - 1)
        if not positions or read in launch.writes or written not in launch.writes:
            yield f"expected in_place to pair an argument read with one written, got {(read, written)!r:.100}"
            continue
        one, other = (plan.buffer_by_name[launch.args[position]] for position in (read, written))
        if (one.dtype, one.nbytes) != (other.dtype, other.nbytes):
            yield f"in_place pairs {one.name!r} with {other.name!r}, which is of another type or size"


def _map_faults(plan: ExecutionPlan, launch: Launch) -> Iterator[str]:
    """Faults of the tensor maps of a launch: what the driver refuses, and maps that leave their buffer."""
    if len(launch.maps) > MAX_MAPS:
        yield f"expected at most {MAX_MAPS} maps, got {len(launch.maps)}"
        return
    for number, m in enumerate(launch.maps):
        for fault in _one_map_faults(plan, launch, m):
            yield f"map {number}: {fault}"


def _one_map_faults(plan: ExecutionPlan, launch: Launch, m: LaunchMap) -> Iterator[str]:
    if not _is_count(m.argument, 0, len(launch.args) - 1):
        yield f"expected the position of one of {len(launch.args)} arguments, got {m.argument!r:.100}"
        return
    if not _is_count(m.offset, 0, MAX_BYTES):
        yield f"expected an offset in 0..{MAX_BYTES}, got {m.offset!r:.100}"
        return
    faults = list(map_faults(m.recipe))
    yield from faults
    if faults:
        return
    name = launch.args[m.argument]
    owner, offset = plan.locate(name)
    nbytes, end = plan.buffer_by_name[name].nbytes, m.offset + m.recipe.span
    if end > nbytes:
        yield f"its last element ends at byte {end} of {name!r}, which has {nbytes}"
    if (offset + m.offset) % UNIT_BYTES:
        yield f"begins at byte {offset + m.offset} of {owner.name!r}, not at a multiple of {UNIT_BYTES}"


def _cluster_faults(plan: ExecutionPlan, launch: Launch) -> Iterator[str]:
    cluster = tuple(launch.cluster)
    if len(cluster) != 3 or not all(_is_count(n, 1, MAX_CLUSTER) for n in cluster):
        yield f"expected a cluster of three extents in 1..{MAX_CLUSTER}, got {launch.cluster!r:.100}"
    elif math.prod(cluster) > MAX_CLUSTER:
        yield f"expected a cluster of at most {MAX_CLUSTER} blocks, got {cluster}"
    elif len(launch.grid) == 3 and any(
        type(g) is int and g % c for g, c in zip(launch.grid, cluster, strict=True)
    ):
        yield f"expected a grid of whole clusters of {cluster} blocks, got {launch.grid!r:.100}"
    kernel = plan.kernel_by_name.get(launch.kernel)
    if kernel is not None and kernel.language != "cuda" and (launch.maps or cluster != NO_CLUSTER):
        yield f"expected maps and clusters of a CUDA kernel only, this one is of language {kernel.language}"


def _contract_faults(plan: ExecutionPlan) -> Iterator[PlanFault]:
    """Launches that are not what their kernel's text was made for."""
    for index, launch in enumerate(plan.launches):
        contract = plan.kernel_by_name[launch.kernel].contract
        if contract is not None:
            yield from _of_launch(plan, index, _launch_contract_faults(plan, launch, contract))


def _launch_contract_faults(plan: ExecutionPlan, launch: Launch, contract: KernelContract) -> Iterator[str]:
    for what, expected, got in (
        ("the grid", contract.grid, launch.grid),
        ("the block", contract.block, launch.block),
        ("shared_bytes", contract.shared_bytes, launch.shared_bytes),
        ("writes", contract.writes, launch.writes),
        ("a number of arguments", len(contract.spans), len(launch.args)),
        ("tensor maps", contract.maps, launch.maps),
        ("a cluster", contract.cluster, launch.cluster),
    ):
        if expected != got:
            yield f"expected {what} {expected} that its kernel was made for, got {got}"
            return
    for name, span in zip(launch.args, contract.spans, strict=True):
        if plan.buffer_by_name[name].nbytes < span:
            nbytes = plan.buffer_by_name[name].nbytes
            yield f"its kernel touches {span} bytes of an argument, {name!r} holds {nbytes}"


def _library_faults(plan: ExecutionPlan) -> Iterator[PlanFault]:
    """Launches of library kernels whose buffers are not what the library will read and write."""
    kernels = {k.name: LibraryKernel.from_json(k.source) for k in plan.kernels if k.language == "library"}
    for index, launch in enumerate(plan.launches):
        if launch.kernel in kernels:
            yield from _of_launch(plan, index, _library_launch_faults(plan, launch, kernels[launch.kernel]))


def _library_launch_faults(plan: ExecutionPlan, launch: Launch, kernel: LibraryKernel) -> Iterator[str]:
    arguments = kernel.arguments()
    if len(launch.args) != len(arguments):
        yield f"expected {len(arguments)} arguments of {kernel.provider}, got {len(launch.args)}"
        return
    if tuple(sorted(launch.writes)) != kernel.writes or launch.in_place:
        yield f"expected it to write the arguments {kernel.writes} and nothing in place, got {launch.writes}"
    for name, argument in zip(launch.args, arguments, strict=True):
        buffer, (owner, offset) = plan.buffer_by_name[name], plan.locate(name)
        elements = buffer.nbytes // DTYPES[buffer.dtype].itemsize
        if buffer.dtype != argument.dtype or elements < argument.span:
            yield (
                f"expected {argument.role} to hold {argument.span} elements of {argument.dtype}, "
                f"{name!r} holds {elements} of {buffer.dtype}"
            )
        if offset % POINTER_BYTES:
            yield f"{name!r} begins at byte {offset} of {owner.name!r}, not at a multiple of {POINTER_BYTES}"
        if argument.role == "workspace" and owner.kind != "arena":
            yield f"expected the workspace {name!r} in the arena, got kind {owner.kind}"


def _communication_faults(plan: ExecutionPlan) -> Iterator[PlanFault]:
    """Communications whose buffers are not what they move, or whose order the plan leaves open.

    On every rank they must run in the order of its program, whatever reorders launches: each is, by
    dependencies, after the one before.
    """
    kernels = {
        k.name: CommunicationKernel.from_json(k.source) for k in plan.kernels if k.language == "communication"
    }
    indices = [i for i, launch in enumerate(plan.launches) if launch.kernel in kernels]
    if not indices:
        return
    before = plan.dag.ancestors
    for index in indices:
        launch = plan.launches[index]
        yield from _of_launch(plan, index, _communication_launch_faults(plan, launch, kernels[launch.kernel]))
    for earlier, later in pairwise(indices):
        if not before[later] >> earlier & 1:
            name = plan.launches[later].kernel
            text = f"launch {later} ({name}) communicates, but no dependency puts it after launch {earlier}"
            yield PlanFault(text, "launches", later)


def _communication_launch_faults(
    plan: ExecutionPlan, launch: Launch, kernel: CommunicationKernel
) -> Iterator[str]:
    sizes = (*kernel.operands, *kernel.results)
    if len(launch.args) != len(sizes):
        yield f"expected {len(sizes)} arguments of {kernel.kind}, got {len(launch.args)}"
        return
    if tuple(sorted(launch.writes)) != kernel.writes or launch.in_place:
        yield f"expected it to write the arguments {kernel.writes} and nothing in place, got {launch.writes}"
    for name, size in zip(launch.args, sizes, strict=True):
        buffer = plan.buffer_by_name[name]
        if buffer.dtype != kernel.dtype or buffer.size != size or buffer.strides:
            yield (
                f"expected {name!r} to hold {size} elements of {kernel.dtype}, one after another, "
                f"got {buffer.size} of {buffer.dtype}"
            )
