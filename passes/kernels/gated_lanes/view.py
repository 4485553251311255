"""A kernel of one product of float32, whose columns are gates of units, and of the maps around it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Func, Op
from tilewright.passes.kernels.gated.parameters import lies_in_swizzled_rows
from tilewright.passes.kernels.gated.view import view_of_gates
from tilewright.passes.kernels.resident_tiles.view import TilesView


def gated_lanes_view(kernel: Func) -> TilesView | str:
    """The view of a kernel for lanes, or one clause that says why it has none.

    Factors are float32, which no precision allows to round further than lanes do.
    """
    return view_of_gates(kernel, _dtypes, _fault)


def _dtypes(product: Op) -> Sequence[str]:
    return ("f32",)


def _fault(terms: int, dtype: str) -> str:
    return "" if lies_in_swizzled_rows(terms, dtype) else "no 32, 64 or a multiple of 128 bytes"
