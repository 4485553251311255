"""A kernel of one product of float32, whose columns are gates of units, and of the maps around it."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir import Func, Op
from tilewright.passes.kernels.gated.view import fault_of_rows, view_of_gates
from tilewright.passes.kernels.resident_tiles.view import TilesView


def gated_lanes_view(kernel: Func) -> TilesView | str:
    """The view of a kernel for lanes, or one clause that says why it has none.

    Factors are float32, which no precision allows to round further than lanes do.
    """
    return view_of_gates(kernel, _dtypes, fault_of_rows)


def _dtypes(product: Op) -> Sequence[str]:
    return ("f32",)
