"""Stores constant weights of contractions in the order their kernel reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir import Func, Level, Module, Op, Ref, Sym, Value
from tilewright.ir.tensor.ops import reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.kernels.decision import with_parameters
from tilewright.passes.kernels.kernel_problem import contract_roles
from tilewright.passes.kernels.registry import template_of
from tilewright.passes.kernels.weight_order import WeightOrder


@register_pass(Level.TENSOR, requires={"kernels-outlined", "parameters-chosen"})
def pack_weights(module: Module, ctx: PassContext) -> Module:
    """Permute the constant second operand of contraction kernels so that what a kernel reads is contiguous.

    rewrite:  tensor.contract(%x, %w: f32[64, 64, 3, 3], reads = [..., [k, c, r, s]])
              -->   tensor.contract(%x, %w: f32[64, 3, 3, 64], reads = [..., [c, r, s, k]])

    Vector loads of neighbouring columns need it; kernels on tensor cores copy runs of
    the channel that they cut into chunks instead: [r, s, k, c]. Kernels of CPUs (staging `direct`) read all
    weights of one tile of columns after the other: [k // tile, c, r, s, k % tile], so that the processor
    prefetches them; what the last tile has too many of is zero. The weights are permuted once, at compile
    time. Kernels that multiply in TF32 get weights that are rounded to it, and `rounded` in their
    parameters says so.
    """
    main = module.main
    constants = {op.result: op for op in main.body.ops if op.name == "tensor.constant"}
    funcs = {f.name: f for f in module.funcs}
    packed: dict[str, np.ndarray] = {}
    fresh: dict[tuple[Value, WeightOrder], Op] = {}
    calls_of: dict[object, list[Op]] = {}
    for op in main.body.ops:
        calls_of.setdefault(op.get("callee"), []).append(op)
    packings: dict[str, list[_Packing]] = {}
    for name, kernel in list(funcs.items()):
        calls = calls_of.get(Ref(name), [])
        for packing in _packings(kernel) if calls else ():
            weights = [op.operands[packing.position] for op in calls]
            if any(w not in constants or str(constants[w]["name"]) not in module.constants for w in weights):
                continue
            packings.setdefault(name, []).append(packing)
            for w in weights:
                _constant(module, kernel.params[packing.position], constants[w], packing, packed, fresh)
            funcs[name] = _permute(funcs[name], packing)
    if not fresh:
        return module
    new_main = _redirect(main, packings, fresh)
    out = module.with_funcs(tuple(new_main if f.name == "main" else funcs[f.name] for f in module.funcs))
    return out.with_constants(module.constants.updated(packed))


@dataclass(frozen=True)
class _Packing:
    """Parameter position of the weights, and how they are stored."""

    position: int
    order: WeightOrder


def _packings(kernel: Func) -> Iterator[_Packing]:
    """The orders in which the weights of a kernel are packed; none where they stay as they are."""
    template = template_of(kernel)
    if template is None:
        return
    engine = template.contraction
    order_of = template.weight_order if engine is None else engine.weight_order
    if order_of is None:
        return
    products = [o for o in kernel.body.ops if o.name == "tensor.contract"]
    for op in products if engine is None else products[:1]:
        at, columns = reads(op)[1], contract_roles(op).columns
        weights = op.operands[1]
        uses = sum(list(o.operands).count(weights) for o in kernel.body.ops)
        plain = all(isinstance(e, Sym) for e in at) and len(set(at)) == len(at)
        if weights not in kernel.params or uses != 1 or not plain or not columns:
            continue
        order = order_of(kernel, op)
        if order.changes:
            yield _Packing(kernel.params.index(weights), order)


def _permute(kernel: Func, packing: _Packing) -> Func:
    old, order = kernel.params[packing.position], packing.order
    new = Value(replace(old.tensor, shape=order.shape(old.tensor.shape)), old.hint)

    def edit(op: Op) -> Op:
        if old not in op.operands:
            return op
        at = list(reads(op))
        at[1] = order.at(at[1])
        return op.with_attrs(reads=tuple(at)).with_operands(
            tuple(new if v is old else v for v in op.operands)
        )

    params = tuple(new if p is old else p for p in kernel.params)
    packed = replace(kernel, body=replace(kernel.body, params=params, ops=tuple(map(edit, kernel.body.ops))))
    # templates whose order rounds weights have this parameter
    return with_parameters(packed, rounded=True) if order.rounds else packed


def _constant(
    module: Module, param: Value, op: Op, packing: _Packing, packed: dict[str, np.ndarray],
    fresh: dict[tuple[Value, WeightOrder], Op],
) -> None:  # fmt: skip
    """A constant op for the packed weights (as the kernel sees them, whatever shape the constant has)."""
    order = packing.order
    if (op.result, order) in fresh:
        return
    name = str(op["name"])
    array = order.stored(module.constants[name].reshape(param.tensor.shape))
    new_name = f"{name}.{order.suffix}"
    while new_name in module.constants and new_name not in packed:
        new_name += "_"
    packed[new_name] = array
    result = Value(replace(op.result.tensor, shape=array.shape), op.result.hint)
    fresh[(op.result, order)] = replace(op.with_attrs(name=new_name), results=(result,))


def _redirect(
    main: Func,
    packings: Mapping[str, Sequence[_Packing]],
    fresh: dict[tuple[Value, WeightOrder], Op],
) -> Func:
    def edit(op: Op) -> Op:
        ref = op.get("callee")
        known = packings.get(ref.name, ()) if isinstance(ref, Ref) else ()
        if not known:
            return op
        operands = list(op.operands)
        for packing in known:
            operands[packing.position] = fresh[(operands[packing.position], packing.order)].result
        return op.with_operands(tuple(operands))

    return main.with_body(main.body.with_ops((*fresh.values(), *map(edit, main.body.ops))))
