"""What a launch of a kernel takes of a GPU, as far as its thread-level function says."""

from __future__ import annotations

from math import prod

from tilewright.costmodel.kernels.relays import Footprint
from tilewright.ir.nodes import Func
from tilewright.ir.thread.role_ops import known_registers
from tilewright.ir.thread.shared_layout import shared_layout
from tilewright.ir.thread.tensor_maps import cluster_of


def footprint_of(func: Func) -> Footprint:
    """The places that a launch takes; registers are known where roles pass some on."""
    block = func.get("block")
    assert isinstance(block, int)
    registers = known_registers(func) // block
    return Footprint(
        prod(grid_of(func)), block, shared_layout(func).nbytes, registers, prod(cluster_of(func))
    )


def grid_of(func: Func) -> tuple[int, int, int]:
    """Blocks of a thread-level function along each dimension of its grid."""
    grid = func.get("grid")
    assert isinstance(grid, tuple)
    x, y, z = (int(n) for n in grid)  # type: ignore[arg-type]
    return x, y, z
