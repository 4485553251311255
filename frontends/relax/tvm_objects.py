"""Names in TVM 0.25, 0.26 and 0.27: every read of a TVM object happens here, TVM is not imported.

0.25 keeps types in `struct_info` and names in `name_hint`, later versions in `ty` and `name`; numbers among
operands are `PrimValue` there, `IntImm` and `FloatImm` later; constants are `Constant` with `data` up to 0.26
and `GenericConst` with `value` from 0.27 on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.frontends.tvm import ast
from tilewright.ir.errors import InputError
from tilewright.ir.types import dtype_name, storage_dtype

#: class names of expressions that are one thing to us
VARIABLES = frozenset({"Var", "DataflowVar"})
CONSTANTS = frozenset({"Constant", "GenericConst", "TensorConst"})
NUMBERS = frozenset({"PrimValue", "IntImm", "FloatImm"})
_TENSOR_TYPES = frozenset({"TensorType", "TensorStructInfo", "DynTensorType"})
_TUPLE_TYPES = frozenset({"TupleType", "TupleStructInfo"})


def kind(item: Any) -> str:
    """The class name of a TVM object."""
    return type(item).__name__


def identity(item: Any) -> int:
    """A key of the object behind a Python handle: TVM makes a new handle at every access."""
    return hash(item)


def is_module(item: Any) -> bool:
    """Return whether this is a live IRModule of TVM."""
    return kind(item) == "IRModule" and type(item).__module__.startswith("tvm.")


def functions(module: Any) -> dict[str, Any]:
    """The functions of a module by name, in order of their names."""
    by_name = {name_of(variable): function for variable, function in module.functions.items()}
    return {name: by_name[name] for name in sorted(by_name)}


def is_relax_function(function: Any) -> bool:
    """Return whether a function of a module is written in Relax (others are tensor programs or externals)."""
    return kind(function) == "Function" and hasattr(function, "is_pure")


def name_of(variable: Any) -> str:
    """The name of a variable or of a global function."""
    return str(variable.name if hasattr(variable, "name") else variable.name_hint)


def raw_type(item: Any) -> Any:
    """The type object of an expression; None where TVM recorded none."""
    kind_object = getattr(item, "ty", None)
    return kind_object if kind_object is not None else getattr(item, "struct_info", None)


def result_type(function: Any) -> Any:
    """The type object of a function's result."""
    return function.ret_ty if hasattr(function, "ret_ty") else function.ret_struct_info


def type_of(raw: Any) -> ast.Type:
    """Our syntax of a type object; dimensions that are not constant become None."""
    if kind(raw) in _TUPLE_TYPES:
        return ast.TupleType(tuple(type_of(field) for field in raw.fields))
    if kind(raw) in _TENSOR_TYPES:
        dims, dtype = dimensions(raw), dtype_text(getattr(raw, "dtype", None))
        if dims is not None and dtype:
            return ast.TensorType(tuple(d if isinstance(d, int) else None for d in dims), dtype)
    return ast.NamedType("_")


def dimensions(raw: Any) -> tuple[int | str, ...] | None:
    """The dimensions of a tensor type, symbolic ones as text; None where not even their number is known."""
    shape = getattr(raw, "shape", None)
    if shape is None:
        count = int(getattr(raw, "ndim", -1))
        return ("?",) * count if count >= 0 else None
    if not hasattr(shape, "values"):
        return ("?",) * int(raw.ndim)
    return tuple(map(dimension, shape.values))


def dimension(value: Any) -> int | str:
    """A dimension as an integer, or its text where it is symbolic."""
    return int(value.value) if kind(value) == "IntImm" else str(value)


def dynamic_dimensions(raw: Any) -> Iterator[str]:
    """The symbolic dimensions within a type, as text."""
    if kind(raw) in _TUPLE_TYPES:
        for field in raw.fields:
            yield from dynamic_dimensions(field)
    elif kind(raw) in _TENSOR_TYPES:
        yield from (d for d in dimensions(raw) or () if isinstance(d, str) and d != "?")


def tensor_text(raw: Any) -> str:
    """A type in words for messages."""
    if kind(raw) in _TENSOR_TYPES:
        dims = dimensions(raw)
        shown = "of unknown rank" if dims is None else f"({', '.join(map(str, dims))})"
        return f"a tensor {shown} of {dtype_text(raw.dtype) or 'unknown dtype'}"
    return kind(raw)


def dtype_text(dtype: Any) -> str:
    """TVM's name of a dtype; empty where it is unknown."""
    text = "" if dtype is None else str(dtype)
    return "" if text in ("", "void", "handle") else text


def array(constant: Any) -> np.ndarray:
    """The array of a constant."""
    data = constant.data if hasattr(constant, "data") else constant.value
    return np.asarray(data.numpy() if hasattr(data, "numpy") else data)


def number(value: Any) -> np.ndarray | None:
    """A number among the operands as a rank-0 array of its dtype; None where it is symbolic."""
    if kind(value) == "PrimValue":
        value = value.value
    if kind(value) not in ("IntImm", "FloatImm"):
        return None
    dtype = dtype_text(getattr(value, "dtype", None) or raw_type(value))
    return np.asarray(value.value).astype(storage_dtype(dtype_name(dtype)))


def shape_values(shape: Any) -> tuple[int | str, ...]:
    """The entries of a shape expression, symbolic ones as text."""
    return tuple(map(dimension, shape.values))


def attributes(attrs: Any) -> dict[str, Any]:
    """The attributes of a call in plain Python; those that are not set are left out."""
    if attrs is None:
        return {}
    info = getattr(type(attrs), "__tvm_ffi_type_info__", None)
    names = [f.name for f in (info.fields if info else None) or ()]
    values = {name: getattr(attrs, name) for name in names if hasattr(attrs, name)}
    return {name: plain(value) for name, value in values.items() if value is not None}


def plain(value: Any) -> Any:
    """An attribute value in plain Python; what has no counterpart becomes its text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if kind(value) in ("IntImm", "FloatImm"):
        return value.value
    if kind(value) == "DictAttrs" or isinstance(value, Mapping):
        return tuple((str(k), plain(v)) for k, v in value.items())
    if isinstance(value, str) or kind(value) in ("PrimType", "DataType", "dtype"):
        return str(value)
    if isinstance(value, Sequence) or kind(value) in ("Array", "List"):
        return tuple(map(plain, value))
    return str(value)


def attached_params(function: Any) -> tuple[np.ndarray, ...]:
    """Arrays that TVM's importers attach to a function as the values of its last parameters."""
    arrays = function.attrs["params"] if function.attrs is not None and "params" in function.attrs else ()
    return tuple(host_array(value) for value in arrays)


def input_count(function: Any) -> int | None:
    """The number of leading parameters that are inputs, where TVM's importer said so."""
    attrs = function.attrs
    return int(attrs["num_input"]) if attrs is not None and "num_input" in attrs else None


def host_array(value: Any) -> np.ndarray:
    """The NumPy array of a TVM tensor, or of anything array-like."""
    if hasattr(value, "numpy"):
        return np.asarray(value.numpy())
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"expected an array, got {type(value).__name__}: {error}") from None
