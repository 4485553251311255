"""The layout of tensors on storage: steps in the order of use, each one aligned run of bytes read at once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.runtime.dtypes import DTYPES, Array, dtype_named
from tilewright.runtime.errors import InputError

#: bytes of which offsets, sizes and addresses of direct reads and writes are multiples: one page
PAGE_BYTES = 4096
#: bytes at which a tensor starts inside its step, as buffers of plans do, so that kernels read it in place
TENSOR_ALIGNMENT = 256
#: dimensions that NumPy's arrays may have
MAX_RANK = 64
#: bytes covered by one checksum
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class TensorSpec:
    """Name, element type (as in `runtime.dtypes`, for instance "bfloat16") and shape of one tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        dtype_named(self.dtype)
        if len(self.shape) > MAX_RANK or any(extent < 0 for extent in self.shape):
            raise InputError(
                f"tensor {self.name!r:.100}: expected up to {MAX_RANK} extents >= 0, got {self.shape!r:.99}"
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the dense tensor."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class StepSpec:
    """The tensors that one step of a schedule uses, in the order of their use."""

    name: str
    tensors: tuple[TensorSpec, ...]


@dataclass(frozen=True)
class StoredStep:
    """One step on storage.

    offset, nbytes: the bytes of the file that one read brings, both multiples of `PAGE_BYTES`.
    starts: where each tensor begins, in bytes from the beginning of the step; multiples of
    `TENSOR_ALIGNMENT`.
    """

    name: str
    offset: int
    nbytes: int
    tensors: tuple[TensorSpec, ...]
    starts: tuple[int, ...]

    @property
    def tensor_bytes(self) -> int:
        """Bytes of the tensors alone, without what aligns them."""
        return sum(tensor.nbytes for tensor in self.tensors)

    @cached_property
    def start_of(self) -> Mapping[str, int]:
        """The begin of each tensor in the step, by name: its offset in a buffer that holds the step."""
        return {tensor.name: start for tensor, start in zip(self.tensors, self.starts, strict=True)}

    def arrays(self, view: memoryview) -> dict[str, Array]:
        """The tensors as arrays over a buffer of at least `nbytes` that holds the step; nothing is copied."""
        arrays: dict[str, Array] = {}
        for tensor, start in zip(self.tensors, self.starts, strict=True):
            flat = (
                np.frombuffer(view, np.uint8, tensor.nbytes, start)
                if tensor.nbytes
                else np.empty(0, np.uint8)
            )
            arrays[tensor.name] = flat.view(DTYPES[tensor.dtype]).reshape(tensor.shape)
        return arrays


@dataclass(frozen=True)
class StoreLayout:
    """All steps of a file, one behind the other."""

    steps: tuple[StoredStep, ...]

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all steps."""
        return sum(step.nbytes for step in self.steps)

    @cached_property
    def largest_step_bytes(self) -> int:
        """Bytes of a buffer that holds any step; at least one page."""
        return max([PAGE_BYTES, *(step.nbytes for step in self.steps)])

    @cached_property
    def step_of(self) -> Mapping[str, int]:
        """The number of the step that holds each tensor, by the tensor's name."""
        return {tensor.name: number for number, step in enumerate(self.steps) for tensor in step.tensors}

    def shifted(self, nbytes: int) -> StoreLayout:
        """The same steps `nbytes` (a multiple of `PAGE_BYTES`) further back in the file."""
        steps = (StoredStep(s.name, s.offset + nbytes, s.nbytes, s.tensors, s.starts) for s in self.steps)
        return StoreLayout(tuple(steps))


def plan_layout(steps: Sequence[StepSpec]) -> StoreLayout:
    """Return the layout of the steps, the first at byte 0; this needs no tensor's data.

    Raises `InputError` for no steps, or a name of a tensor that occurs twice.
    """
    if not steps:
        raise InputError("expected at least one step of tensors, got none")
    stored: list[StoredStep] = []
    names: set[str] = set()
    offset = 0
    for step in steps:
        starts: list[int] = []
        end = 0
        for tensor in step.tensors:
            if tensor.name in names:
                raise InputError(f"step {step.name!r:.100}: tensor {tensor.name!r:.100} occurs twice")
            names.add(tensor.name)
            start = round_up(end, TENSOR_ALIGNMENT)
            starts.append(start)
            end = start + tensor.nbytes
        nbytes = round_up(end, PAGE_BYTES)
        stored.append(StoredStep(step.name, offset, nbytes, tuple(step.tensors), tuple(starts)))
        offset += nbytes
    return StoreLayout(tuple(stored))


def round_up(nbytes: int, multiple: int) -> int:
    """The smallest multiple that is not below `nbytes`."""
    return -(-nbytes // multiple) * multiple
