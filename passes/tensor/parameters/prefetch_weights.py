"""Pass prefetch-weights: kernels bring their weights to the L2 cache before they wait for other kernels."""

from __future__ import annotations

from tilewright.costmodel import load_hardware
from tilewright.ir import Func, Level, Module, Op, Value
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.constant_params import constant_positions
from tilewright.passes.analysis.work.weight_traffic import RESIDENT_SHARE, weights_leave_l2
from tilewright.passes.kernels.registry import template_of
from tilewright.passes.kernels.writing.prefetch import PREFETCHED

#: bytes of one operand from which it is worth the instructions
LEAST_BYTES = 1 << 16


@register_pass(Level.TENSOR, requires={"kernels-outlined", "parameters-chosen"})
def prefetch_weights(module: Module, ctx: PassContext, *, share: float = RESIDENT_SHARE) -> Module:
    """Mark the constant operands that products of a network on a GPU should prefetch.

    rewrite:  tensor.func @dense(%x, %w, decision = kernel<...>)
        -->   tensor.func @dense(%x, %w, decision = kernel<...>, prefetch = [1])

    Only where all constants together exceed `share` of the L2: smaller networks find their weights there
    since the last run. A product with few blocks has few copies in flight and would wait for the DRAM once
    per step; the prefetch waits once, and on GPUs that start kernels early while other kernels end.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if not weights_leave_l2(module, hardware, share):
        return module
    positions = constant_positions(module)
    return module.with_funcs(tuple(_marked(f, positions.get(f.name, ())) for f in module.funcs))


def _marked(kernel: Func, constant: tuple[int, ...]) -> Func:
    template = template_of(kernel)
    engine = None if template is None else template.contraction
    if kernel.name == "main" or engine is None or not engine.prefetches_weights:
        return kernel
    op = next(o for o in kernel.body.ops if o.name == "tensor.contract")
    wanted = tuple(i for i, p in enumerate(kernel.params) if i in constant and _is_large_factor(op, p))
    known = not wanted or kernel.get(PREFETCHED) == wanted
    return kernel if known else kernel.with_attrs(**{PREFETCHED: wanted})


def _is_large_factor(op: Op, v: Value) -> bool:
    return v is op.operands[1] and v.tensor.nbytes >= LEAST_BYTES
