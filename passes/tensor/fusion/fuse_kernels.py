"""Groups the flat tensor program into kernels and outlines each as a function that @main calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tilewright.ir import Builder, Func, Level, Module, Ref, Value
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.passes import PassContext, register_pass
from tilewright.passes.tensor.fusion.kernel_groups import readers, used_outside
from tilewright.passes.tensor.fusion.outline_kernel import kernel_name, outline
from tilewright.passes.tensor.fusion.partitioners import partition_by

Partitioner = Literal["rules", "exact", "algorithm1", "maximal", "none"]


@register_pass(Level.TENSOR, establishes={"kernels-outlined"})
def fuse_kernels(
    module: Module, ctx: PassContext, *, partitioner: Partitioner = "rules", prologues: bool = True
) -> Module:
    """Outline kernels: one function per group of ops that runs as one kernel.

    rewrite:  %0 = tensor.contract(%x, %w); %1 = tensor.map(%0, %b)
              -->   %1 = tensor.call(%x, %w, %b, callee = @conv2d_add_0)

    Which ops may share a kernel is decided from index sets (see `fusion/legality.py`). `rules` lets each op
    join the latest producer it fits; `exact` finds the partition whose kernels take the least time by the
    cost model; `algorithm1` merges pairs of kernels while that helps, as the paper prints it; `maximal`
    leaves products alone and fuses all else as far as iteration spaces are equal or differ by one reduction
    (see `fusion/maximal.py`); with `none` every op gets a kernel of its own. Joins and communications stay in
    @main, these in their order.

    prologues: whether `rules` computes a large map of a value that is stored anyway in the product that reads
    it, and not where the value is made (`kernel_groups.py` has the conditions). The cost model does not
    decide that: what the map saves is the store of a second large result, whose rate was measured and is not
    derived. On an H100, ResNet-50 was 19 and 21 % faster so at batch 8 and 64; without the conditions it was
    7 % slower at batch 1, and DenseNet-121 12 % at batch 64.
    """
    main = module.main
    if any(op.name == "tensor.call" for op in main.body.ops):
        return module
    part = partition_by(main, partitioner, ctx, prologues=prologues)
    read_by = readers(part, main)
    taken = {f.name for f in module.funcs}
    kernels: list[Func] = []
    b = Builder()
    env: dict[Value, Value] = {}
    for op in main.body.ops:
        if op.name == "tensor.constant":
            b.append(op)
    for g in part.groups:
        if g.anchor.name in ("tensor.join", COMMUNICATE):
            pieces = map(part.resolve, g.anchor.operands)
            b.append(g.anchor.with_operands(tuple(env.get(v, v) for v in pieces)))
            continue
        outputs = used_outside(g, read_by)
        kernel, arguments = outline(g.ops, g.anchor, outputs, kernel_name(g.ops, taken), part.resolve)
        kernels.append(kernel)
        operands = [env.get(v, v) for v in arguments]
        loc = g.anchor.loc
        results = b.emit(
            "tensor.call", operands, {"callee": Ref(kernel.name)}, types=[v.type for v in outputs], loc=loc
        )
        env.update(zip(outputs, results, strict=True))
    last = main.body.ops[-1]
    b.append(last.with_operands(tuple(env.get(v, v) for v in last.operands)))
    return module.with_funcs(
        (*kernels, *(replace(f, body=b.block(main.params)) if f is main else f for f in module.funcs))
    )
