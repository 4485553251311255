"""Copies by index: maps that yield elements of one tensor as they are, wherever their points read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir import Builder, Expr, TensorType, Value, scalar_body, structured


def copied(
    b: Builder,
    v: Value,
    par: Mapping[str, int],
    at: Sequence[Expr],
    *,
    dtype: str = "",
    fill: float | None = None,
    always_cast: bool = False,
) -> Value:
    """Append a map over `par` that yields `v[at]`, cast to `dtype` (its own by default), `fill` outside.

    always_cast: also to its own dtype, which tells the map from a copy that others would read through.
    """
    dtype = dtype or v.tensor.dtype
    body, (x,) = scalar_body([v.tensor.dtype])
    body.do("scalar.yield", body.value("scalar.cast", x, dtype=dtype) if always_cast else body.cast(x, dtype))
    t = TensorType(dtype, tuple(par.values()))
    (out,) = structured(
        b, "tensor.map", [v], par=par, reads=[at], fill=[fill], body=body.block((x,)), types=[t], hint=v.hint
    )
    return out
