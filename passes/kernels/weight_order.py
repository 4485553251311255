"""The order in which the constant weights of a contraction are stored for the kernel that reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir import Expr, Op, Sym
from tilewright.ir.tensor.ops import dims, reads
from tilewright.passes.kernels.kernel_problem import contract_roles


@dataclass(frozen=True)
class WeightOrder:
    """The way weights are stored: order of dimensions, whether rounded to TF32, and the tile into which the
    last dimension is cut (0: not cut), whose number then comes first."""

    axes: tuple[int, ...]
    rounds: bool
    tile: int = 0

    @property
    def changes(self) -> bool:
        """Return whether weights in this order differ from weights as they were."""
        return self.axes != tuple(range(len(self.axes))) or self.rounds or bool(self.tile)

    @property
    def suffix(self) -> str:
        """Return what distinguishes the names of such weights from others."""
        tile = f"_by{self.tile}" if self.tile else ""
        return f"packed_{''.join(map(str, self.axes))}{tile}{'_tf32' if self.rounds else ''}"

    def at(self, place: Sequence[Expr]) -> tuple[Expr, ...]:
        """The index of the element that lies at index `place` of the weights as they were."""
        moved = tuple(place[axis] for axis in self.axes)
        if not self.tile:
            return moved
        return (moved[-1] // self.tile, *moved[:-1], moved[-1] % self.tile)

    def shape(self, extents: Sequence[int]) -> tuple[int, ...]:
        """The extents of weights that had these."""
        moved = tuple(extents[axis] for axis in self.axes)
        return (-(-moved[-1] // self.tile), *moved[:-1], self.tile) if self.tile else moved

    def stored(self, array: np.ndarray) -> np.ndarray:
        """The weights in this order, contiguous."""
        moved = array.transpose(self.axes)
        if self.tile:
            missing = -moved.shape[-1] % self.tile
            moved = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, missing)])
            moved = np.moveaxis(moved.reshape(*moved.shape[:-1], -1, self.tile), -2, 0)
        return round_to_tf32(moved) if self.rounds else np.ascontiguousarray(moved)


def axes_channel_last(op: Op, channel: str) -> tuple[int, ...]:
    """The axes of a contraction's weights: all else, the columns in the order of the results, the channel."""
    at, columns = reads(op)[1], contract_roles(op).columns
    inner = [*(Sym(d) for d in dims(op, "par") if d in columns), Sym(channel)]
    last = [i for e in inner for i, x in enumerate(at) if x == e]
    return (*(i for i in range(len(at)) if i not in last), *last)


def round_to_tf32(array: np.ndarray) -> np.ndarray:
    """float32 numbers with 10 bits of mantissa, ties away from zero, as cvt.rna.tf32 gives them."""
    bits = np.ascontiguousarray(array, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(array), rounded, bits).view(np.float32)
