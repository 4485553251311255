"""A kernel of one product, whose columns are gates of units, and of the maps before and behind it.

A step of a recurrence is one, forward (a product of the state, then gates) and backward (a product of the
gates' gradients, then the gradients of the step before), and so is every product whose results are combined
by maps that read several of its columns at a time.
"""

from __future__ import annotations

from tilewright.ir import Func
from tilewright.ir.hardware_facts import MMA_M
from tilewright.ir.tensor.ops import TF32
from tilewright.passes.kernels.gated.parameters import depth_of, lies_in_swizzled_rows
from tilewright.passes.kernels.resident.view import matrix_of, vector_of
from tilewright.passes.kernels.resident_tiles.view import DTYPES, TilesView, view_by_units


def gated_view(kernel: Func) -> TilesView | str:
    """The view of a kernel, or one clause that says why it has none.

    Factors have 16 bits, or are float32 that may be rounded to TF32. The units are the fewest for which every
    result is a matrix of rows of units.
    """
    ops = kernel.body.ops[:-1]
    unfit = {op.name for op in ops} - {"tensor.contract", "tensor.map"}
    if unfit:
        return f"it has {', '.join(sorted(unfit))} beside products and maps"
    contracts = [op for op in ops if op.name == "tensor.contract"]
    if len(contracts) != 1:
        return f"it has {len(contracts)} products, where one is expected"
    (product,) = contracts
    rounded = product.get("factors") == TF32
    vector = vector_of(product, kernel.params, ("f32",) if rounded else DTYPES)
    if isinstance(vector, str):
        return vector
    state = product.operands[vector]
    shape, depth = matrix_of(state), depth_of(state.tensor.dtype)
    if state not in kernel.params or shape is None or shape[0] % MMA_M or shape[1] % depth:
        return f"the state {state.type} is no parameter of whole tiles of {MMA_M} x {depth}"
    if not lies_in_swizzled_rows(shape[1], state.tensor.dtype):
        return f"rows of the state {state.type} have no 32, 64 or a multiple of 128 bytes"
    units = min((v.tensor.shape or (0,))[-1] for v in kernel.body.ops[-1].operands)
    if not units:
        return "it gives no array"
    return view_by_units(kernel, [(product, vector)], (), shape[0], units)
