"""Groups the flat tensor program into kernels and outlines each as a function that @main calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import Builder, Func, Level, Module, Ref, Value
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.backward_pass import LOSS, RECOMPUTED
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.analysis.memory_headroom import peak_bytes
from tilewright.passes.tensor.fusion.costs import parametrised_s
from tilewright.passes.tensor.fusion.kernel_groups import Partition, readers, used_outside
from tilewright.passes.tensor.fusion.outline_kernel import kernel_name, outline
from tilewright.passes.tensor.fusion.partitioners import partition_by

Partitioner = Literal["rules", "exact", "algorithm1", "maximal", "none"]


@register_pass(Level.TENSOR, establishes={"kernels-outlined"})
def fuse_kernels(
    module: Module,
    ctx: PassContext,
    *,
    partitioner: Partitioner = "rules",
    prologues: bool = True,
    share: float = 0.95,
    worth: float = 6.0,
    slower: float = 0.015,
    above: int = 1 << 20,
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

    What the conditions keep stored although one product could compute it, a cached array or a factor of
    tensor cores, stays unstored where it makes the peak of memory: the largest such arrays, down to a size,
    are computed where they are read if the peak falls to at most `share` of what it was. A per cent of time
    by the model must save `worth` of memory, and at most the share `slower` of the time is given. Nothing is
    asked where at most `above` bytes are alive at once, on a CPU, or of training steps.
    """
    main = module.main
    if any(op.name == "tensor.call" for op in main.body.ops):
        return module
    part = partition_by(main, partitioner, ctx, prologues=prologues)
    whole = _outlined(module, part)
    hardware = ctx.hardware or load_hardware(ctx.target)
    if share <= 0.0 or not part.spared or isinstance(hardware, CpuHardware) or _trains(main):
        return whole
    peak = peak_bytes(whole)
    if peak <= above:
        return whole
    best, most, tried, whole_s = whole, 0.0, 0.0, 0.0
    for least in sorted({v.tensor.nbytes for v in part.spared}, reverse=True):
        unstored = {v for v in part.spared if v.tensor.nbytes >= least}
        fewer = partition_by(main, partitioner, ctx, prologues=prologues, unstored=unstored)
        other = _outlined(module, fewer)
        saved = 1 - peak_bytes(other) / peak
        if saved - tried < 1 - share:
            continue  # arrays of this size lower the peak no further
        tried = saved
        whole_s = whole_s or _seconds(whole, hardware, ctx)
        more = max(0.0, _seconds(other, hardware, ctx) / whole_s - 1)
        if more <= slower and saved - worth * more > most:
            best, most = other, saved - worth * more
    return best


def _trains(main: Func) -> bool:
    """Return whether a function is a training step, or part of one: those choose what is saved themselves."""
    return bool(main.updates) or main.get(LOSS) is not None or main.get(RECOMPUTED) is not None


def _seconds(module: Module, hardware: Hardware, ctx: PassContext) -> float:
    """Seconds of all calls of @main by the model, of kernels with the parameters that they would have."""
    kernels = {f.name: f for f in module.funcs}
    calls = (op["callee"] for op in module.main.body.ops if op.name == "tensor.call")
    return sum(_kernel_s(kernels[ref.name], hardware, ctx) for ref in calls if isinstance(ref, Ref))


def _kernel_s(kernel: Func, hardware: Hardware, ctx: PassContext) -> float:
    question = ("outlined with parameters", kernel_text(kernel), hardware, ctx.target)
    return ctx.estimator.remembered(
        question, lambda: parametrised_s(ctx.estimator.kernel(kernel, ctx), hardware)
    )


def _outlined(module: Module, part: Partition) -> Module:
    """The module with a function per group of a partition, and calls of these in @main."""
    main = module.main
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
