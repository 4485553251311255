"""How a caller's arrays get into a plan's fixed inputs on a GPU: checked first, then copied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime import dlpack
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.arrays import check_input_count, export_dlpack, host_array, view_dlpack
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan


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
