"""Named arrays as safetensors bytes, in the order of their names, and back with every header lie refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import InputError

_FORMAT_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool",
    "F8_E4M3": "float8_e4m3fn",
}  # fmt: skip


def write_tensors(arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """The arrays in the safetensors format, with texts by name; equal content gives equal bytes."""
    texts = dict(sorted(metadata.items())) if metadata else None
    return safetensors.numpy.save({name: arrays[name] for name in sorted(arrays)}, texts)


def read_metadata(data: bytes) -> dict[str, str]:
    """The texts by name that stand in the header of safetensors bytes, which `read_tensors` has read."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return dict(header.get("__metadata__", {}))


def read_tensors(data: bytes) -> dict[str, Array]:
    """The arrays (read-only) of safetensors bytes; a header that lies raises `InputError`."""
    deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = safetensors.deserialize
    try:
        entries = deserialize(data)
    except safetensors.SafetensorError as error:
        raise InputError(f"the weights are no valid safetensors data ({error})") from None
    arrays: dict[str, Array] = {}
    for name, entry in entries:
        dtype = DTYPES.get(_FORMAT_NAMES.get(entry["dtype"], ""))
        if dtype is None:
            raise InputError(f"weight {name!r:.100} has the unknown element type {entry['dtype']!r}")
        array = np.frombuffer(entry["data"], dtype=np.uint8)
        if dtype == np.bool_:
            # Any byte but 0 and 1 would be a bool that equals neither True nor False.
            array = np.minimum(array, 1)
        arrays[name] = array.view(dtype).reshape(entry["shape"])
    return arrays
