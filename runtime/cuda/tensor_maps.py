"""Tensor maps as kernels take them: the driver encodes each recipe for the address that its buffer has here.

What it gives is bound to the address, so every loaded plan, also one in memory of the caller's, has its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.runtime.cuda.context import Context
from tilewright.runtime.plan.execution_plan import Launch
from tilewright.runtime.plan.tensor_map import TensorMap

#: bytes of an encoded map, and what the address of one is a multiple of
MAP_BYTES = 128
_ALIGNMENT = 64
_WORDS = MAP_BYTES // 8


@dataclass(frozen=True)
class MapMemory:
    """The encoded maps of one launch, in memory of the host; `places` are their addresses."""

    memory: ctypes.Array[ctypes.c_uint8] = field(repr=False)
    places: tuple[int, ...]

    @staticmethod
    def of(context: Context, launch: Launch, addresses: Mapping[str, int], doing: str) -> MapMemory | None:
        """The maps of a launch whose buffers have these addresses; None where it has no maps."""
        if not launch.maps:
            return None
        memory = (ctypes.c_uint8 * (MAP_BYTES * len(launch.maps) + _ALIGNMENT))()
        begin = -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT
        places = tuple(begin + MAP_BYTES * i for i in range(len(launch.maps)))
        for place, m in zip(places, launch.maps, strict=True):
            words = encoded(context, m.recipe, addresses[launch.args[m.argument]] + m.offset, doing)
            (ctypes.c_uint64 * _WORDS).from_address(place)[:] = words
        return MapMemory(memory, places)


def encoded(context: Context, recipe: TensorMap, address: int, doing: str) -> list[ctypes.c_uint64 | int]:
    """The 128 bytes that the driver makes of a recipe, as words. It takes dimensions innermost first."""
    api = context.api
    extents, strides, steps = (
        _numbers(api.cuuint64_t, recipe.dims),
        _numbers(api.cuuint64_t, recipe.strides),
        _numbers(api.cuuint32_t, recipe.all_steps),
    )
    head = (_dtype(api, recipe.dtype), len(recipe.dims), address, extents, strides)
    tail = (
        steps,
        api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{_bytes(recipe.swizzle)}"),
        getattr(api.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{_l2_bytes(recipe.promotion)}"),
        getattr(api.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{_FILLS[recipe.fill]}"),
    )
    window = recipe.window
    if window is None:
        made = context.call(
            "cuTensorMapEncodeTiled", *head, _numbers(api.cuuint32_t, recipe.box), *tail, doing=doing
        )
    else:
        made = context.call(
            "cuTensorMapEncodeIm2col", *head, list(reversed(window.lower)), list(reversed(window.upper)),
            window.channels, window.pixels, *tail, doing=doing,
        )  # fmt: skip
    return [int(word) for word in made.opaque]


_FILLS = {"zero": "NONE", "nan": "NAN_REQUEST_ZERO_FMA"}


def _numbers(kind: Any, values: Sequence[int]) -> list[Any]:
    return [kind(value) for value in reversed(values)]


def _bytes(count: int) -> str:
    return f"{count}B" if count else "NONE"


def _l2_bytes(count: int) -> str:
    return f"L2_{count}B" if count else "NONE"


def _dtype(api: Any, dtype: str) -> Any:
    """The driver's name of an element type: FLOAT16, BFLOAT16, INT32, UINT8, ..."""
    return getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{dtype.upper()}")
