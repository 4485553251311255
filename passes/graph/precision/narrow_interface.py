"""Pass narrow-interface: inputs, state and results of @main are stored in 16 bits as well."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Level, Module
from tilewright.ir.types import storage_dtype
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.precision.mixed_precision import narrowed


@register_pass(Level.GRAPH, requires={"shapes-known"}, establishes={"shapes-known"})
def narrow_interface(module: Module, ctx: PassContext, *, dtype: str = "f16") -> Module:
    """Do what `mixed-precision` does, for float32 parameters and results of @main as well.

    rewrite: main(%x: f32, %w: f32) { %0 = graph.dense(%x, %w); %1 = graph.exp(%0); return %1 }
        -->  main(%x: f16, %w: f16) { %0 = graph.dense(%x, %w); %1 = graph.exp(graph.cast(%0, f32))
                                      return graph.cast(%1, f16) }

    First values of state are rounded.
    """
    if dtype not in ("f16", "bf16"):
        raise InputError(f"expected dtype f16 or bf16, got {dtype!r}")
    main = module.main
    state = [main.params[p].hint for p, _ in main.updates if main.params[p].tensor.dtype == "f32"]
    new = narrowed(main, dtype, interface=True)
    kind = storage_dtype(dtype)
    rounded = {n: module.constants[n].astype(kind) for n in state if n in module.constants}
    funcs = tuple(new if f is main else f for f in module.funcs)
    return replace(module, funcs=funcs).with_constants(module.constants.updated(rounded))
