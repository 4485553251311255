"""A network's plan with one kernel exchanged: only that kernel is lowered and compiled again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.compilation.kernel_builds import compiled, emit_kernels, kernel_codes
from tilewright.compilation.lowering import lower_program
from tilewright.compilation.planning import constants_of, plan_module
from tilewright.devices.targets import Target
from tilewright.ir import Func, Module, Op, Ref, Value
from tilewright.passes.tensor.prefetch_weights import weights_leave_l2
from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import ExecutionPlan, Launch


@dataclass(frozen=True, eq=False)
class NetworkPlan:
    """A plan with its kernels built, the constants it reads, and whether these exceed the device's L2."""

    plan: ExecutionPlan
    constants: Mapping[str, np.ndarray] = field(repr=False)
    cold_weights: bool = False


def network_plan(module: Module, target: Target, *, cold_weights: bool | None = None) -> NetworkPlan:
    """The plan of a module at tensor level with chosen parameters, its kernels built from the cache.

    cold_weights: whether its kernels prefetch; by default where its constants exceed the L2. Launches come in
    program order. Raises as the passes and the compiler do.
    """
    cold = weights_leave_l2(module, target.hardware) if cold_weights is None else cold_weights
    thread = lower_program(module, target, cold=cold)
    sources = emit_kernels(thread, target)
    codes = compiled(kernel_codes(sources, target), target, progress=False)
    plan = plan_module(thread, sources, codes, str(target))
    return NetworkPlan(plan, constants_of(plan, thread.constants), cold)


def with_kernels(
    base: NetworkPlan, module: Module, variants: Mapping[str, Func], target: Target
) -> NetworkPlan:
    """The plan with other variants of some kernels, by the names they have in `module`.

    base: the plan of `module`, in program order. Weights that a variant reads in another order become other
    constants; equal ones stay the same arrays, so that a device keeps one copy. Memory is placed anew.
    """
    plan, constants = base.plan, dict(base.constants)
    for name, variant in variants.items():
        part = network_plan(_calls_alone(module, variant), target, cold_weights=base.cold_weights)
        renamed = _renamed(part, constants)
        constants |= {renamed[n]: part.constants[n] for n in renamed if renamed[n] not in constants}
        buffers = {b.name: b for b in plan.buffers}
        for b in part.plan.buffers:
            if b.name in renamed:
                buffers.setdefault(renamed[b.name], replace(b, name=renamed[b.name]))
        others = iter([x for x in part.plan.launches if x.kernel == name])
        launches = tuple(
            _exchanged(x, next(others), renamed) if x.kernel == name else x for x in plan.launches
        )
        code = part.plan.kernel_by_name[name]
        kernels = tuple(code if k.name == name else k for k in plan.kernels)
        plan = plan.replace(buffers=tuple(buffers.values()), launches=launches, kernels=kernels)
    read = {a for x in plan.launches for a in x.args} | set(plan.outputs)
    kept = tuple(b for b in plan.buffers if b.kind != "constant" or b.name in read)
    plan = validate(place_arena(plan.replace(buffers=kept)))
    return NetworkPlan(plan, _constants(plan, constants), base.cold_weights)


def _calls_alone(module: Module, variant: Func) -> Module:
    """The calls of one kernel, in their order; what is no constant is an input, all results are returned."""
    main = module.main
    constants = {op.result: op for op in main.body.ops if op.name == "tensor.constant"}
    inputs: list[Value] = []
    calls: list[Op] = []
    for op in main.body.ops:
        if op.get("callee") != Ref(variant.name):
            continue
        operands = []
        for v in op.operands:
            operands.append(v if v in constants else Value(v.type, f"x{len(inputs)}"))
            if v not in constants:
                inputs.append(operands[-1])
        calls.append(replace(op, operands=tuple(operands), results=tuple(Value(r.type) for r in op.results)))
    used = {v for op in calls for v in op.operands}
    kept = [op for v, op in constants.items() if v in used]
    results = tuple(r for op in calls for r in op.results)
    returned = Op("tensor.return", operands=results)
    body = replace(main.body, params=tuple(inputs), ops=(*kept, *calls, returned))
    alone = replace(main, body=body, result_types=tuple(r.type for r in results))
    return replace(module, funcs=(variant, alone), attrs=())


def _renamed(part: NetworkPlan, constants: Mapping[str, np.ndarray]) -> dict[str, str]:
    """What the constants of the part are called in the network: their name where it means the same array."""
    out = {}
    for name, array in part.constants.items():
        new = name
        while new in constants and not _same(constants[new], array):
            new += "_"
        out[name] = new
    return out


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a is b or (a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


def _exchanged(old: Launch, new: Launch, renamed: Mapping[str, str]) -> Launch:
    args = tuple(renamed.get(b, a) for a, b in zip(old.args, new.args, strict=True))
    return replace(
        old, args=args, grid=new.grid, block=new.block, shared_bytes=new.shared_bytes, writes=new.writes,
        in_place=new.in_place,
    )  # fmt: skip


def _constants(plan: ExecutionPlan, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {b.name: np.asarray(arrays[b.name]) for b in plan.buffers if b.kind == "constant"}
