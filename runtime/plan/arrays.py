"""Check and prepare the arrays a caller hands to a device: count, shape, element type, layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.runtime import dlpack
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan


def check_input_count(plan: ExecutionPlan, inputs: Sequence[object]) -> None:
    """Raise `InputError` unless there is one array per input of the plan."""
    if len(inputs) != len(plan.inputs):
        names = ", ".join(plan.input_titles) or "none"
        raise InputError(f"expected {len(plan.inputs)} inputs ({names}), got {len(inputs)}")


def host_inputs(plan: ExecutionPlan, inputs: Sequence[object]) -> list[Array]:
    """The inputs as contiguous NumPy arrays of the planned shapes and dtypes; nothing is cast.

    Takes NumPy arrays and DLPack objects in host memory; raises `InputError` for anything else.
    """
    check_input_count(plan, inputs)
    return [
        host_array(value, plan.buffer_by_name[name], "input")
        for name, value in zip(plan.inputs, inputs, strict=True)
    ]


def host_array(value: object, buffer: Buffer, what: str) -> Array:
    """One contiguous NumPy array for `buffer`; a copy only where the layout demands one."""
    if isinstance(value, np.ndarray):
        array: Array = value
    elif isinstance(value, np.generic):
        array = np.asarray(value)
    elif hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        array = _from_host_dlpack(value, buffer, what)
    else:
        raise InputError(
            f"{what} {buffer.title!r}: expected a NumPy or DLPack array, got {type(value).__name__}"
        )
    check_array(array.shape, array.dtype.name, buffer, what)
    # Byte order is part of the dtype in NumPy but not of its name; the device sees native order only.
    dense = np.ascontiguousarray(array, dtype=DTYPES[buffer.dtype])
    # The very array where nothing has to change: what is known of it (a digest) is known of the result.
    return dense if dense.shape == buffer.shape else dense.reshape(buffer.shape)


def check_array(shape: tuple[int, ...], dtype: str, buffer: Buffer, what: str) -> None:
    """Raise `InputError` naming the array unless its shape and dtype are those of `buffer`."""
    if dtype != buffer.dtype:
        raise InputError(f"{what} {buffer.title!r}: expected dtype {buffer.dtype}, got {dtype}")
    if tuple(shape) != buffer.shape:
        raise InputError(f"{what} {buffer.title!r}: expected shape {list(buffer.shape)}, got {list(shape)}")


def check_constants(plan: ExecutionPlan, constants: Mapping[str, Array]) -> dict[str, Array]:
    """The plan's constants, and what its state starts as, as contiguous arrays.

    Missing, extra or wrong ones raise `InputError`.
    """
    buffers = {buffer.name: buffer for buffer in plan.buffers if buffer.kind in ("constant", "state")}
    missing = [name for name in buffers if name not in constants]
    extra = [name for name in constants if name not in buffers]
    if missing or extra:
        fault = f"constant {missing[0]!r} is missing" if missing else f"the plan has no constant {extra[0]!r}"
        raise InputError(f"expected {len(buffers)} constants, got {len(constants)}: {fault}")
    return {name: host_array(constants[name], buffer, buffer.kind) for name, buffer in buffers.items()}


def check_repeats(repeats: int) -> None:
    """Raise `InputError` unless `repeats` is a positive integer."""
    if type(repeats) is not int or repeats < 1:
        raise InputError(f"expected a positive number of repeats, got {repeats!r}")


def _from_host_dlpack(value: Any, buffer: Buffer, what: str) -> Array:
    kind = int(value.__dlpack_device__()[0])
    if kind not in (dlpack.CPU, dlpack.CUDA_HOST):
        raise InputError(
            f"{what} {buffer.title!r}: expected an array in host memory, got one on DLPack device type {kind}"
        )
    capsule = export_dlpack(value, buffer, what)
    return dlpack.copy_from_host(view_dlpack(capsule, buffer, what))


def export_dlpack(value: Any, buffer: Buffer, what: str, **options: int) -> object:
    """The capsule of a DLPack producer, its refusals (gradients, odd memory) as `InputError`."""
    try:
        return value.__dlpack__(**options)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{what} {buffer.title!r}: cannot be exported through DLPack ({error})") from None


def view_dlpack(capsule: object, buffer: Buffer, what: str) -> dlpack.TensorView:
    """Return a view of a capsule's tensor, checked against `buffer`."""
    try:
        view = dlpack.view_capsule(capsule)
    except InputError as error:
        raise InputError(f"{what} {buffer.title!r}: {error}") from None
    check_array(view.shape, view.dtype, buffer, what)
    return view
