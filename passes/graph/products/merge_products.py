"""Pass merge-products: products with constants that read one input become one product and slices of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np

from tilewright.costmodel import load_hardware
from tilewright.ir import Builder, Func, Level, Module, Op, Value
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.passes import PassContext, register_pass
from tilewright.passes.graph.products.kernel_savings import Savings
from tilewright.passes.graph.products.parallel_products import (
    ProductGroup,
    channel_axis,
    joined_type,
    parallel_products,
    weight_axis,
    whole_product,
)
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.values import replace_in_op


@register_pass(Level.GRAPH, requires={"shapes-known"})
def merge_products(
    module: Module, ctx: PassContext, *, factors: Literal["", "tf32", "split"] = "", always: bool = False
) -> Module:
    """Compute products with constants that read the same input, and what follows each alone, at once.

    rewrite:  %0 = graph.dense(%x, w); %1 = graph.dense(%x, v); %2 = graph.relu(%0); %3 = graph.relu(%1)
        -->   %0 = graph.dense(%x, "w.v"); %1 = graph.relu(%0);
              %2 = graph.strided_slice(%1, ...); %3 = graph.strided_slice(%1, ...)

    The constants lie one after another along the output channel, biases too. Products merge where the whole
    one is estimated to take no longer than its members in turn, and where that saves as many kernels as there
    are products less: the slices are read in place by what follows. Pieces of a concatenation along the
    channels take part where they are its first or last ones: the other members then lie beside what is
    joined, in one array with it. factors: what float32 factors will be allowed (passes `allow-tf32` and
    `allow-split`), which the estimates are to know. always: merge whatever the estimates say.
    """
    pool = ConstantPool(module.constants)
    main = module.main
    groups = parallel_products(main, pool) if main.level is Level.GRAPH else []
    if not always:
        hardware = ctx.hardware or load_hardware(ctx.target)
        fast = [
            _faster(g, partial(ctx.estimator.product_s, hardware=hardware, factors=factors)) for g in groups
        ]
        groups = _saving(main, [g for g in fast if g is not None], pool, ctx)
    if not groups:
        return module
    merged = _merged(main, groups, pool)
    return module.with_funcs(tuple(merged if f is main else f for f in module.funcs)).with_constants(
        pool.constants
    )


def _faster(group: ProductGroup | None, seconds: Callable[[Op], float]) -> ProductGroup | None:
    """Return as much of the group as one product computes no slower than its members one after another."""
    if group is None:
        return None
    whole_s, apart_s = seconds(whole_product(group)), 0.0
    for p in group.members:
        apart_s += seconds(p.op)
        if whole_s <= apart_s:  # what the others take changes nothing
            return group
    return _faster(group.without_join, seconds)


def _saving(
    func: Func, groups: Sequence[ProductGroup], pool: ConstantPool, ctx: PassContext
) -> list[ProductGroup]:
    """The groups that save a kernel for every product less, together or each alone."""
    scratch = ConstantPool(pool.constants)
    savings = Savings(func, lambda some, merging: _merged(some, merging, scratch), ctx)
    if savings.of_all(groups) >= sum(map(_products_less, groups)):
        return list(groups)
    saving = []
    for whole in groups:
        options = [g for g in (whole, whole.without_join) if g is not None]
        saving += next(([g] for g in options if savings.of(g) >= _products_less(g)), [])
    return saving


def _products_less(group: ProductGroup) -> int:
    return len(group.members) - 1


def _merged(func: Func, groups: Sequence[ProductGroup], pool: ConstantPool) -> Func:
    """The function with each group at the place of its first product."""
    starts = {op: g for g in groups for op in _first_of(func, g)}
    joins = {g.join: g for g in groups if g.join is not None}
    constants = {op.result: op for op in func.body.ops if op.name == "graph.constant"}
    ended: dict[Value, Value] = {}
    wholes: dict[ProductGroup, Value] = {}
    ops: list[Op] = []
    earlier: set[Op] = set()  # constants of later members
    for op in func.body.ops:
        if op in earlier:
            continue
        new = replace_in_op(op, ended)
        writer = _Writer(pool, constants)
        if op in joins:
            ended[op.result] = writer.join(new, joins[op], wholes[joins[op]])
            ops += writer.b.ops
            continue
        ops.append(new)
        if op in starts:
            group = starts[op]
            wholes[group] = writer.whole(group, new.operands[0])
            ended.update(writer.slices(group, wholes[group]))
            read = dict.fromkeys(constants[v] for o in writer.b.ops for v in o.operands if v in constants)
            missing = [constant for constant in read if constant not in ops]
            earlier.update(missing)
            ops += [*missing, *writer.b.ops]
    block = func.body.with_ops(tuple(ops))
    return func.with_body(block.with_ops(live_ops(block)))


def _first_of(func: Func, group: ProductGroup) -> list[Op]:
    """The product of a group that comes first."""
    members = {p.op for p in group.members}
    return [next(op for op in func.body.ops if op in members)]


class _Writer:
    """Builds the ops of one group."""

    def __init__(self, pool: ConstantPool, constants: dict[Value, Op]) -> None:
        self.pool, self.constants = pool, constants
        self.b = Builder()

    def whole(self, group: ProductGroup, x: Value) -> Value:
        """The one product of `x` and the elementwise ops behind it."""
        first = group.members[0]
        with self.b.at(first.op.loc):
            weight = self._joined([p.op.operands[1] for p in group.members], weight_axis(first.op))
            (value,) = self.b.emit(first.op.name, (x, weight), dict(first.op.attrs))
        for steps in zip(*(p.steps for p in group.members), strict=True):
            step = steps[0]
            with self.b.at(step.op.loc):
                operands = [value]
                if step.constant >= 0:
                    constants = [s.op.operands[s.constant] for s in steps]
                    constant = self._joined(constants, step.axis) if step.axis >= 0 else constants[0]
                    operands.insert(step.constant, constant)
                (value,) = self.b.emit(step.op.name, operands, dict(step.op.attrs))
        return value

    def slices(self, group: ProductGroup, whole: Value) -> dict[Value, Value]:
        """Return, for each member that is read by itself, the slice that replaces its last value."""
        out, start = {}, 0
        for p in group.members:
            if p in group.apart:
                with self.b.at(p.op.loc):
                    out[p.end] = self._slice(whole, p.end, channel_axis(p.op), start)
            start += p.channels
        return out

    def join(self, op: Op, group: ProductGroup, whole: Value) -> Value:
        """Return the value that replaces a concatenation whose first or last operands are part of `whole`."""
        axis = channel_axis(group.members[0].op)
        rest = op.operands[group.pieces :] if group.leads else op.operands[: -group.pieces]
        with self.b.at(op.loc):
            values = (whole, *rest) if group.leads else (*rest, whole)
            if len(values) > 1:
                (whole,) = self.b.emit(op.name, values, dict(op.attrs))
            start = sum(p.channels for p in group.apart) if group.leads else 0
            return self._slice(whole, op.result, axis, start) if group.apart else whole

    def _slice(self, whole: Value, like: Value, axis: int, start: int) -> Value:
        """Elements of `whole` of the shape of `like` from index `start` of `axis`."""
        shape = like.tensor.shape
        begin = tuple(start if d == axis else 0 for d in range(len(shape)))
        ones = (1,) * len(shape)
        return self.b.value("graph.strided_slice", whole, begin=begin, size=shape, strides=ones)

    def _joined(self, values: Sequence[Value], axis: int) -> Value:
        """The constants one after another, as a new one that is named after all of them."""
        made = [self.constants[v] for v in values]
        arrays = [a for a in map(self.pool.array, made) if a is not None]
        name = self.pool.add(".".join(str(op["name"]) for op in made), np.concatenate(arrays, axis))
        (result,) = self.b.emit(
            "graph.constant", (), {"name": name}, types=[joined_type((v.tensor for v in values), axis)]
        )
        return result
