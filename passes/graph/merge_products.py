"""Pass merge-products: products with constants that read one input become one product and slices of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.costmodel import Hardware, load_hardware
from tilewright.ir import Builder, Constants, Func, Level, Module, Op, Value
from tilewright.passes import PassContext, Pipeline, register_pass, run_pipeline
from tilewright.passes.constant_pool import ConstantPool
from tilewright.passes.dead_ops import live_ops
from tilewright.passes.graph.parallel_products import (
    Product,
    channel_axis,
    joined_type,
    parallel_products,
    weight_axis,
    whole_product,
)
from tilewright.passes.graph.product_cost import product_s
from tilewright.passes.values import replace_in_op

#: graph ops to kernels without parameters
_KERNELS = "graph-to-tensor, forward-copies, cse, dce, join-concats, fuse-kernels"


@register_pass(Level.GRAPH, requires={"shapes-known"})
def merge_products(module: Module, ctx: PassContext, *, tf32: bool = False, always: bool = False) -> Module:
    """Compute products with constants that read the same input, and what follows each alone, at once.

    rewrite:  %0 = graph.dense(%x, w); %1 = graph.dense(%x, v); %2 = graph.relu(%0); %3 = graph.relu(%1)
        -->   %0 = graph.dense(%x, "w.v"); %1 = graph.relu(%0);
              %2 = graph.strided_slice(%1, ...); %3 = graph.strided_slice(%1, ...)

    The constants lie one after another along the output channel, biases too. Products merge where the whole
    one is estimated to take no longer than its members in turn, and where that saves as many kernels as there
    are products less: the slices are read in place by what follows. tf32: TF32 will be allowed (pass
    `allow-tf32`), which the estimates are to know. always: merge whatever the estimates say.
    """
    pool = ConstantPool(module.constants)
    main = module.main
    groups = parallel_products(main, pool) if main.level is Level.GRAPH else []
    if not always:
        hardware = ctx.hardware or load_hardware(ctx.target)
        groups = _saving(main, [g for g in groups if _faster(g, hardware, tf32)], pool, ctx)
    if not groups:
        return module
    merged = _merged(main, groups, pool)
    return module.with_funcs(tuple(merged if f is main else f for f in module.funcs)).with_constants(
        pool.constants
    )


def _faster(group: Sequence[Product], hardware: Hardware, tf32: bool) -> bool:
    """Whether one product takes no longer than those of the group."""
    apart = sum(product_s(p.op, hardware, tf32=tf32) for p in group)
    return product_s(whole_product(group), hardware, tf32=tf32) <= apart


def _saving(
    func: Func, groups: Sequence[list[Product]], pool: ConstantPool, ctx: PassContext
) -> list[list[Product]]:
    """The groups that save a kernel for every product less; all are tried at once before each is alone."""
    if not groups:
        return []
    scratch = ConstantPool(pool.constants)
    before = _kernel_count(func, ctx)

    def saves(some: Sequence[list[Product]]) -> bool:
        after = _kernel_count(_merged(func, some, scratch), ctx)
        return before - after >= sum(len(g) - 1 for g in some)

    if saves(groups):
        return list(groups)
    return [g for g in groups if len(groups) > 1 and saves([g])]


def _kernel_count(func: Func, ctx: PassContext) -> int:
    quiet = replace(ctx, instruments=(), reproducer_folder=None)
    module = Module("count", (replace(func, name="main"),), constants=Constants({}))
    kernels = run_pipeline(module, Pipeline.parse(_KERNELS), quiet)
    return sum(op.name == "tensor.call" for op in kernels.main.body.ops)


def _merged(func: Func, groups: Sequence[list[Product]], pool: ConstantPool) -> Func:
    """The function with each group at the place of its first product."""
    starts = {g[0].op: g for g in groups}
    constants = {op.result: op for op in func.body.ops if op.name == "graph.constant"}
    ended: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in func.body.ops:
        ops.append(replace_in_op(op, ended))
        if op in starts:
            writer = _Writer(pool, constants, replace_in_op(op, ended).operands[0])
            ended.update(writer.group(starts[op]))
            ops += writer.b.ops
    block = func.body.with_ops(tuple(ops))
    return func.with_body(block.with_ops(live_ops(block)))


class _Writer:
    """Builds the ops of one group."""

    def __init__(self, pool: ConstantPool, constants: dict[Value, Op], x: Value) -> None:
        self.pool, self.constants, self.x = pool, constants, x
        self.b = Builder()

    def group(self, group: Sequence[Product]) -> dict[Value, Value]:
        """What replaces the last value of each member."""
        first, axis = group[0], channel_axis(group[0].op)
        with self.b.at(first.op.loc):
            weight = self._joined([p.op.operands[1] for p in group], weight_axis(first.op))
            (value,) = self.b.emit(first.op.name, (self.x, weight), dict(first.op.attrs))
        for steps in zip(*(p.steps for p in group), strict=True):
            step = steps[0]
            with self.b.at(step.op.loc):
                operands = [value]
                if step.constant >= 0:
                    given = [s.op.operands[s.constant] for s in steps]
                    constant = self._joined(given, step.axis) if step.axis >= 0 else given[0]
                    operands.insert(step.constant, constant)
                (value,) = self.b.emit(step.op.name, operands, dict(step.op.attrs))
        out, start = {}, 0
        for p in group:
            shape = p.end.tensor.shape
            begin = tuple(start if d == axis else 0 for d in range(len(shape)))
            with self.b.at(p.op.loc):
                ones = (1,) * len(shape)
                out[p.end] = self.b.value("graph.strided_slice", value, begin=begin, size=shape, strides=ones)
            start += p.channels
        return out

    def _joined(self, values: Sequence[Value], axis: int) -> Value:
        """The constants one after another, as a new one that is named after all of them."""
        made = [self.constants[v] for v in values]
        arrays = [a for a in map(self.pool.array, made) if a is not None]
        name = self.pool.add(".".join(str(op["name"]) for op in made), np.concatenate(arrays, axis))
        (result,) = self.b.emit(
            "graph.constant", (), {"name": name}, types=[joined_type((v.tensor for v in values), axis)]
        )
        return result
