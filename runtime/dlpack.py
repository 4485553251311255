"""DLPack by ctypes: look into other libraries' capsules, and make capsules of our own device memory."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.errors import InputError

CPU, CUDA, CUDA_HOST, CUDA_MANAGED = 1, 2, 3, 13

_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}
#: element types with a code of their own, since DLPack 1.1
_OWN_CODES = {"float8_e4m3fn": 10}


def _code(name: str) -> int:
    return _OWN_CODES[name] if name in _OWN_CODES else _CODES[name.rstrip("0123456789")]


_DTYPE_OF_CODE = {(_code(name), 8 * dtype.itemsize): name for name, dtype in DTYPES.items()}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _ElementType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("rank", ctypes.c_int32),
        ("dtype", _ElementType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _ManagedTensor(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_ManagedTensor))
_ManagedTensor._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))

_api = ctypes.pythonapi
_api.PyCapsule_GetPointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_CapsuleDestructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
_api.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _CapsuleDestructor)
_api.PyCapsule_New.restype = ctypes.py_object
# In a destructor the capsule must not be resurrected, so it is handled by address there.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_pointer_at = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)
_NAME = b"dltensor"


@dataclass(frozen=True)
class TensorView:
    """Memory described by a capsule, readable while the capsule lives; strides count elements."""

    address: int
    kind: int
    device: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def is_dense(self) -> bool:
        """Row-major without gaps."""
        expected = 1
        for extent, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if extent != 1 and stride != expected:
                return False
            expected *= extent
        return True

    def byte_span(self) -> tuple[int, int]:
        """The lowest touched byte relative to `address`, and the number of bytes up to the last one."""
        size = DTYPES[self.dtype].itemsize
        if 0 in self.shape:
            return 0, 0
        reach = [(extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True)]
        low = sum(step for step in reach if step < 0)
        high = sum(step for step in reach if step > 0)
        return low * size, (high - low + 1) * size

    def gather(self, span: np.ndarray[Any, np.dtype[np.uint8]]) -> np.ndarray[Any, np.dtype[Any]]:
        """The tensor as an array on top of its span's bytes (see `byte_span`)."""
        dtype = DTYPES[self.dtype]
        byte_strides = [stride * dtype.itemsize for stride in self.strides]
        return np.ndarray(self.shape, dtype, span.data, -self.byte_span()[0], byte_strides)


def view_capsule(capsule: object) -> TensorView:
    """Describe the tensor of an unversioned, unconsumed capsule; raises `InputError` for odd ones."""
    try:
        pointer = _api.PyCapsule_GetPointer(capsule, _NAME)
    except (ValueError, ctypes.ArgumentError) as error:
        raise InputError(f"__dlpack__ returned no fresh dltensor capsule ({error})") from None
    tensor = _ManagedTensor.from_address(pointer).tensor
    dtype = _DTYPE_OF_CODE.get((tensor.dtype.code, tensor.dtype.bits))
    if dtype is None or tensor.dtype.lanes != 1:
        raise InputError(
            f"expected a DLPack element type among {', '.join(DTYPES)}, got code {tensor.dtype.code} "
            f"with {tensor.dtype.bits} bits and {tensor.dtype.lanes} lanes"
        )
    shape = tuple(tensor.shape[axis] for axis in range(tensor.rank))
    if tensor.strides:
        strides = tuple(tensor.strides[axis] for axis in range(tensor.rank))
    else:
        strides = tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape)))
    address = (tensor.data or 0) + tensor.byte_offset
    return TensorView(address, tensor.device.kind, tensor.device.index, dtype, shape, strides)


def copy_from_host(view: TensorView) -> np.ndarray[Any, np.dtype[Any]]:
    """A dense NumPy copy of a tensor in host memory."""
    low, nbytes = view.byte_span()
    if nbytes == 0:
        return np.empty(view.shape, DTYPES[view.dtype])
    raw = (ctypes.c_uint8 * nbytes).from_address(view.address + low)
    return np.array(view.gather(np.frombuffer(memoryview(raw), np.uint8)), order="C", copy=True)


@dataclass
class _Export:
    """Everything a consumer of one of our capsules may still look at."""

    managed: _ManagedTensor
    extents: ctypes.Array[ctypes.c_int64]
    owner: object


_exports: dict[int, _Export] = {}


def _delete(managed: Any) -> None:
    _exports.pop(ctypes.addressof(managed.contents), None)


def _destroy_capsule(capsule: int) -> None:
    # A consumer renames the capsule and calls the deleter itself.
    if _is_valid(capsule, _NAME):
        _exports.pop(_pointer_at(capsule, _NAME), None)


def _leave_to_the_process() -> None:
    """Leave what consumers still hold when Python ends as it is: no deleter may enter Python then."""
    for export in _exports.values():
        export.managed.deleter = _Deleter()
        _api.Py_IncRef(ctypes.py_object(export))


atexit.register(_leave_to_the_process)
_c_delete = _Deleter(_delete)
_c_destroy_capsule = _CapsuleDestructor(_destroy_capsule)


def make_capsule(
    address: int, kind: int, device: int, dtype: str, shape: tuple[int, ...], owner: object
) -> object:
    """A capsule for dense memory that keeps `owner` alive until the consumer is done."""
    bits = 8 * DTYPES[dtype].itemsize
    extents = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    managed = _ManagedTensor()
    managed.tensor.data = address
    managed.tensor.device = _Device(kind, device)
    managed.tensor.rank = len(shape)
    managed.tensor.dtype = _ElementType(_code(dtype), bits, 1)
    managed.tensor.shape = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    managed.tensor.byte_offset = 0
    managed.deleter = _c_delete
    key = ctypes.addressof(managed)
    _exports[key] = _Export(managed, extents, owner)
    make: Callable[..., object] = _api.PyCapsule_New
    return make(key, _NAME, _c_destroy_capsule)
