"""A plan -> the same plan whose kernels stamp the times of their blocks into one more output.

Launches, streams, dependencies and the arena stay; the kernels' text and one argument per launch differ.
Launches that cannot stamp (of libraries, communications) stay as they are, with marks where they need some.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tilewright.codegen import KernelSource, emit_cuda
from tilewright.codegen.emit.stamps import STAMPS_PER_BLOCK
from tilewright.compilation.kernel_builds import build_codes
from tilewright.devices.targets import Target
from tilewright.ir import Func, Level, Module, UnsupportedError
from tilewright.profiling.launch_marks import MarkedPlan, mark_source, marked, unstamped
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, Launch

STAMP_BYTES = 8 * STAMPS_PER_BLOCK
#: words of C, with the bracket of a call; and those that are no names of variables
_WORD = re.compile(r"[A-Za-z_]\w*\(?|\w+(?:\.\w+)*|\S")
_FIXED = re.compile(r"tw_\w+|(?:const|unsigned|signed|float|double|long|int|short|char|bool|if|for)\d*")


@dataclass(frozen=True)
class StampedPlan:
    """A plan whose last output holds the stamps: rows `first_rows[i]` and on are those of its launch i.

    marked: how the launches of the original stand among those of `plan`.
    """

    plan: ExecutionPlan
    first_rows: tuple[int, ...]
    marked: MarkedPlan


def stamped_plan(plan: ExecutionPlan, thread: Module, target: Target) -> StampedPlan:
    """Kernels emitted once more from the thread level, with stamps, and built (from the cache where it can).

    thread: the module `plan` was made of. Raises UnsupportedError where the plan's kernels are not those that
    this version emits for it, since other kernels would be timed then.
    """
    funcs = {f.name: f for f in thread.funcs if f.level is Level.THREAD}
    foreign = {plan.launches[i].kernel for i in unstamped(plan)}
    own = [k for k in plan.kernels if k.name not in foreign]
    sources = {k.name: _stamped(funcs.get(k.name), k.name, k.source) for k in own}
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


def _stamped(func: Func | None, name: str, planned: str) -> KernelSource:
    if func is None or _without_names(emit_cuda(func).source) != _without_names(planned):
        raise UnsupportedError(
            f"kernel '{name}' cannot be profiled: this version of Tilewright emits it other than the "
            "executable has it; compile the network again"
        )
    return emit_cuda(func, stamps=True)


def _without_names(source: str) -> list[str]:
    """The words of a kernel with one name for all variables: their names are not part of the printed IR."""
    text = re.sub(r"//.*", "", source)
    return [
        "%" if word.isidentifier() and not _FIXED.fullmatch(word) else word for word in _WORD.findall(text)
    ]


def _with_argument(launch: Launch, view: Buffer) -> Launch:
    return replace(launch, args=(*launch.args, view.name), writes=(*launch.writes, len(launch.args)))


def _unused(name: str, taken: Sequence[str]) -> str:
    """`name`, with underscores before it as long as a taken one begins like it."""
    while any(t.startswith(name) for t in taken):
        name = f"_{name}"
    return name
