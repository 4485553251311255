"""Pass overlap-launches: kernels wait themselves for what they depend on, so that they may start early."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.costmodel.kernels.relays import starts_early
from tilewright.ir.nodes import Func, Level, Module, Op, Value, walk
from tilewright.ir.thread.launch_ops import (
    CONSTANT_PARAMS,
    EARLY_FACTORS,
    PREFETCH,
    WAIT,
    releases_dependents,
    waits_for_launches,
)
from tilewright.ir.types import TensorType
from tilewright.passes.analysis.constant_params import constant_positions, settled_positions
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass


@register_pass(Level.THREAD)
def overlap_launches(module: Module, ctx: PassContext) -> Module:
    """Let every kernel start before the launches it depends on have finished, on GPUs that can (sm_90 on).

    rewrite:  func @k(%x, %w) { %a = load(%x) ... }
        -->   func @k(%x, %w, constant_params = [1]) {
                  wait_for_launches; %a = load(%x) ...
              }

    Before the wait stay prefetches of constants, loads of them into registers and asynchronous copies of them
    to shared memory that need nothing else, up to the first barrier: they are in flight while other kernels
    end. What uses them comes after it, so that nothing stalls earlier.

    `constant_params` are the parameters that every call in @main gives a constant: nothing writes them while
    the network runs. Those of kernels with `early_factors` are also what settled launches wrote, which have
    ended before this one may start. Dependents start when the last block of a kernel ends, unless
    `relay-launches` lets them start earlier.
    """
    if not starts_early(ctx.target):
        return module
    constants = constant_positions(module)
    settled = settled_positions(module)
    funcs: list[Func] = []
    for f in module.funcs:
        known = constants.get(f.name, ())
        if f.get(EARLY_FACTORS):
            known = tuple(sorted({*known, *settled.get(f.name, ())}))
        funcs.append(_overlapping(f, known) if f.level is Level.THREAD else f)
    return module.with_funcs(tuple(funcs))


def _overlapping(func: Func, constants: tuple[int, ...]) -> Func:
    if waits_for_launches(func) or releases_dependents(func):
        return func
    ops = func.body.ops
    end = next((i for i, op in enumerate(ops) if _has_barrier(op)), len(ops) - 1)
    early = _early(ops[:end], func.params, frozenset(func.params[i] for i in constants))
    first = [op for op in ops if op in early]
    rest = [op for op in ops if op not in early]
    body = func.body.with_ops((*first, Op(WAIT), *rest))
    return func.with_attrs(**{CONSTANT_PARAMS: constants}).with_body(body)


def _early(ops: Sequence[Op], params: Sequence[Value], constants: frozenset[Value]) -> set[Op]:
    """Those of `ops` that may run before all others; they fetch constants and compute with numbers."""
    early: set[Op] = set()
    late = set(params) - constants  # also what the ops that stay behind define and access
    loaded: set[Value] = set()
    for op in ops:
        inside = _inside(op)
        loaded |= {o.result for o in inside if o.name == "thread.load"}
        if all(_only_fetches(o, loaded) and late.isdisjoint(o.operands) for o in inside):
            early.add(op)
            continue
        late.update(r for o in inside for r in o.results)
        late.update(v for o in inside for v in o.operands if _is_buffer(v) and v not in constants)
    return early


def _only_fetches(op: Op, loaded: set[Value]) -> bool:
    """True when an op fetches to registers or asynchronously, or computes with nothing that was loaded."""
    if op.name == "thread.load":
        return op.operands[0].tensor.space == "global"
    if op.name == "thread.store":
        return op.operands[1].tensor.space == "reg"
    if op.name in (PREFETCH, "thread.copy_async"):
        return True
    if op.level == "scalar":
        return loaded.isdisjoint(op.operands)
    return op.name in ("thread.alloc", "thread.loop", "thread.if", "thread.yield") and not op.operands


def _inside(op: Op) -> list[Op]:
    return [op, *walk(op.body)] if op.body is not None else [op]


def _has_barrier(op: Op) -> bool:
    return any(o.name == "thread.barrier" for o in _inside(op))


def _is_buffer(value: Value) -> bool:
    return isinstance(value.type, TensorType)
