"""A plan -> the same plan whose kernels stamp the times of their blocks into one more output.

Launches, streams, dependencies and the arena stay; only the kernels' text and one argument per launch differ.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import accumulate

from tilewright.codegen import KernelSource, emit_cuda
from tilewright.codegen.stamps import STAMPS_PER_BLOCK
from tilewright.ir import Func, Level, Module, UnsupportedError
from tilewright.kernel_builds import build_codes
from tilewright.runtime.plan import Buffer, ExecutionPlan, Launch
from tilewright.targets import Target

STAMP_BYTES = 8 * STAMPS_PER_BLOCK
#: words of C, with the bracket of a call; and those that are no names of variables
_WORD = re.compile(r"[A-Za-z_]\w*\(?|\w+(?:\.\w+)*|\S")
_FIXED = re.compile(r"tw_\w+|(?:const|unsigned|signed|float|double|long|int|short|char|bool|if|for)\d*")


@dataclass(frozen=True)
class StampedPlan:
    """A plan whose last output holds the stamps: rows `first_rows[i]` and on are those of launch i."""

    plan: ExecutionPlan
    first_rows: tuple[int, ...]


def stamped_plan(plan: ExecutionPlan, thread: Module, target: Target) -> StampedPlan:
    """Kernels emitted once more from the thread level, with stamps, and built (from the cache where it can).

    thread: the module `plan` was made of. Raises UnsupportedError where the plan's kernels are not those that
    this version emits for it, since other kernels would be timed then.
    """
    for kernel in plan.kernels:
        if kernel.language == "library":
            raise UnsupportedError(
                f"kernel '{kernel.name}' is one of a library and cannot stamp when it runs: compile the "
                "network with libraries=False to profile it"
            )
    funcs = {f.name: f for f in thread.funcs if f.level is Level.THREAD}
    sources = {k.name: _stamped(funcs.get(k.name), k.name, k.source) for k in plan.kernels}
    codes = build_codes(sources, target)
    blocks = [launch.grid[0] * launch.grid[1] * launch.grid[2] for launch in plan.launches]
    first_rows = tuple(accumulate(blocks, initial=0))[:-1]
    name = _unused("stamps", plan)
    total = Buffer(name, "uint64", (sum(blocks), STAMPS_PER_BLOCK), "output", STAMP_BYTES * sum(blocks))
    views = tuple(
        Buffer(
            f"{name}.{i}", "uint64", (n, STAMPS_PER_BLOCK), "alias", STAMP_BYTES * n, STAMP_BYTES * row, name
        )
        for i, (n, row) in enumerate(zip(blocks, first_rows, strict=True))
    )
    stamped = plan.replace(
        buffers=(*plan.buffers, total, *views),
        kernels=tuple(codes[k.name] for k in plan.kernels),
        launches=tuple(
            _with_argument(launch, view) for launch, view in zip(plan.launches, views, strict=True)
        ),
        outputs=(*plan.outputs, name),
    )
    return StampedPlan(stamped.validate(), first_rows)


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


def _unused(name: str, plan: ExecutionPlan) -> str:
    """`name`, with underscores before it as long as the plan has buffers that begin like it."""
    while any(b.name.startswith(name) for b in plan.buffers):
        name = f"_{name}"
    return name
