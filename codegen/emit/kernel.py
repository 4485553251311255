"""A thread-level function -> one kernel of CUDA C or OpenCL C: signature, shared memory, symbols, body."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.codegen import prelude  # noqa: F401  (importing registers the helpers)
from tilewright.codegen.dialect import CudaDialect, Dialect, OpenClDialect
from tilewright.codegen.emit import (  # noqa: F401  (importing registers the emitters)
    channels,
    cluster_sums,
    control,
    fragment_maps,
    launch,
    matrix,
    memory,
    scalar,
    split,
    transports,
    warp,
)
from tilewright.codegen.emit.emission import BufferRef, Emission, emitter_of
from tilewright.codegen.emit.launch import early_params, holding_lines
from tilewright.codegen.emit.memory import array_extents
from tilewright.codegen.emit.phases import PhaseMarks, phase_marks
from tilewright.codegen.emit.stamps import Stamps
from tilewright.codegen.kernel_source import KernelParam, KernelSource
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Func, Level, Value, walk
from tilewright.ir.thread.launch_ops import (
    late_params,
    launched_grid,
    overwrites,
    releases_dependents,
    waits_for_launches,
)
from tilewright.ir.thread.shared_layout import shared_layout
from tilewright.ir.thread.tensor_maps import CLUSTER, RANK, cluster_of, map_attribute_faults, maps_of
from tilewright.ir.types import ScalarType, TensorType

STATIC_SHARED_BYTES = 48 * 1024
#: blocks of one multiprocessor at most, on any device
MAX_RESIDENT = 32


def emit_cuda(func: Func, *, stamps: bool = False, phases: bool = False) -> KernelSource:
    """CUDA C of a thread-level function, for NVRTC without headers (sm_75 and newer) and for the emulator.

    stamps: one more parameter, the last, takes the times of every block (`tilewright.codegen.emit.stamps`).
    Blocks that only hold places write none, so that there are none of them.
    phases: stamps also tell when a block's first data are at hand and when its main loop is done.
    Raises InputError for a function of another level and UnsupportedError for an op without an emitter.
    """
    marks = phase_marks(func) if phases else None
    return _emit(func, CudaDialect(), stamps or phases, marks)


def emit_opencl(func: Func) -> KernelSource:
    """OpenCL C 1.2 of a thread-level function; raises as `emit_cuda`, also for fragments and shuffles."""
    return _emit(func, OpenClDialect())


def _emit(
    func: Func, dialect: Dialect, stamped: bool = False, marks: PhaseMarks | None = None
) -> KernelSource:
    grid, block = _launch_shape(func)
    e = Emission(func, dialect, grid, block)
    if func.get(CLUSTER) is not None:
        e.taken.add(RANK)
    entry = e.name(func.name)
    written = _written(func)
    params = tuple(_parameter(e, v, i, v in written) for i, v in enumerate(func.params))
    maps = _map_parameters(e, params)
    stamps = Stamps(e, grid, marks) if stamped else None
    if stamps is not None and marks is not None:
        e.behind = stamps.behind
    waits = waits_for_launches(func)
    if stamps is not None and waits:
        e.after_wait = stamps.start()
    pointers = _pointers(e, params)
    static, dynamic = _declare_shared(e)
    e.lines += _prefetches(e)
    shared_lines, e.lines = e.lines, []
    e.ops(func.body)
    lines = [*shared_lines, *_symbol_lines(e), *e.lines]
    launched = grid
    if stamps is None and not dialect.native_vectors:
        lines, launched = [*holding_lines(e, func, grid), *lines], launched_grid(func, grid)
    if stamps is not None:
        lines = [*stamps.arrival(), *([] if waits else stamps.start()), *lines, *stamps.end()]
        params, pointers = (*params, stamps.param), [*pointers, stamps.pointer]
    text = "\n\n".join(
        part
        for part in (
            _pragmas(func, dialect),
            e.prelude.text(),
            _kernel(_head(func, dialect, entry, block), [*pointers, *maps], lines),
        )
        if part
    )
    return KernelSource(
        dialect.name, entry, text + "\n", launched, block, params, static, dynamic, tuple(e.origins), waits,
        maps_of(func), cluster_of(func), releases_dependents(func),
    )  # fmt: skip


def _launch_shape(func: Func) -> tuple[tuple[int, int, int], int]:
    grid, block = func.get("grid"), func.get("block")
    if func.level is not Level.THREAD:
        raise InputError(
            f"@{func.name}: code is generated from the thread level, this is the {func.level.value} level"
        )
    if not (isinstance(grid, tuple) and len(grid) == 3 and all(type(g) is int and g > 0 for g in grid)):
        raise InputError(f"@{func.name}: expected grid = [x, y, z] of positive integers, got {grid!r}")
    if type(block) is not int or not 0 < block <= 1024:
        raise InputError(f"@{func.name}: expected block = 1..1024 threads, got {block!r}")
    return (int(grid[0]), int(grid[1]), int(grid[2])), block  # type: ignore[arg-type]


def _resident(func: Func) -> int:
    """Blocks per multiprocessor that registers must leave room for: `resident` of the function, else 1."""
    blocks = func.get("resident", 1)
    if type(blocks) is not int or not 0 < blocks <= MAX_RESIDENT:
        raise InputError(f"@{func.name}: expected resident = 1..{MAX_RESIDENT} blocks, got {blocks!r}")
    return blocks


def _written(func: Func) -> set[Value]:
    """Buffers some op stores to."""
    return {op.operands[i] for op in walk(func.body) for i in emitter_of(op).writes}


def _parameter(e: Emission, v: Value, index: int, written: bool) -> KernelParam:
    if not isinstance(v.type, TensorType) or v.type.space != "global":
        raise InputError(f"@{e.func.name}: expected global buffers as parameters, got {v.type}")
    name = e.name(v.hint or f"arg{index}")
    e.buffers[v] = BufferRef(name, v.type, flat=True)
    return KernelParam(name, v.type.dtype, v.type.shape, written)


def _pointers(e: Emission, params: Sequence[KernelParam]) -> list[str]:
    """The parameter list. In CUDA, what other launches write gets its name after the wait for them.

    Parameters that callers may give as one buffer carry no promise that they are apart.
    """
    late = early = frozenset[Value]()
    if not e.dialect.native_vectors:
        late, early = late_params(e.func), early_params(e.func)
    shared = {e.func.params[i] for pair in overwrites(e.func) for i in pair}
    out = []
    for p, v in zip(params, e.func.params, strict=True):
        name, const = e.buffers[v].name, not p.written
        if v in late:
            given = e.name(f"{name}_given")
            e.late_pointers.append((e.dialect.pointer(p.dtype, name, const=const, alone=False), given))
            out.append(e.dialect.pointer(p.dtype, given, const=const, alone=False))
        else:
            out.append(
                e.dialect.pointer(p.dtype, name, const=const, alone=v not in early and v not in shared)
            )
    return out


def _map_parameters(e: Emission, params: Sequence[KernelParam]) -> list[str]:
    """Declarations of the tensor maps, which a kernel takes by value behind its pointers."""
    faults = list(map_attribute_faults(e.func))
    if faults:
        raise InputError(f"@{e.func.name}: {faults[0]}")
    maps = maps_of(e.func)
    if (maps or cluster_of(e.func) != (1, 1, 1)) and e.dialect.native_vectors:
        raise UnsupportedError(f"@{e.func.name}: tensor maps and clusters need CUDA, not {e.dialect.name}")
    e.ranges[RANK] = (0, prod(cluster_of(e.func)) - 1)
    e.maps = [e.name(f"{params[m.parameter].name}_map") for m in maps]
    return [f"const __grid_constant__ {e.need('tensor_map')} {name}" for name in e.maps]


def _prefetches(e: Emission) -> list[str]:
    """One thread brings the maps to its multiprocessor, before anything else that the kernel does."""
    if not e.maps:
        return []
    return [f"    if (threadIdx.x == 0) {e.need('prefetch_map')}({name});" for name in e.maps]


def _declare_shared(e: Emission) -> tuple[int, int]:
    """Declare all shared buffers of the kernel; bytes that are static and dynamic."""
    layout = shared_layout(e.func)
    native = e.dialect.native_vectors
    # Blocks of a cluster see each other's memory, so all of it has one beginning.
    clustered = cluster_of(e.func) != (1, 1, 1) and layout.nbytes > 0
    dynamic = not native and (layout.nbytes > STATIC_SHARED_BYTES or clustered)
    in_one = dynamic or (not native and layout.overlaps)
    if dynamic:
        e.line(f"{e.need('dynamic_shared').upper()}(tw_shared);")
    elif in_one:
        align = max(layout.alignments.values())
        e.line(f"__shared__ __align__({align}) unsigned char tw_shared[{layout.nbytes}];")
    for v, offset in layout.offsets.items():
        t = v.tensor
        name = e.name(v.hint or "shared")
        kind, extents = e.dialect.mem_type(t.dtype), array_extents(t.shape)
        if in_one:
            inner = extents[extents.index("]") + 1 :]
            pointer = f"(*{name}){inner}" if inner else f"*{name}"
            cast = f"{kind} (*){inner}" if inner else f"{kind}*"
            e.line(f"{kind} {pointer} = ({cast})(tw_shared + {offset});")
        elif native:
            e.line(f"__local {kind} {name}{extents} __attribute__((aligned(64)));")
        else:
            e.line(f"__shared__ __align__({layout.alignments[v]}) {kind} {name}{extents};")
        e.buffers[v] = BufferRef(name, t, flat=False, swizzled=v in layout.swizzled)
    if native:
        return sum(-(-max(1, v.tensor.nbytes) // 16) * 16 for v in layout.offsets), 0
    return (0, layout.nbytes) if dynamic else (layout.nbytes, 0)


#: symbols every thread has, in the order of their definitions; those of a lane build on `tid` and `lane`
_SYMBOLS = {
    "tid": "",
    "bid.x": "",
    "bid.y": "",
    "bid.z": "",
    "lane": "tid & 31",
    "lane.row": "(tid & 31) / 4",
    "lane.pair": "tid & 3",
}


def _symbol_lines(e: Emission) -> list[str]:
    used = [name for name in _SYMBOLS if name in e.used_symbols]
    if any(_SYMBOLS[name] for name in used) and "tid" not in used:
        used.insert(0, "tid")
    texts = {name: _SYMBOLS[name] or e.dialect.symbol_definition(name) for name in used}
    if RANK in e.used_symbols:
        texts[RANK] = f"(int){e.need('cluster_rank')}()"
    return [f"    const int {name.replace('.', '_')} = {text};" for name, text in texts.items()]


def _pragmas(func: Func, dialect: Dialect) -> str:
    if dialect.native_vectors and _uses_f64(func):
        return "#pragma OPENCL EXTENSION cl_khr_fp64 : enable"
    return ""


def _uses_f64(func: Func) -> bool:
    values = [*func.params, *(r for op in walk(func.body) for r in op.results)]
    return any(v.type.dtype == "f64" for v in values)


def _head(func: Func, dialect: Dialect, entry: str, block: int) -> str:
    """Return the text before a kernel's parameters."""
    resident = _resident(func)
    if not dialect.native_vectors:
        cluster = cluster_of(func)
        together = "" if cluster == (1, 1, 1) else f"__cluster_dims__{cluster} "
        return f'extern "C" __global__ void {together}__launch_bounds__({block}, {resident}) {entry}('
    hint = _vector_hint(func, dialect)
    return f"__kernel {hint}__attribute__((reqd_work_group_size({block}, 1, 1)))\nvoid {entry}("


def _vector_hint(func: Func, dialect: Dialect) -> str:
    """Of a kernel that computes with vectors, their type: compilers then do not join work-items to vectors.

    Intel's compiler would make vectors of vectors, which takes four times as long and runs no faster.
    """
    types = (r.type for op in walk(func.body) for r in op.results)
    vectors = [(t.lanes, t.dtype) for t in types if isinstance(t, ScalarType) and t.lanes > 1]
    if not vectors:
        return ""
    lanes, dtype = max(vectors)
    return f"__attribute__((vec_type_hint({dialect.reg_type(dtype, lanes)}))) "


def _kernel(head: str, pointers: list[str], lines: list[str]) -> str:
    one_line = head + ", ".join(pointers) + ")"
    if len(one_line.splitlines()[-1]) > 110:
        one_line = head + "\n    " + ",\n    ".join(pointers) + ")"
    return "\n".join([one_line + " {", *map(str.rstrip, lines), "}"])
