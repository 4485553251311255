"""What a product with a constant costs by the model, alone and in the layout that suits the hardware."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from tilewright.costmodel import Hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir import Builder, Constants, Func, Level, Module, Op, Pairs, Type, Value
from tilewright.ir.nodes import Attr
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.graph.parallel_products import CONVOLUTIONS
from tilewright.passes.pipelines import ESTIMATES

_SPATIAL = {"graph.conv1d": "W", "graph.conv2d": "HW", "graph.conv3d": "DHW"}


def product_s(op: Op, hardware: Hardware, *, tf32: bool = False) -> float:
    """Seconds of the kernels of a product with a constant, sums cut into parts included. Memoised.

    tf32: whether factors may be rounded to TF32.
    """
    dtype = op.operands[0].tensor.dtype
    cores = isinstance(hardware, GpuHardware) and (tf32 or dtype != "f32")
    types, attrs = tuple(v.type for v in op.operands), op.attrs
    if cores and op.name in CONVOLUTIONS:
        types, attrs = _channels_last(op)
    return _seconds(op.name, types, attrs, hardware, tf32)


def _channels_last(op: Op) -> tuple[tuple[Type, ...], tuple[tuple[str, Attr], ...]]:
    """Types and attributes of a convolution with channels innermost, as tensor cores get them."""
    sizes = _SPATIAL[op.name]
    wanted = {"data_layout": f"N{sizes}C", "kernel_layout": f"{sizes}IO"}
    types: list[Type] = []
    for v, layout in zip(op.operands, wanted, strict=True):
        t, given = v.tensor, str(op[layout])
        shape = tuple(t.shape[given.index(d)] for d in wanted[layout])
        types.append(type(t)(t.dtype, shape))
    return tuple(types), tuple((k, wanted.get(k, a)) for k, a in op.attrs)


@lru_cache(maxsize=4096)
def _seconds(
    name: str, types: tuple[Type, ...], attrs: tuple[tuple[str, Attr], ...], hardware: Hardware, tf32: bool
) -> float:
    x, weight = (Value(t, hint) for t, hint in zip(types, ("x", "w"), strict=True))
    b = Builder()
    (result,) = b.emit(name, (x, weight), dict(attrs))
    b.do("graph.return", result)
    main = Func(Level.GRAPH, "main", b.block((x, weight)), (result.type,))
    pipeline = ESTIMATES["tf32 product" if tf32 else "product"]
    context = PassContext(hardware=hardware, reproducer_folder=None)
    module = run_pipeline(Module("product", (main,), constants=Constants({})), pipeline, context)
    costs = [cast(Pairs, f["cost"]) for f in module.funcs if f.get("cost") is not None]
    return sum(cast(float, c["estimate_s"]) for c in costs)
