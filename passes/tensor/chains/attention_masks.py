"""Constant masks of attention as what they are: one number, or a choice by position."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir import Block, Builder, Func, Op, Value
from tilewright.passes.analysis.position_masks import band_mask, computed_band, computed_mask, mask_numbers
from tilewright.passes.kernels.attention.view import attention_view
from tilewright.passes.kernels.pair_sums.view import pair_view
from tilewright.passes.rewriting.values import replace_in_op

#: elements of a constant that is looked at
_MOST = 1 << 24


def with_computed_masks(
    kernel: Func, arguments: Sequence[Value], array: Callable[[Value], np.ndarray | None]
) -> tuple[Func, list[Value]]:
    """The kernel, and what it is called with, without the constants that its scores need not read.

    rewrite:  %s = tensor.map(%x, %mask, ..) {add}
        -->   %c = tensor.map() {select(i >= j, 0, -inf)}; %s = tensor.map(%x, %c, ..) {add}

    Those are masks that hold one number, and those that hold one number in a band along a diagonal (causal
    attention, sliding windows) and another elsewhere. array: the data of a value of @main that is a constant
    the module holds. What is no attention stays as it is.
    """
    view, pairs = attention_view(kernel), pair_view(kernel)
    if view is None and pairs is None:
        return kernel, list(arguments)
    reads = (*(view.score_reads if view is not None else ()), *(pairs.reads if pairs is not None else ()))
    b = Builder()
    new: dict[Value, Value] = {}
    for p in dict.fromkeys(read.value for read in reads):
        data = array(arguments[kernel.params.index(p)]) if p.tensor.size <= _MOST else None
        if data is None or p.tensor.steps:
            continue
        if (numbers := mask_numbers(data)) is not None:
            new[p] = computed_mask(b, p.tensor, numbers)
        elif (band := band_mask(data)) is not None:
            new[p] = computed_band(b, p.tensor, band)
    if not new:
        return kernel, list(arguments)
    others = [i for i, p in enumerate(kernel.params) if p not in new]
    ops: tuple[Op, ...] = (*b.ops, *(replace_in_op(op, new) for op in kernel.body.ops))
    body = Block(tuple(kernel.params[i] for i in others), ops)
    return replace(kernel, body=body), [arguments[i] for i in others]
