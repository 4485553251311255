"""Tensor maps as plain data: ways in which the copy engine of a GPU (TMA, sm_90) reads or writes a buffer.

The descriptor of the driver is 128 bytes that only it understands and that hold an address; a plan holds the
recipe, and the device encodes it where the address is known. Dimensions are listed as those of tensors are,
the outermost first; the last one is dense.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.runtime.dtypes import DTYPES

#: limits of cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col (CUDA driver API, tensor map objects)
MAX_RANK = 5
MAX_EXTENT = 1 << 32
MAX_STRIDE = 1 << 40
MAX_BOX = 256
MAX_STEP = 8
MAX_CHANNELS = 256
MAX_PIXELS = 1024
#: addresses, strides and rows of a box are multiples of so many bytes
UNIT_BYTES = 16
SWIZZLES = (0, 32, 64, 128)
PROMOTIONS = (0, 64, 128, 256)
FILLS = ("zero", "nan")
#: by rank, the range of the offsets of an im2col map's corners
CORNER_RANGES = {3: (-(1 << 15), (1 << 15) - 1), 4: (-128, 127), 5: (-16, 15)}
#: float32 in memory that a copy rounds to TF32 on its way: to the nearest, ties to even
ROUNDED = "tfloat32"
#: element types that the copy engine knows; it copies others as integers of their size
MAP_DTYPES = (
    "float16", "bfloat16", "float32", "float64", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    ROUNDED,
)  # fmt: skip
INTEGERS = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}
FLOAT_DTYPES = ("float16", "bfloat16", "float32", "float64", ROUNDED)


def copied_as(dtype: str) -> str:
    """The element type as which the copy engine copies elements of a dtype, by NumPy's name.

    Raises KeyError for dtypes of no size that it copies.
    """
    return dtype if dtype in MAP_DTYPES else INTEGERS[DTYPES[dtype].itemsize]


@dataclass(frozen=True)
class Window:
    """What makes a map an im2col one: a copy takes output pixels of a convolution, and their channels.

    lower, upper: per spatial dimension the offset of the first and last window's first pixel from the first
    and last pixel of the image: -padding, and padding - (filter - 1) * dilation. A copy takes `pixels` window
    positions, along the last spatial dimension first, then the one before, then images, and `channels`
    elements of each.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int


@dataclass(frozen=True)
class TensorMap:
    """The recipe of a tensor map: tiled, or im2col where it has a `window`.

    dims: elements. strides: bytes from one index to the next, of all dimensions but the last; they may
    overlap. box: of a tiled map the elements that a copy walks over; every `steps`-th of them is copied.
    steps: per dimension (1 of the last one); of an im2col map the strides of the convolution. swizzle: bytes
    of the rows in shared memory whose 16-byte pieces are permuted, 0 for none. fill: what a copy brings from
    outside of the dims (nan: one of the device's choice). promotion: bytes that a miss brings to the L2
    cache, 0 for what the hardware takes.
    """

    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...] = ()
    steps: tuple[int, ...] = ()
    swizzle: int = 0
    fill: str = "zero"
    promotion: int = 128
    window: Window | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES["float32" if self.dtype == ROUNDED else self.dtype].itemsize

    @property
    def all_steps(self) -> tuple[int, ...]:
        """A step per dimension, 1 where none is given."""
        return self.steps or (1,) * len(self.dims)

    @property
    def tile(self) -> tuple[int, ...]:
        """Elements that a copy brings to shared memory per dimension; (pixels, channels) of an im2col map."""
        if self.window is not None:
            return self.window.pixels, self.window.channels
        return tuple(-(-n // step) for n, step in zip(self.box, self.all_steps, strict=True))

    @property
    def transaction_bytes(self) -> int:
        """Bytes that a copy writes to shared memory, what lies outside of the dims included."""
        return math.prod(self.tile) * self.itemsize

    @property
    def span(self) -> int:
        """Bytes from the address to the end of the last element."""
        steps = (*self.strides, self.itemsize)
        return sum((n - 1) * s for n, s in zip(self.dims, steps, strict=True)) + self.itemsize


@dataclass(frozen=True)
class LaunchMap:
    """A map of a kernel: the argument it reads or writes, and the bytes from its begin to the map's."""

    argument: int
    offset: int
    recipe: TensorMap


def map_faults(recipe: TensorMap) -> Iterator[str]:
    """What the driver would refuse of a map, as clauses."""
    faults = list(_shape_faults(recipe))
    if not faults:
        faults += _memory_faults(recipe)
        faults += _tile_faults(recipe) if recipe.window is None else _window_faults(recipe, recipe.window)
    yield from faults


def _is_count(value: object, low: int, high: int) -> bool:
    return type(value) is int and low <= value <= high


def _shape_faults(recipe: TensorMap) -> Iterator[str]:
    rank = len(recipe.dims)
    if recipe.dtype not in MAP_DTYPES:
        yield f"expected an element type among {', '.join(MAP_DTYPES)}, got {recipe.dtype!r:.100}"
    if not 1 <= rank <= MAX_RANK:
        yield f"expected 1 to {MAX_RANK} dimensions, got {rank}"
    elif len(recipe.strides) != rank - 1:
        yield f"expected a stride per dimension but the last, {rank - 1}, got {len(recipe.strides)}"
    if recipe.steps and len(recipe.steps) != rank:
        yield f"expected a step per dimension, {rank}, got {len(recipe.steps)}"
    if recipe.window is None and len(recipe.box) != rank:
        yield f"expected a box of {rank} extents, got {len(recipe.box)}"
    if recipe.window is not None and recipe.box:
        yield f"expected no box in an im2col map, got {list(recipe.box)}"
    for what, value, values in (
        ("swizzle", recipe.swizzle, SWIZZLES),
        ("promotion", recipe.promotion, PROMOTIONS),
        ("fill", recipe.fill, FILLS),
    ):
        if value not in values or type(value) is bool:
            yield f"expected {what} to be one of {', '.join(map(str, values))}, got {value!r:.100}"


def _memory_faults(recipe: TensorMap) -> Iterator[str]:
    if not all(_is_count(n, 1, MAX_EXTENT) for n in recipe.dims):
        yield f"expected extents from 1 to {MAX_EXTENT}, got {list(recipe.dims)}"
    if not all(_is_count(s, UNIT_BYTES, MAX_STRIDE - 1) and s % UNIT_BYTES == 0 for s in recipe.strides):
        got = list(recipe.strides)
        yield f"expected strides that are multiples of {UNIT_BYTES} bytes below 2^40, got {got}"
    if not all(_is_count(s, 1, MAX_STEP) for s in recipe.all_steps):
        yield f"expected steps from 1 to {MAX_STEP}, got {list(recipe.steps)}"
    elif recipe.all_steps[-1] != 1:
        yield f"expected step 1 of the last dimension, which has no strides, got {recipe.all_steps[-1]}"
    if recipe.fill == "nan" and recipe.dtype not in FLOAT_DTYPES:
        yield f"expected fill zero of {recipe.dtype}, which has no nan"


def _row_faults(recipe: TensorMap, elements: int) -> Iterator[str]:
    """Faults of the row of `elements` that a copy writes to shared memory."""
    nbytes = elements * recipe.itemsize
    if nbytes % UNIT_BYTES:
        yield f"expected rows of a multiple of {UNIT_BYTES} bytes, got {nbytes}"
    elif recipe.swizzle and nbytes > recipe.swizzle:
        yield f"expected rows of at most the {recipe.swizzle} bytes of the swizzle, got {nbytes}"


def _tile_faults(recipe: TensorMap) -> Iterator[str]:
    if not all(_is_count(n, 1, MAX_BOX) for n in recipe.box):
        yield f"expected a box of extents from 1 to {MAX_BOX}, got {list(recipe.box)}"
    else:
        yield from _row_faults(recipe, recipe.box[-1])


def _window_faults(recipe: TensorMap, window: Window) -> Iterator[str]:
    rank = len(recipe.dims)
    if rank not in CORNER_RANGES:
        yield f"expected an im2col map of 3 to 5 dimensions (images, space, channels), got {rank}"
        return
    if len(window.lower) != rank - 2 or len(window.upper) != rank - 2:
        yield f"expected corners of {rank - 2} offsets, got {list(window.lower)} and {list(window.upper)}"
        return
    low, high = CORNER_RANGES[rank]
    if not all(_is_count(c, low, high) for c in (*window.lower, *window.upper)):
        yield (
            f"expected corners from {low} to {high} in {rank} dimensions, "
            f"got {list(window.lower)} and {list(window.upper)}"
        )
    elif any(
        n + last - first <= 0
        for n, first, last in zip(recipe.dims[1:-1], window.lower, window.upper, strict=True)
    ):
        yield f"expected corners that leave a window, got {list(window.lower)} and {list(window.upper)}"
    if not _is_count(window.channels, 1, MAX_CHANNELS):
        yield f"expected 1 to {MAX_CHANNELS} channels per pixel, got {window.channels!r:.100}"
    elif not _is_count(window.pixels, 1, MAX_PIXELS):
        yield f"expected 1 to {MAX_PIXELS} pixels per column, got {window.pixels!r:.100}"
    else:
        yield from _row_faults(recipe, window.channels)
    if recipe.all_steps[0] != 1:
        yield f"expected step 1 of the images of an im2col map, got {recipe.all_steps[0]}"
