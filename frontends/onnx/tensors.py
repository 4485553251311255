"""Arrays and element types of ONNX tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.frontends.importing.emitter import Absent
from tilewright.frontends.onnx.package import onnx_module
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.types import FLOAT8, TensorType, storage_dtype

#: ONNX's name of an element type -> ours
DTYPES: Mapping[str, str] = {
    "FLOAT": "f32",
    "DOUBLE": "f64",
    "FLOAT16": "f16",
    "BFLOAT16": "bf16",
    "FLOAT8E4M3FN": "f8e4m3",
    "INT8": "i8",
    "INT16": "i16",
    "INT32": "i32",
    "INT64": "i64",
    "UINT8": "u8",
    "UINT16": "u16",
    "UINT32": "u32",
    "UINT64": "u64",
    "BOOL": "bool",
}
#: types that only quantised constants have -> a type of ours that holds all their values
NARROW: Mapping[str, str] = {
    "FLOAT4E2M1": "f32",
    "FLOAT8E4M3FNUZ": "f32",
    "FLOAT8E5M2": "f32",
    "FLOAT8E5M2FNUZ": "f32",
    "INT2": "i8",
    "INT4": "i8",
    "UINT2": "u8",
    "UINT4": "u8",
}
_EXTERNAL = 1


@dataclass(frozen=True, slots=True)
class Narrow(Absent):
    """A constant of a type that no tensor has, with its values in a wider one: DequantizeLinear takes it."""

    array: np.ndarray = field(repr=False)


def element_name(number: int) -> str:
    """ONNX's name of element type `number`, such as FLOAT16."""
    names = onnx_module().TensorProto.DataType
    return str(names.Name(number)) if number in names.values() else f"number {number}"


def dtype_of_element(number: int) -> str:
    """Our name of ONNX's element type `number`; raises UnsupportedError for a type we have not."""
    name = element_name(number)
    if name not in DTYPES:
        raise UnsupportedError(f"expected a type of elements among {', '.join(DTYPES)}, got {name}")
    return DTYPES[name]


def element_of_dtype(dtype: str) -> int:
    """ONNX's number of our element type."""
    name = next(name for name, ours in DTYPES.items() if ours == dtype)
    return int(onnx_module().TensorProto.DataType.Value(name))


def text(raw: str | bytes) -> str:
    """A name in a message; protobuf gives bytes where they are not UTF-8, which raises InputError."""
    if isinstance(raw, bytes):
        raise InputError(f"expected names in UTF-8, got {raw!r}")
    return str(raw)


def read_tensor(tensor: Any, folder: Path | None, where: str) -> np.ndarray | Absent:
    """The array of a TensorProto; an Absent where its elements are of a type we have not.

    folder: where external data lies; None where the model did not come from a file.
    Raises InputError for damaged tensors and for external data that is missing or outside the folder.
    """
    what = f"tensor '{text(tensor.name)}'"
    element = element_name(tensor.data_type)
    if element not in DTYPES and element not in NARROW:
        return Absent(f"{what} of {element} elements")
    shape = tuple(tensor.dims)
    if any(n < 0 for n in shape):
        raise InputError(f"expected {what} to have non-negative dimensions, got {shape}", where=where)
    try:
        if tensor.data_location == _EXTERNAL and element in NARROW:
            return Absent(f"{what} of {element} elements outside the model")
        if tensor.data_location == _EXTERNAL:
            return _external(tensor, DTYPES[element], shape, folder)
        array = np.asarray(onnx_module("numpy_helper").to_array(tensor))
        if element in NARROW:
            return Narrow(f"{what} of {element} elements", array.astype(storage_dtype(NARROW[element])))
    except (InputError, ValueError, TypeError, OSError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"cannot read {what}: {first}", where=where) from None
    return array


def _external(tensor: Any, dtype: str, shape: tuple[int, ...], folder: Path | None) -> np.ndarray:
    """Elements that lie in a file beside the model, mapped rather than read."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise InputError(
            f"its elements lie in the file '{location}', which only a model loaded from a path finds"
        )
    file = (folder / location).resolve()
    if not location or not file.is_relative_to(folder.resolve()):
        raise InputError(f"expected external data in the folder of the model, got '{location}'")
    if not file.is_file():
        raise InputError(f"expected its external data in {file}, which is no file")
    offset, kind = int(entries.get("offset", "0")), TensorType(dtype, shape)
    length = int(entries.get("length", str(kind.nbytes)))
    available = file.stat().st_size - offset
    if length != kind.nbytes or offset < 0 or length > available:
        raise InputError(
            f"expected {kind.nbytes} bytes of {kind} at byte {offset} of {file}, "
            f"got {max(0, min(length, available))}"
        )
    if not kind.nbytes:
        return np.empty(shape, storage_dtype(dtype))
    known = dtype == "bf16" or dtype in FLOAT8
    little = storage_dtype(dtype) if known else storage_dtype(dtype).newbyteorder("<")
    return np.memmap(file, dtype=little, mode="r", offset=offset, shape=shape)
