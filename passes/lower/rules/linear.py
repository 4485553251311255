"""Matrix products and additions of vectors along an axis."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Builder, Op, Sym, Value
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    dim_names,
    elementwise,
    lowering,
    multiply_add,
    reduced,
    result_type,
)


@lowering("graph.dense")
def dense(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """result[.., k] = sum over c of x[.., c] * weight[k, c]."""
    data, weight = x
    result = accumulated(result_type(op))
    lead = [f"m{i}" if result.rank > 2 else "m" for i in range(result.rank - 1)]
    par = {**dict(zip(lead, result.shape, strict=False)), "k": weight.tensor.shape[0]}
    reads = [(*map(Sym, lead), Sym("c")), (Sym("k"), Sym("c"))]
    sums = reduced(b, "tensor.contract", x, result, par, {"c": data.tensor.shape[-1]}, reads, multiply_add)
    return [converted(b, sums, result_type(op))]


@lowering("graph.matmul", "graph.batch_matmul")
def matmul(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Products of matrices, batches aligned; a batch of one serves all."""
    left, right = x
    result = accumulated(result_type(op))
    batch = [f"b{i}" for i in range(result.rank - 2)]
    par = dict(zip([*batch, "m", "k"], result.shape, strict=True))
    inner = left.tensor.shape[-2 if op["transpose_a"] else -1]

    def lead(v: Value) -> tuple[Sym | int, ...]:
        shape = v.tensor.shape[:-2]
        names = batch[len(batch) - len(shape) :]
        return tuple(0 if n == 1 and par[d] != 1 else Sym(d) for d, n in zip(names, shape, strict=True))

    a = ("c", "m") if op["transpose_a"] else ("m", "c")
    w = ("k", "c") if op["transpose_b"] else ("c", "k")
    reads = [(*lead(left), *map(Sym, a)), (*lead(right), *map(Sym, w))]
    sums = reduced(b, "tensor.contract", x, result, par, {"c": inner}, reads, multiply_add)
    return [converted(b, sums, result_type(op))]


@lowering("graph.bias_add")
def bias_add(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """x + bias along one axis."""
    result = result_type(op)
    names = dim_names(result.rank)
    axis = names[op.integer("axis") % result.rank]
    reads = [tuple(map(Sym, names)), (Sym(axis),)]
    return [elementwise(b, x, result, lambda i, p: p[0] + p[1], reads)]
