"""A kernel of one product, whose columns are gates of units, and of the maps before and behind it.

A step of a recurrence is one, forward (a product of the state, then gates) and backward (a product of the
gates' gradients, then the gradients of the step before), and so is every product whose results are combined
by maps that read several of its columns at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import Func, Op
from tilewright.ir.tensor.ops import TF32
from tilewright.passes.kernels.gated.parameters import depth_of, lies_in_swizzled_rows
from tilewright.passes.kernels.resident.view import matrix_of, vector_of
from tilewright.passes.kernels.resident_tiles.view import DTYPES, TilesView, view_by_units


def gated_view(kernel: Func) -> TilesView | str:
    """The view of a kernel for tensor cores, or one clause that says why it has none.

    Factors have 16 bits, or are float32 that may be rounded to TF32.
    """
    return view_of_gates(kernel, _dtypes, _fault)


def view_of_gates(
    kernel: Func, dtypes: Callable[[Op], Sequence[str]], fault: Callable[[int, str], str]
) -> TilesView | str:
    """The view of a kernel of one product and maps, or one clause that says why it has none.

    The units are the fewest for which every result is a matrix of rows of units. dtypes: those that factors
    of the product may have. fault: what is wrong with rows of so many elements of a dtype; empty for nothing.
    """
    ops = kernel.body.ops[:-1]
    unfit = {op.name for op in ops} - {"tensor.contract", "tensor.map"}
    if unfit:
        return f"it has {', '.join(sorted(unfit))} beside products and maps"
    contracts = [op for op in ops if op.name == "tensor.contract"]
    if len(contracts) != 1:
        return f"it has {len(contracts)} products, where one is expected"
    (product,) = contracts
    vector = vector_of(product, kernel.params, dtypes(product))
    if isinstance(vector, str):
        return vector
    state = product.operands[vector]
    shape = matrix_of(state)
    if state not in kernel.params or shape is None:
        return f"the state {state.type} is no parameter that is a matrix"
    if wrong := fault(shape[1], state.tensor.dtype):
        return f"rows of the state {state.type} have {wrong}"
    units = min((v.tensor.shape or (0,))[-1] for v in kernel.body.ops[-1].operands)
    if not units:
        return "it gives no array"
    return view_by_units(kernel, [(product, vector)], (), shape[0], units)


def _dtypes(product: Op) -> Sequence[str]:
    return ("f32",) if product.get("factors") == TF32 else DTYPES


def _fault(terms: int, dtype: str) -> str:
    if terms % depth_of(dtype):
        return f"no multiple of {depth_of(dtype)} elements"
    return fault_of_rows(terms, dtype)


def fault_of_rows(terms: int, dtype: str) -> str:
    """What keeps rows of shared memory of so many elements from an order without bank conflicts, if any."""
    return "" if lies_in_swizzled_rows(terms, dtype) else "no 32, 64 or a multiple of 128 bytes"
