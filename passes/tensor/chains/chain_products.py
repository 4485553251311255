"""Pass chain-products: a product and the one that reads its finished rows become one kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from tilewright.costmodel import CpuHardware, load_hardware
from tilewright.ir import Func, Level, Module, Op, Ref
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.tensor.chains.candidates import ChainCandidate
from tilewright.passes.tensor.chains.product_pairs import in_order, product_pairs


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def chain_products(
    module: Module, ctx: PassContext, *, when: Literal["auto", "always", "never"] = "auto"
) -> Module:
    """Make one kernel of two products of which the second multiplies the finished rows of the first.

    rewrite:  %h = call(%x, %w, %r, callee = @expand); %y = call(%h, %v, callee = @reduce)
        -->   %h, %y = call(%x, %w, %r, %v, callee = @reduce_chained)

    A block that has finished some rows of the first product has all that it needs of it for the same rows of
    the second one, so that these are not read from memory again; what nothing else reads is not written
    either. Legality follows from index sets (`passes/kernels/chained/view.py`). A product takes part in one
    pair at most; those of the largest gain come first. when: `auto` where the estimate is below 0.95 of the
    sum of the kernels apart, `always` where legal, `never`.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or isinstance(hardware, CpuHardware):
        return module
    taken = product_pairs(module, ctx, hardware, legal=when == "always")
    return _replaced(module, taken) if taken else module


def _replaced(module: Module, taken: Sequence[ChainCandidate]) -> Module:
    """The module with a call of one kernel in place of each pair; equal kernels are one."""
    order = in_order(module, taken)
    assert order is not None
    names = {f.name for f in module.funcs}
    made: dict[str, Func] = {}
    ops: list[Op] = []
    for node in order:
        if isinstance(node, Op):
            ops.append(node)
            continue
        text = kernel_text(node.chosen)
        if text not in made:
            made[text] = replace(node.chosen, name=numbered(node.chosen.name, names))
            names.add(made[text].name)
        attrs = (("callee", Ref(made[text].name)),)
        ops.append(
            Op("tensor.call", node.arguments, attrs, node.returned, None, node.calls[1].loc)
        )  # fmt: skip
    called = _called(ops)
    main = module.main.with_body(module.main.body.with_ops(tuple(ops)))
    others = (f for f in module.funcs if f is not module.main and f.name in called)
    return module.with_funcs((*made.values(), *others, main))


def _called(ops: Sequence[Op]) -> Mapping[str, None]:
    return dict.fromkeys(callee_of(op) for op in ops if op.name == "tensor.call")
