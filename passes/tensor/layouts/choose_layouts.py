"""Pass choose-layouts: the order of dimensions of intermediate values, chosen over the whole network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from tilewright.costmodel import CpuHardware, load_hardware
from tilewright.ir import Attr, Builder, Constants, Func, InputError, Level, Module, Op, Pairs, Sym, Value
from tilewright.ir.tensor.ops import STRUCTURED, dims, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.copies import copied
from tilewright.passes.analysis.minimum_cut import least_cost
from tilewright.passes.tensor.layouts.axes import (
    Order,
    channels_last_orders,
    conversions,
    copied_orders,
    reordered,
    rewritten,
)
from tilewright.passes.tensor.layouts.cost import LayoutCosts, has_matrix_units
from tilewright.passes.tensor.layouts.pieces import program_s
from tilewright.passes.tensor.layouts.selection import order_problem, selection_facts


@register_pass(Level.TENSOR)
def choose_layouts(
    module: Module,
    ctx: PassContext,
    *,
    layout: Literal["auto", "first", "last"] = "auto",
    method: Literal["cut", "exact", "sssp"] = "cut",
    partitioner: Literal["rules", "maximal"] = "rules",
) -> Module:
    """Let intermediate values lie in the order of dimensions that costs least.

    rewrite:  %y = tensor.contract(%x, %w, par = (n, k, y, x), reads = [[n, c, y, x], [k, c]])
        -->   %y = tensor.contract(%x, %w, par = (n, y, x, k), reads = [[n, y, x, c], [k, c]])

    Values are dense and row-major: the order of their dimensions is their layout, and every read follows it.
    Parameters, constants and results of the network keep theirs. `last` moves the channels of all other
    values to the end, `first` changes nothing; `auto` compares both for each value by the costs of all that
    read and make it (a minimum cut), on CPUs and where there are contractions for tensor cores, and changes
    nothing elsewhere. Where there are tensor cores, results of 16-bit products that only copies read lie as
    these write them (heads of attention side by side), which makes the copies views:

    rewrite:  %y = tensor.contract(%p, %v, par = (b, h, m, n)); %z = tensor.map(%y, par = (b, m, c),
                                   reads = [[b, c // 64, m, c % 64]])
        -->   %y = tensor.contract(%p, %v, par = (b, m, h, n)); %z = tensor.map(%y, par = (b, m, c),
                                   reads = [[b, m, c // 64, c % 64]])

    How many values keep their channels innermost, and which ops must move elements for it, stands in the
    attribute `layouts`. Constant weights of windows get a copy in the order that is read, for
    `fold-constant-tensors`.

    method: how `auto` chooses. `cut` is the comparison of two orders above. `exact` has a variable per value
    with all orders that some op can use, prices every kernel, forward and backward, by the estimate of its
    family for each combination of them, and takes the choice of least seconds; the attribute says what it
    costs, and what proves it. `sssp` chooses by shortest paths over the same costs (the baseline).
    partitioner: what will choose which ops share a kernel; `exact` and `sssp` price its kernels.
    """
    if layout != "auto" and method != "cut":
        raise InputError(f"expected layout=auto with method={method}, got layout={layout}")
    if method == "cut":
        return module.with_funcs(
            tuple(_by_cut(f, ctx, layout) if f.level is Level.TENSOR else f for f in module.funcs)
        )
    main = module.main
    if main.level is not Level.TENSOR or any(op.name == "tensor.call" for op in main.body.ops):
        return module
    chosen = _by_selection(main, module.constants, ctx, method, partitioner)
    return module.with_funcs(tuple(chosen if f is main else f for f in module.funcs))


def _by_cut(func: Func, ctx: PassContext, layout: str) -> Func:
    """The function with its channels first or last; `layout` as of the pass."""
    if layout == "first" or any(op.name == "tensor.call" for op in func.body.ops):
        return func
    if layout == "auto" and not (has_matrix_units(func, ctx) or _on_cpu(func, ctx)):
        return func
    orders = channels_last_orders(func)
    copies: dict[Value, Order] = {}
    if layout == "auto":
        orders, copies = _cut_orders(func, orders, ctx)
    if not orders:
        return rewritten(func, copies) if copies else func
    facts = _counts(func, orders)
    orders = {**orders, **copies}
    return _with_weights_innermost(rewritten(func, orders)).with_attrs(layouts=Pairs.of(facts))


def _cut_orders(
    func: Func, last: Mapping[Value, Order], ctx: PassContext
) -> tuple[dict[Value, Order], dict[Value, Order]]:
    """The orders of the least cut, and those of products that copies read."""
    orders = _cheapest(func, last, ctx)
    return orders, copied_orders(func, orders) if has_matrix_units(func, ctx) else {}


def _by_selection(
    func: Func,
    constants: Constants,
    ctx: PassContext,
    method: Literal["exact", "sssp"],
    partitioner: str,
) -> Func:
    """The function in the orders that a selection over all its kernels chooses.

    Kernels of a piece alone need not be those of the whole program, so an exact choice is compared with the
    cut's once more, both as whole programs; where the cut's takes less time, it is taken, and the facts say
    so.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    problem = order_problem(func, constants, hardware, ctx, partitioner=partitioner)
    selection = problem.solved(method)
    orders = problem.chosen(selection)
    last = channels_last_orders(func)
    choice = selection_facts(problem, selection, method)
    if method == "exact":
        cut = {v: order for part in _cut_orders(func, last, ctx) for v, order in part.items()}
        whole_s, cut_s = (program_s(func, constants, o, hardware, ctx, partitioner) for o in (orders, cut))
        orders = cut if cut_s < whole_s else orders
        choice |= {"whole_s": whole_s, "cut_whole_s": cut_s, "taken": "cut" if cut_s < whole_s else "exact"}
    facts = _counts(func, {v: order for v, order in orders.items() if order == last.get(v)})
    facts["conversions"] = tuple(op.loc or op.name for op in conversions(func, orders))
    facts |= {"reordered": len(orders), "choice": Pairs.of(choice)}
    return _with_weights_innermost(rewritten(func, orders)).with_attrs(layouts=Pairs.of(facts))


def _counts(func: Func, last: Mapping[Value, Order]) -> dict[str, Attr]:
    """How many values are channels-last, of how many, and which ops convert for it."""
    return {
        "channels_last": len(last),
        "values": sum(len(op.results) for op in func.body.ops if op.name in STRUCTURED),
        "conversions": tuple(op.loc or op.name for op in conversions(func, last)),
    }


def _on_cpu(func: Func, ctx: PassContext) -> bool:
    """Return whether the device is a CPU, whose vectors lie along channels, and the program has
    contractions.
    """
    products = any(op.name == "tensor.contract" for op in func.body.ops)
    return products and isinstance(ctx.hardware or load_hardware(ctx.target), CpuHardware)


def _cheapest(func: Func, orders: Mapping[Value, Order], ctx: PassContext) -> dict[Value, Order]:
    """The orders worth changing to."""
    hardware = ctx.hardware or load_hardware(ctx.target)
    last = least_cost(LayoutCosts(orders, hardware).energy(func))
    leaders = {r: op.results[0] for op in func.body.ops for r in op.results}
    return {v: order for v, order in orders.items() if leaders[v] in last}


def _with_weights_innermost(func: Func) -> Func:
    """Let window ops read constants through copies that are contiguous along their innermost dimension.

    rewrite:  %y = tensor.window(%x, %w, par = (n, y, x, k), reads = [..., [k, 0, r, s]])
        -->   %v = tensor.map(%w, par = (i1, i2, i3, i0), ...);
              %y = tensor.window(%x, %v, par = (n, y, x, k), reads = [..., [0, r, s, k]])

    The copies are for `fold-constant-tensors`. (Contractions have `pack-weights`.)
    """
    constants = {r for op in func.body.ops if op.name == "tensor.constant" for r in op.results}
    b = Builder()
    for op in func.body.ops:
        if op.name == "tensor.window":
            for i, v in enumerate(op.operands):
                order = _weight_order(op, i) if v in constants else None
                if order is not None:
                    with b.at(op.loc):
                        op = _reading(op, i, _reordered_copy(b, v, order), order)
        b.append(op)
    if len(b.ops) == len(func.body.ops):
        return func
    return func.with_body(func.body.with_ops(tuple(b.ops)))


def _weight_order(op: Op, operand: int) -> Order | None:
    """The order of an operand that ends in the op's innermost dimension; None where it has it already."""
    inner = next((d for d, n in reversed(list(dims(op, "par").items())) if n > 1), "")
    at, shape = reads(op)[operand], op.operands[operand].tensor.shape
    if not inner or at.count(Sym(inner)) != 1:
        return None
    axis = at.index(Sym(inner))
    if all(n == 1 for n in shape[axis + 1 :]):
        return None
    return (*(k for k in range(len(shape)) if k != axis), axis)


def _reordered_copy(b: Builder, v: Value, order: Order) -> Value:
    shape = v.tensor.shape
    return copied(
        b, v, {f"i{axis}": shape[axis] for axis in order}, [Sym(f"i{k}") for k in range(len(shape))]
    )


def _reading(op: Op, operand: int, v: Value, order: Order) -> Op:
    places = list(reads(op))
    places[operand] = reordered(places[operand], order)
    operands = (*op.operands[:operand], v, *op.operands[operand + 1 :])
    return op.with_operands(operands).with_attrs(reads=tuple(places))
