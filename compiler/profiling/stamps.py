"""Kernels that stamp when their blocks start and end: the plan with marks, and what its stamps say."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from tilewright.codegen import KernelSource, emit_cuda
from tilewright.codegen.emit.stamps import (
    ARRIVAL,
    END,
    PROCESSOR,
    STAMPS_PER_BLOCK,
    STAMPS_WITH_PHASES,
    START,
)
from tilewright.compilation.kernel_builds import build_codes
from tilewright.devices.targets import Target
from tilewright.ir import Level, Module, UnsupportedError, parse
from tilewright.profiling.replay_record import LaunchSpan, ProcessorSpan
from tilewright.profiling.value_names import value_names, with_value_names
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, Launch

_EMPTY = "module @m { thread.func @NAME(grid = [1, 1, 1], block = 1) { thread.return() } }"


@dataclass(frozen=True)
class MarkedPlan:
    """The launches of a plan with marks among them.

    launches: those of the plan in their order and the marks, which have no arguments yet. places: where each
    launch of the plan stands there. bounded: launches of the plan that cannot stamp. before, after: by such
    a launch, where its mark stands, if it has one.
    """

    launches: tuple[Launch, ...]
    places: tuple[int, ...]
    bounded: frozenset[int]
    before: Mapping[int, int]
    after: Mapping[int, int]

    @property
    def marks(self) -> tuple[int, ...]:
        """The positions of the marks, ascending."""
        return tuple(sorted((*self.before.values(), *self.after.values())))


def mark_source(name: str, *, phases: bool = False) -> KernelSource:
    """The kernel of all marks: nothing but the stamps of one thread."""
    return emit_cuda(parse(_EMPTY.replace("NAME", name)).funcs[0], stamps=True, phases=phases)


def unstamped(plan: ExecutionPlan) -> frozenset[int]:
    """Launches whose kernels are not made from the thread level, so that they cannot stamp."""
    foreign = {k.name for k in plan.kernels if k.language in ("library", "communication")}
    return frozenset(i for i, launch in enumerate(plan.launches) if launch.kernel in foreign)


def marked(plan: ExecutionPlan, kernel: str) -> MarkedPlan:
    """Put launches of the mark `kernel` before launches that cannot stamp and wait for nothing, and after
    those whose end no other launch tells.

    A mark after a launch delays only launches that cannot stamp either: they wait for it, so that it tells
    their start as well. Launches that stamp run beside it.
    """
    bounded = unstamped(plan)
    late = bounded - _told_by_successors(plan, bounded)
    launches: list[Launch] = []
    places: list[int] = []
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    for index, launch in enumerate(plan.launches):
        mark = Launch(kernel, (), (1, 1, 1), 1, stream=launch.stream)
        deps = [after[d] if index in bounded and d in after else places[d] for d in launch.deps]
        if index in bounded and not deps:
            before[index] = len(launches)
            deps = [len(launches)]
            launches.append(mark)
        places.append(len(launches))
        launches.append(replace(launch, deps=tuple(deps)))
        if index in late:
            after[index] = len(launches)
            launches.append(replace(mark, deps=(places[index],)))
    return MarkedPlan(tuple(launches), tuple(places), bounded, before, after)


def _told_by_successors(plan: ExecutionPlan, bounded: frozenset[int]) -> frozenset[int]:
    """Launches that only stamping launches wait for, one of them for nothing else: its start is their end."""
    edges = plan.dag.reduced_predecessors
    alone = {own[0] for index, own in enumerate(edges) if len(own) == 1 and index not in bounded}
    foreign = {dep for index in bounded for dep in plan.launches[index].deps}
    return frozenset(alone - foreign)


#: bytes of one stamp
STAMP_BYTES = 8


@dataclass(frozen=True)
class StampedPlan:
    """A plan whose last output holds the stamps: rows `first_rows[i]` and on are those of its launch i.

    marked: how the launches of the original stand among those of `plan`.
    """

    plan: ExecutionPlan
    first_rows: tuple[int, ...]
    marked: MarkedPlan


def kernel_names(thread: Module) -> dict[str, list[str]]:
    """Per kernel of a module at the thread level the names of its values, for a file that holds its text."""
    return {f.name: value_names(f) for f in thread.funcs if f.level is Level.THREAD}


def saved_kernels(plan: ExecutionPlan, thread: Module, names: Mapping[str, Sequence[str]]) -> Module:
    """The kernels of a saved plan as it was made of them, from the text and the names in its file.

    Raises UnsupportedError where the file has no names, or where this version emits other kernels of it than
    the plan has: those would be timed in place of the plan's own.
    """
    funcs = {f.name: f for f in thread.funcs}
    for kernel in plan.kernels:
        if kernel.language != "cuda":
            continue
        if kernel.name not in names:
            raise UnsupportedError(
                f"kernel '{kernel.name}' cannot be profiled: its file lacks the names of its values, which "
                "files of this version state; compile the network again"
            )
        func = funcs.get(kernel.name)
        if func is not None:
            func = funcs[kernel.name] = with_value_names(func, names[kernel.name])
        if func is None or emit_cuda(func).source != kernel.source:
            raise UnsupportedError(
                f"kernel '{kernel.name}' cannot be profiled: this version of Tilewright emits it other than "
                "the executable has it; compile the network again"
            )
    return replace(thread, funcs=tuple(funcs.values()))


def stamped_plan(plan: ExecutionPlan, thread: Module, target: Target, *, phases: bool = False) -> StampedPlan:
    """Kernels emitted once more from the thread level, with stamps, and built (from the cache where it can).

    thread: the module `plan` was made of by this version. phases: the stamps tell those of kernels, too.
    """
    funcs = {f.name: f for f in thread.funcs if f.level is Level.THREAD}
    foreign = {plan.launches[i].kernel for i in unstamped(plan)}
    own = [k for k in plan.kernels if k.name not in foreign]
    sources = {k.name: emit_cuda(funcs[k.name], stamps=True, phases=phases) for k in own}
    mark = _unused("mark", [k.name for k in plan.kernels])
    marked_plan = marked(plan, mark)
    if marked_plan.marks:
        sources[mark] = mark_source(mark, phases=phases)
    made_for = {k.name: k.contract.shared_bytes for k in own if k.contract is not None}
    codes = {
        name: replace(code, contract=replace(code.contract, shared_bytes=made_for[name]))
        if code.contract is not None and name in made_for
        else code
        for name, code in build_codes(sources, target).items()
    }
    # Blocks that only hold places write no stamps and are not launched.
    launches = [
        replace(x, grid=sources[x.kernel].grid) if x.kernel in sources else x for x in marked_plan.launches
    ]
    marked_plan = replace(marked_plan, launches=tuple(launches))
    blocks = [_stamping_blocks(launch, sources) for launch in marked_plan.launches]
    first_rows = tuple(accumulate(blocks, initial=0))[:-1]
    name = _unused("stamps", [b.name for b in plan.buffers])
    columns = STAMPS_WITH_PHASES if phases else STAMPS_PER_BLOCK
    row_bytes = STAMP_BYTES * columns
    total = Buffer(name, "uint64", (sum(blocks), columns), "output", row_bytes * sum(blocks))
    views = {
        i: Buffer(f"{name}.{i}", "uint64", (n, columns), "alias", row_bytes * n, row_bytes * row, name)
        for i, (n, row) in enumerate(zip(blocks, first_rows, strict=True))
        if n
    }
    stamped = plan.replace(
        buffers=(*plan.buffers, total, *views.values()),
        kernels=(*(k for k in plan.kernels if k.name in foreign), *codes.values()),
        launches=tuple(
            _with_argument(launch, views[i]) if i in views else launch
            for i, launch in enumerate(marked_plan.launches)
        ),
        outputs=(*plan.outputs, name),
    )
    return StampedPlan(validate(stamped), first_rows, marked_plan)


def _stamping_blocks(launch: Launch, sources: Mapping[str, KernelSource]) -> int:
    """Rows of stamps that a launch writes: one per block, none where its kernel is not ours."""
    return math.prod(launch.grid) if launch.kernel in sources else 0


def _with_argument(launch: Launch, view: Buffer) -> Launch:
    return replace(launch, args=(*launch.args, view.name), writes=(*launch.writes, len(launch.args)))


def _unused(name: str, taken: Sequence[str]) -> str:
    """`name`, with underscores before it as long as a taken one begins like it."""
    while any(t.startswith(name) for t in taken):
        name = f"_{name}"
    return name


NANOSECOND = 1e-9

Stamps = np.ndarray[Any, np.dtype[np.uint64]]
Relative = np.ndarray[Any, np.dtype[np.int64]]


def span_ns(stamps: Stamps) -> int:
    """Nanoseconds from the first block's start to the last block's end; 0 without blocks."""
    return int(stamps[:, END].max() - stamps[:, START].min()) if len(stamps) else 0


def resolution_ns(stamps: Stamps) -> int:
    """The smallest positive difference between any two stamps; 0 where all are equal."""
    steps = np.diff(np.unique(stamps[:, [ARRIVAL, START, END]]))
    return int(steps.min()) if len(steps) else 0


def launch_spans(
    plan: ExecutionPlan, stamps: Stamps, first_rows: Sequence[int], marked: MarkedPlan | None = None
) -> tuple[LaunchSpan, ...]:
    """One span per launch of `plan`.

    Rows `first_rows[i]` and on of `stamps` are the blocks of launch i of the plan that stamps: `plan` itself,
    or where some of its launches cannot stamp, `marked`. Those span from the last end before to the first
    start behind them.
    """
    zero = _zero(stamps)
    ends = [*first_rows[1:], len(stamps)]
    own = [_relative(stamps[low:high], zero) for low, high in zip(first_rows, ends, strict=True)]
    places = marked.places if marked is not None else range(len(own))
    between = _bounds(plan, own, marked) if marked is not None else {}
    spans = []
    for index, (launch, place) in enumerate(zip(plan.launches, places, strict=True)):
        rows = own[place]
        if index in between:
            arrived, start, end = between[index][0], *between[index]
        else:
            arrived, start, end = rows[:, ARRIVAL].min(), rows[:, START].min(), rows[:, END].max()
        spans.append(
            LaunchSpan(
                index, launch.kernel, launch.origin, launch.stream, launch.deps, launch.grid, launch.block,
                arrived_s=float(arrived) * NANOSECOND,
                start_s=float(start) * NANOSECOND,
                end_s=float(end) * NANOSECOND,
                processors=tuple(_processor_spans(rows)),
                bounded=index in between,
            )
        )  # fmt: skip
    return tuple(spans)


def _bounds(plan: ExecutionPlan, own: Sequence[Relative], marked: MarkedPlan) -> dict[int, tuple[int, int]]:
    """Nanoseconds of the last end before each launch that cannot stamp and of the first start behind it.

    own: the stamps of every launch of `marked`.
    """
    started = {i: int(own[p][:, START].min()) for i, p in enumerate(marked.places) if len(own[p])}
    behind: dict[int, list[int]] = {i: [] for i in marked.bounded}
    for index, launch in enumerate(plan.launches):
        for dep in launch.deps:
            if dep in behind and index in started:
                behind[dep].append(started[index])
    bounds = {}
    for index in sorted(marked.bounded):
        last = max(int(own[p][:, END].max()) for p in marked.launches[marked.places[index]].deps)
        if index in marked.after:
            behind[index].append(int(own[marked.after[index]][0, START]))
        # timers of two multiprocessors may be a step apart
        bounds[index] = (last, max(last, min(behind[index])))
    return bounds


def processor_busy_s(stamps: Stamps) -> dict[int, float]:
    """Seconds in which at least one block of any launch ran, for each multiprocessor."""
    return {p.processor: p.busy_s for p in _processor_spans(_relative(stamps, _zero(stamps)))}


def _zero(stamps: Stamps) -> np.uint64:
    return stamps[:, ARRIVAL].min() if len(stamps) else np.uint64(0)


def _relative(stamps: Stamps, zero: np.uint64) -> Relative:
    own = stamps.astype(np.int64)
    own[:, [ARRIVAL, START, END]] -= np.int64(zero)
    return own


def _processor_spans(own: Relative) -> list[ProcessorSpan]:
    own = own[np.lexsort((own[:, START], own[:, PROCESSOR]))]
    cuts = np.flatnonzero(np.diff(own[:, PROCESSOR])) + 1
    out = []
    for blocks in np.split(own, cuts) if len(own) else ():
        starts, ends = blocks[:, START], np.maximum.accumulate(blocks[:, END])
        pauses = np.maximum(starts[1:] - ends[:-1], 0).sum()
        out.append(
            ProcessorSpan(
                processor=int(blocks[0, PROCESSOR]),
                start_s=float(starts[0]) * NANOSECOND,
                end_s=float(ends[-1]) * NANOSECOND,
                busy_s=float(ends[-1] - starts[0] - pauses) * NANOSECOND,
                blocks=len(blocks),
            )
        )
    return out
