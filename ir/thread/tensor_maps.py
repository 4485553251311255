"""The attribute `maps` of a thread-level function: how the copy engine reads or writes its parameters.

`maps = [map<parameter: 0, dtype: "f16", dims: [64, 128], strides: [256], box: [64, 64], swizzle: 128>]` lets
`thread.copy_tile(..., map = 0)` copy boxes of 64 x 64 of the first parameter. A map is a way to read a
parameter, so no operand of a call; the recipe is that of the execution plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Attr, Func, Op, Pairs, TypedAttr, Value
from tilewright.ir.typed_attributes import register_attribute
from tilewright.ir.types import TensorType, itemsize, storage_dtype
from tilewright.ir.types import dtype_name as short_name
from tilewright.runtime.plan.tensor_map import ROUNDED, UNIT_BYTES, TensorMap, Window, copied_as, map_faults

__all__ = [
    "CLUSTER",
    "MAP",
    "MAPS",
    "MAX_CLUSTER",
    "RANK",
    "ROUNDED",
    "UNIT_BYTES",
    "ParameterMap",
    "TensorMap",
    "Window",
    "cluster_of",
    "copied_as",
    "map_attribute_faults",
    "map_faults",
    "map_of",
    "maps_of",
]

#: attributes of a thread-level function: its maps, and the blocks of a cluster along x, y, z
MAPS, CLUSTER = "maps", "cluster"
#: the attribute by which ops number the map that they use
MAP = "map"
#: the symbol of a block's number in its cluster
RANK = "rank"
#: blocks of a cluster, at most: an H100 runs 16, every device with clusters 8
MAX_CLUSTER = 16
_WINDOW_KEYS = ("lower", "upper", "channels", "pixels")


@dataclass(frozen=True)
class ParameterMap(TypedAttr):
    """A map of a parameter: its position, the bytes from its memory's begin to the map's, the recipe."""

    parameter: int
    recipe: TensorMap
    offset: int = 0
    attribute: ClassVar[str] = "map"

    def pairs(self) -> Pairs:
        """See `TypedAttr`; what has its default is left out, an im2col map has the keys of its window."""
        recipe, default = self.recipe, TensorMap("float32", (), ())
        items: list[tuple[str, Attr]] = [("parameter", self.parameter)]
        items += [("offset", self.offset)] if self.offset else []
        items += [("dtype", _short(recipe.dtype)), ("dims", recipe.dims), ("strides", recipe.strides)]
        for key in ("box", "steps", "swizzle", "fill", "promotion"):
            value = getattr(recipe, key)
            items += [(key, value)] if value != getattr(default, key) else []
        if recipe.window is not None:
            items += [(key, getattr(recipe.window, key)) for key in _WINDOW_KEYS]
        return Pairs(tuple(items))

    @classmethod
    def read(cls, pairs: Pairs) -> ParameterMap:
        """The map of the pairs; raises InputError for keys and types that are not those of a map."""
        values = pairs.as_dict()
        for key in values:
            if key not in _KEYS:
                raise InputError(f"expected {', '.join(_KEYS)} in map, got '{key}'")
        for key in ("parameter", "dtype", "dims", "strides"):
            if key not in values:
                raise InputError(f"expected '{key}' in map")
        typed = {key: _typed(key, value) for key, value in values.items()}
        windowed = [key for key in _WINDOW_KEYS if key in typed]
        if windowed and len(windowed) < len(_WINDOW_KEYS):
            missing = next(key for key in _WINDOW_KEYS if key not in typed)
            raise InputError(f"expected '{missing}' in map, which has '{windowed[0]}'")
        window = Window(*(typed.pop(key) for key in _WINDOW_KEYS)) if windowed else None
        parameter, offset = typed.pop("parameter"), typed.pop("offset", 0)
        return cls(parameter, TensorMap(**typed, window=window), offset)


_KEYS = (
    "parameter", "offset", "dtype", "dims", "strides", "box", "steps", "swizzle", "fill", "promotion",
    *_WINDOW_KEYS,
)  # fmt: skip
#: what maps call float32 that a copy rounds to TF32
_TF32 = "tf32"
_NUMBERS = ("parameter", "offset", "swizzle", "promotion", "channels", "pixels")
_TEXTS = ("dtype", "fill")


def _short(dtype: str) -> str:
    return _TF32 if dtype == ROUNDED else short_name(dtype)


def _full(dtype: str) -> str:
    """The name that plans have for an element type."""
    return ROUNDED if dtype == _TF32 else storage_dtype(short_name(dtype)).name


def _typed(key: str, value: Attr) -> Any:
    """The value of a key, known to be of its type; dtypes get the names they have in plans."""
    if key in _NUMBERS and type(value) is int:
        return value
    if key in _TEXTS and isinstance(value, str):
        return _full(value) if key == "dtype" else value
    if key not in (*_NUMBERS, *_TEXTS) and isinstance(value, tuple) and all(type(n) is int for n in value):
        return value
    kind = "an integer" if key in _NUMBERS else "a text" if key in _TEXTS else "a list of integers"
    raise InputError(f"expected {key} in map to be {kind}, got {value!r}")


register_attribute(ParameterMap.attribute, ParameterMap.read)


def maps_of(func: Func) -> tuple[ParameterMap, ...]:
    """The maps of a thread-level function, in the order in which ops number them."""
    listed = func.get(MAPS, ())
    maps = listed if isinstance(listed, tuple) else ()
    return tuple(m for m in maps if isinstance(m, ParameterMap))


def cluster_of(func: Func) -> tuple[int, int, int]:
    """Blocks of a cluster along x, y, z; (1, 1, 1) for a function without clusters."""
    return func.get(CLUSTER, (1, 1, 1))  # type: ignore[return-value]


def map_of(func: Func, op: Op) -> ParameterMap:
    """The map that an op names; raises InputError where the function has none of this number."""
    number, maps = op.integer(MAP), maps_of(func)
    if not 0 <= number < len(maps):
        raise InputError(f"{op.name}: expected a map among {len(maps)} of @{func.name}, got {number}")
    return maps[number]


def map_attribute_faults(func: Func) -> Iterator[str]:
    """Faults of the attributes `maps` and `cluster`, as clauses."""
    listed, params = func.get(MAPS, ()), func.params
    if not isinstance(listed, tuple) or not all(isinstance(m, ParameterMap) for m in listed):
        yield f"expected {MAPS} to list maps, map<parameter: 0, ...>, got {listed!r}"
        return
    for number, m in enumerate(maps_of(func)):
        for fault in _parameter_faults(m, params):
            yield f"map {number}: {fault}"
    cluster, grid = func.get(CLUSTER, (1, 1, 1)), func.get("grid")
    if not (
        isinstance(cluster, tuple) and len(cluster) == 3 and all(type(n) is int and n > 0 for n in cluster)
    ):
        yield f"expected {CLUSTER} = [x, y, z] blocks, got {cluster!r}"
    elif cluster[0] * cluster[1] * cluster[2] > MAX_CLUSTER:  # type: ignore[operator]
        yield f"expected a cluster of at most {MAX_CLUSTER} blocks, got {list(cluster)}"
    elif isinstance(grid, tuple) and any(
        isinstance(g, int) and g % c  # type: ignore[operator]
        for g, c in zip(grid, cluster, strict=False)
    ):
        yield f"expected a grid of whole clusters of {list(cluster)} blocks, got {list(grid)}"


def _parameter_faults(m: ParameterMap, params: tuple[Value, ...]) -> Iterator[str]:
    if not 0 <= m.parameter < len(params):
        yield f"expected a parameter among {len(params)}, got {m.parameter}"
        return
    t = params[m.parameter].type
    faults = list(map_faults(m.recipe))
    yield from faults
    if faults or not isinstance(t, TensorType):
        return
    if t.dtype != _short(m.recipe.dtype) and itemsize(t.dtype) != m.recipe.itemsize:
        yield f"expected elements of the size of those of {t}, got {_short(m.recipe.dtype)}"
        return
    if m.offset < 0 or m.offset % UNIT_BYTES:
        yield f"expected an offset that is a multiple of {UNIT_BYTES} bytes, got {m.offset}"
    end, nbytes = m.offset + m.recipe.span, t.span * itemsize(t.dtype)
    if end > nbytes:
        yield f"expected a map within the {nbytes} bytes of {t}, its last element ends at byte {end}"
