"""Constant masks of attention as what they are: one number, or a choice by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir import Block, Builder, Func, Op, Sym, TensorType, Value
from tilewright.ir.builder import scalar_body, structured
from tilewright.passes.kernels.attention.view import attention_view
from tilewright.passes.rewriting.values import replace_in_op

#: elements of a constant that is looked at
_MOST = 1 << 24


def with_computed_masks(
    kernel: Func, arguments: Sequence[Value], array: Callable[[Value], np.ndarray | None]
) -> tuple[Func, list[Value]]:
    """The kernel, and what it is called with, without the constants that its scores need not read.

    rewrite:  %s = tensor.map(%x, %mask, ..) {add}
        -->   %c = tensor.map() {select(i >= j, 0, -inf)}; %s = tensor.map(%x, %c, ..) {add}

    Those are masks that hold one number, and square ones that hold one number up to the diagonal and another
    after it. array: the data of a value of @main that is a constant the module holds. What is no attention
    stays as it is.
    """
    view = attention_view(kernel)
    if view is None:
        return kernel, list(arguments)
    b = Builder()
    new: dict[Value, Value] = {}
    for p in dict.fromkeys(read.value for read in view.score_reads):
        data = array(arguments[kernel.params.index(p)]) if p.tensor.size <= _MOST else None
        numbers = None if data is None or p.tensor.steps else _numbers(data)
        if numbers is not None:
            new[p] = _computed(b, p.tensor, *numbers)
    if not new:
        return kernel, list(arguments)
    kept = [i for i, p in enumerate(kernel.params) if p not in new]
    ops: tuple[Op, ...] = (*b.ops, *(replace_in_op(op, new) for op in kernel.body.ops))
    body = Block(tuple(kernel.params[i] for i in kept), ops)
    return replace(kernel, body=body), [arguments[i] for i in kept]


def _numbers(data: np.ndarray) -> tuple[float | bool, float | bool] | None:
    """What a mask holds up to the diagonal and after it; None where that is not one number each."""
    flat = data.reshape(-1)
    if flat.size == 0:
        return None
    kind = bool if data.dtype == np.bool_ else float
    if (flat == flat[0]).all():
        return kind(flat[0]), kind(flat[0])
    if data.ndim < 2 or data.shape[-1] != data.shape[-2] or data.size != data.shape[-1] ** 2:
        return None
    square = data.reshape(data.shape[-2:])
    seen = np.tri(len(square), dtype=bool)
    first, last = square[seen], square[~seen]
    if not ((first == first[0]).all() and (last == last[0]).all()):
        return None
    return kind(first[0]), kind(last[0])


def _computed(b: Builder, t: TensorType, seen: float | bool, hidden: float | bool) -> Value:
    """A map of positions alone that gives the elements of a mask."""
    inner, _ = scalar_body([])
    shown = inner.const(seen, t.dtype)
    if seen != hidden:
        distance = Sym(f"i{t.rank - 2}") - Sym(f"i{t.rank - 1}")
        at = inner.index(distance, "i32")
        before = inner.value("scalar.ge", at, inner.const(0, "i32"))
        shown = inner.value("scalar.select", before, shown, inner.const(hidden, t.dtype))
    inner.do("scalar.yield", shown)
    par = {f"i{i}": n for i, n in enumerate(t.shape)}
    plain = TensorType(t.dtype, t.shape)
    (value,) = structured(b, "tensor.map", [], par=par, reads=(), body=inner.block([]), types=[plain])
    return value
