"""A plan -> the same plan whose kernels stamp the times of their blocks into one more output.

Launches, streams, dependencies and the arena stay; the kernels' text and one argument per launch differ.
Launches that cannot stamp (of libraries, communications) stay as they are, with marks where they need some.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tilewright.codegen import KernelSource, emit_cuda
from tilewright.codegen.emit.stamps import STAMPS_PER_BLOCK
from tilewright.compilation.kernel_builds import build_codes
from tilewright.devices.targets import Target
from tilewright.ir import Level, Module, UnsupportedError
from tilewright.profiling.launch_marks import MarkedPlan, mark_source, marked, unstamped
from tilewright.profiling.value_names import value_names, with_value_names
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, Launch

STAMP_BYTES = 8 * STAMPS_PER_BLOCK


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


def stamped_plan(plan: ExecutionPlan, thread: Module, target: Target) -> StampedPlan:
    """Kernels emitted once more from the thread level, with stamps, and built (from the cache where it can).

    thread: the module `plan` was made of by this version.
    """
    funcs = {f.name: f for f in thread.funcs if f.level is Level.THREAD}
    foreign = {plan.launches[i].kernel for i in unstamped(plan)}
    own = [k for k in plan.kernels if k.name not in foreign]
    sources = {k.name: emit_cuda(funcs[k.name], stamps=True) for k in own}
    mark = _unused("mark", [k.name for k in plan.kernels])
    found = marked(plan, mark)
    if found.marks:
        sources[mark] = mark_source(mark)
    codes = build_codes(sources, target)
    blocks = [_stamping_blocks(launch, sources) for launch in found.launches]
    first_rows = tuple(accumulate(blocks, initial=0))[:-1]
    name = _unused("stamps", [b.name for b in plan.buffers])
    total = Buffer(name, "uint64", (sum(blocks), STAMPS_PER_BLOCK), "output", STAMP_BYTES * sum(blocks))
    views = {
        i: Buffer(
            f"{name}.{i}", "uint64", (n, STAMPS_PER_BLOCK), "alias", STAMP_BYTES * n, STAMP_BYTES * row, name
        )
        for i, (n, row) in enumerate(zip(blocks, first_rows, strict=True))
        if n
    }
    stamped = plan.replace(
        buffers=(*plan.buffers, total, *views.values()),
        kernels=(*(k for k in plan.kernels if k.name in foreign), *codes.values()),
        launches=tuple(
            _with_argument(launch, views[i]) if i in views else launch
            for i, launch in enumerate(found.launches)
        ),
        outputs=(*plan.outputs, name),
    )
    return StampedPlan(validate(stamped), first_rows, found)


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
