"""Pass overlap-launches: kernels wait themselves for what they depend on, so that they may start early."""

from __future__ import annotations

import re
from typing import Literal

from tilewright.ir.nodes import Func, Level, Module, Op, Ref, Value
from tilewright.ir.thread_launch_ops import (
    CONSTANT_PARAMS,
    RELEASE,
    WAIT,
    releases_dependents,
    waits_for_launches,
)
from tilewright.passes.context import PassContext
from tilewright.passes.definition import register_pass

#: the first architecture with programmatic dependent launch
FIRST_ARCH = 90


@register_pass(Level.THREAD)
def overlap_launches(
    module: Module, ctx: PassContext, *, release: Literal["after-wait", "first"] = "after-wait"
) -> Module:
    """Let every kernel start before the launches it depends on have finished, on GPUs that can (sm_90 on).

    rewrite:  func @k(%x, %w) { %a = load(%x) ... }
        -->   func @k(%x, %w, constant_params = [1]) {
                  wait_for_launches; release_dependents; %a = load(%x) ...
              }

    `constant_params` are the parameters that every call in @main gives a constant: nothing writes them while
    the network runs. release: `after-wait` holds dependents back until this kernel's own dependencies are
    done, so that few waiting kernels take up room; `first` lets them start at once.
    """
    if not starts_early(ctx.target):
        return module
    constants = constant_positions(module)
    return module.with_funcs(
        tuple(
            _overlapping(f, constants.get(f.name, ()), release == "first") if f.level is Level.THREAD else f
            for f in module.funcs
        )
    )


def starts_early(target: str) -> bool:
    """Whether kernels of a target such as `cuda:sm_90a` may start before those they depend on have ended."""
    arch = re.search(r":sm_(\d+)", target)
    return arch is not None and int(arch[1]) >= FIRST_ARCH


def constant_positions(module: Module) -> dict[str, tuple[int, ...]]:
    """Per kernel that @main calls, the parameters that are constants at every call."""
    constants: set[Value] = set()
    found: dict[str, set[int]] = {}
    for main in (f for f in module.funcs if f.name == "main"):
        for op in main.body.ops:
            if op.name == "tensor.constant":
                constants.add(op.result)
            ref = op.get("callee")
            if isinstance(ref, Ref):
                here = {i for i, v in enumerate(op.operands) if v in constants}
                found[ref.name] = found.get(ref.name, here) & here
    return {name: tuple(sorted(positions)) for name, positions in found.items()}


def _overlapping(func: Func, constants: tuple[int, ...], release_first: bool) -> Func:
    if waits_for_launches(func) or releases_dependents(func):
        return func
    start = [Op(RELEASE), Op(WAIT)] if release_first else [Op(WAIT), Op(RELEASE)]
    body = func.body.with_ops((*start, *func.body.ops))
    return func.with_attrs(**{CONSTANT_PARAMS: constants}).with_body(body)
