"""Arrays of callers and a plan on a GPU: inputs are checked and copied, outputs lent through DLPack."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np

from tilewright.runtime import dlpack
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.arrays import check_input_count, export_dlpack, host_array, view_dlpack
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan


class LentArray:
    """Memory that something else owns, for instance an input of a loaded plan; valid while that is open."""

    def __init__(
        self, context: Context, dtype: str, shape: tuple[int, ...], address: int, owner: object = None
    ) -> None:
        self._context = context
        self._owner = owner
        self.dtype = dtype
        self.shape = shape
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize
        self.address = address

    def numpy(self) -> Array:
        """A copy in host memory."""
        result = np.empty(self.shape, DTYPES[self.dtype])
        if result.nbytes:
            with self._context.current():
                self._context.call("cuMemcpyDtoH", result.ctypes.data, self.address, result.nbytes)
        return result

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self._context.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule of this very memory; whoever writes it must have finished, no stream is made to wait."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array lives on DLPack device {self.__dlpack_device__()}, not {dl_device}")
        if copy:
            raise BufferError("a copy was asked for; export the array and copy it there")
        return dlpack.make_capsule(
            self.address, dlpack.CUDA, self._context.ordinal, self.dtype, self.shape, self
        )


class DeviceArray(LentArray):
    """Owns its memory, which is freed when neither the array nor a consumer refers to it any more."""

    def __init__(self, context: Context, dtype: str, shape: tuple[int, ...], what: str) -> None:
        # A reference of its own to the primary context, so that the array may outlive the device object.
        super().__init__(context.again(), dtype, shape, 0)
        try:
            with self._context.current():
                self.address = self._context.allocate(self.nbytes, what)
        except BaseException:
            self._context.release()
            raise

    def free(self) -> None:
        """Free the memory now; only for arrays that no consumer looks at."""
        if self.address:
            address, self.address = self.address, 0
            with self._context.current():
                self._context.call("cuMemFree", address)
            self._context.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()

    def __del__(self) -> None:
        # At the end of the process the driver takes all memory back, and may be gone before this array.
        if getattr(self, "address", 0) and not sys.is_finalizing():
            self.free()


@dataclass(frozen=True)
class CopyIn:
    """One copy that fills an input; `source` must stay alive until it is done.

    array: the dense host array it comes from, None where it comes from device memory.
    """

    name: str
    target: int
    address: int
    nbytes: int
    source: object
    array: Array | None

    def start(self, context: Context, stream: Any) -> None:
        """Queue the copy on `stream`."""
        if self.nbytes:
            function = "cuMemcpyDtoDAsync" if self.array is None else "cuMemcpyHtoDAsync"
            context.call(function, self.target, self.address, self.nbytes, stream, doing=self.name)


def copies_in(
    context: Context,
    plan: ExecutionPlan,
    addresses: Mapping[str, int],
    inputs: Sequence[object],
    stream: Any,
) -> list[CopyIn]:
    """One copy per input; everything is checked before the first is made.

    Arrays on this GPU come through DLPack: their producers make `stream` wait for whatever still writes them.
    Raises `InputError` naming the input.
    """
    check_input_count(plan, inputs)
    return [
        _copy_in(context, value, plan.buffer_by_name[name], addresses[name], stream)
        for name, value in zip(plan.inputs, inputs, strict=True)
    ]


def _copy_in(context: Context, value: Any, buffer: Buffer, target: int, stream: Any) -> CopyIn:
    nbytes = buffer.size * DTYPES[buffer.dtype].itemsize
    kind, index = dlpack.CPU, 0
    if not isinstance(value, np.ndarray | np.generic) and hasattr(value, "__dlpack_device__"):
        kind, index = (int(part) for part in value.__dlpack_device__())
    if kind not in (dlpack.CUDA, dlpack.CUDA_MANAGED):
        array = host_array(value, buffer, "input")
        return CopyIn(buffer.name, target, array.ctypes.data, nbytes, array, array)
    if kind == dlpack.CUDA and index != context.ordinal:
        raise InputError(
            f"input {buffer.title!r}: expected an array on GPU {context.ordinal}, got one on GPU {index}"
        )
    capsule = export_dlpack(value, buffer, "input", stream=int(stream))
    view = view_dlpack(capsule, buffer, "input")
    if view.is_dense or nbytes == 0:
        return CopyIn(buffer.name, target, view.address, nbytes, capsule, None)
    array = _gather(context, view, stream)
    return CopyIn(buffer.name, target, array.ctypes.data, nbytes, array, array)


def _gather(context: Context, view: dlpack.TensorView, stream: Any) -> Array:
    """A dense host copy of a strided device array; its whole span travels once."""
    low, nbytes = view.byte_span()
    span = np.empty(nbytes, np.uint8)
    context.call("cuMemcpyDtoHAsync", span.ctypes.data, view.address + low, nbytes, stream)
    context.call("cuStreamSynchronize", stream)
    return np.array(view.gather(span), order="C", copy=True)
