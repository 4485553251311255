"""Masks of attention written out for every query, where a library takes no smaller ones."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir import Func, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.builder import scalar_body
from tilewright.ir.expr import symbols
from tilewright.ir.tensor.ops import dims, fills, reads


def with_spread_mask(kernel: Func, mask: Value) -> tuple[Func, Value] | None:
    """The kernel that writes the mask out before it is added, and what it writes; None for several readers.

    rewrite:  tensor.map(%s, %mask, par = (b, h, m, k), reads = [.., [b, k]])
              -->   %n = tensor.map(%mask, par = (b, m, k), reads = [[b, k]])
                    tensor.map(%s, %n, par = (b, h, m, k), reads = [.., [b, m, k]])
    """
    readers = [op for op in kernel.body.ops if mask in op.operands]
    if len(readers) != 1 or readers[0].name != "tensor.map" or readers[0].operands.count(mask) != 1:
        return None
    (reader,) = readers
    par = dims(reader, "par")
    at = reads(reader)[reader.operands.index(mask)]
    if len(par) < 2 or fills(reader)[reader.operands.index(mask)] is not None:
        return None
    used = {name for e in at for name in symbols(e)} | set(list(par)[-2:])
    kept = {d: n for d, n in par.items() if d in used}
    b, (element,) = scalar_body([mask.tensor.dtype])
    b.emit("scalar.yield", [element])
    spread = Value(TensorType(mask.tensor.dtype, tuple(kept.values())), f"{mask.hint}.spread")
    attrs = (("par", Pairs.of(kept)), ("reads", (at,)), ("fill", ()))
    written = Op("tensor.map", (mask,), attrs, (spread,), b.block([element]), reader.loc)
    index = tuple(Sym(d) for d in kept)
    changed = reader.with_operands(tuple(spread if v is mask else v for v in reader.operands)).with_attrs(
        reads=tuple(index if v is mask else r for v, r in zip(reader.operands, reads(reader), strict=True))
    )
    ops = [new for op in kernel.body.ops for new in ((written, changed) if op is reader else (op,))]
    return replace(kernel, body=kernel.body.with_ops(tuple(ops))), spread
