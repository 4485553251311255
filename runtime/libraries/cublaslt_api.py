"""Numbers and functions of the C interface of cuBLASLt (cublasLt.h, library_types.h) as ctypes takes them."""

from __future__ import annotations

import ctypes
from typing import Any

from tilewright.runtime.libraries.locate import open_library

ALGORITHM_BYTES = 64

#: cudaDataType_t
DATA_TYPE = {"float32": 0, "float16": 2, "bfloat16": 14}
#: cublasComputeType_t
COMPUTE_32F, COMPUTE_32F_FAST_TF32 = 68, 77
#: cublasLtEpilogue_t
EPILOGUE = {"none": 1, "relu": 2, "bias": 4, "relu_bias": 6, "gelu": 32, "gelu_bias": 36}
#: cublasLtMatmulDescAttributes_t
DESC_TRANSA, DESC_TRANSB, DESC_EPILOGUE, DESC_BIAS_POINTER, DESC_BIAS_DATA_TYPE = 3, 4, 7, 8, 26
#: cublasLtMatrixLayoutAttribute_t
LAYOUT_BATCH_COUNT, LAYOUT_STRIDED_BATCH_OFFSET = 5, 6
#: cublasLtMatmulPreferenceAttributes_t: most workspace, and alignments of A, B, C and D
PREFERENCE_MAX_WORKSPACE_BYTES = 1
PREFERENCE_MIN_ALIGNMENT = (5, 6, 7, 8)
STATUS_SUCCESS, STATUS_NOT_SUPPORTED = 0, 15
#: cublasStatus_t
STATUS = {
    1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR",
    13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR",
}  # fmt: skip


class Algorithm(ctypes.Structure):
    """cublasLtMatmulAlgo_t: opaque, and meaningful to one version of the library."""

    _fields_ = (("data", ctypes.c_uint64 * 8),)


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


_pointer = ctypes.c_void_p
_handles = ctypes.POINTER(ctypes.c_void_p)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_handles,),
    "cublasLtDestroy": (_pointer,),
    "cublasLtMatmulDescCreate": (_handles, ctypes.c_int, ctypes.c_int),
    "cublasLtMatmulDescDestroy": (_pointer,),
    "cublasLtMatmulDescSetAttribute": (_pointer, ctypes.c_int, _pointer, ctypes.c_size_t),
    "cublasLtMatrixLayoutCreate": (_handles, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatrixLayoutDestroy": (_pointer,),
    "cublasLtMatrixLayoutSetAttribute": (_pointer, ctypes.c_int, _pointer, ctypes.c_size_t),
    "cublasLtMatmulPreferenceCreate": (_handles,),
    "cublasLtMatmulPreferenceDestroy": (_pointer,),
    "cublasLtMatmulPreferenceSetAttribute": (_pointer, ctypes.c_int, _pointer, ctypes.c_size_t),
    "cublasLtMatmulAlgoGetHeuristic": (
        *(_pointer,) * 7, ctypes.c_int, ctypes.POINTER(HeuristicResult), ctypes.POINTER(ctypes.c_int),
    ),
    "cublasLtMatmulAlgoCheck": (
        *(_pointer,) * 6, ctypes.POINTER(Algorithm), ctypes.POINTER(HeuristicResult),
    ),
    "cublasLtMatmul": (
        *(_pointer,) * 12, ctypes.POINTER(Algorithm), _pointer, ctypes.c_size_t, _pointer,
    ),
}  # fmt: skip


def open_cublaslt() -> ctypes.CDLL:
    """The library with its functions declared; raises `DeviceMissingError` where it is not installed."""
    files = ("libcublasLt.so.13", "libcublasLt.so.12", "cublasLt64_13.dll")
    library = open_library(files, ("cu13/lib", "cublas/lib", "cu13/bin/x86_64", "cublas/bin"), "cuBLASLt")
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    library.cublasLtGetVersion.argtypes, library.cublasLtGetVersion.restype = (), ctypes.c_size_t
    return library
