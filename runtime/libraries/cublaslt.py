"""cuBLASLt: the algorithms it proposes for a matrix product, and products launched on given pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.errors import DeviceError, InputError
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.locate import open_library
from tilewright.runtime.libraries.matmul import MatmulProblem
from tilewright.runtime.libraries.problem import POINTER_BYTES

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

#: algorithms that the heuristic is asked for
REQUESTED = 32


def open_cublaslt() -> ctypes.CDLL:
    """The library with its functions declared; raises `DeviceMissingError` where it is not installed."""
    files = ("libcublasLt.so.13", "libcublasLt.so.12", "cublasLt64_13.dll")
    library = open_library(files, ("cu13/lib", "cublas/lib", "cu13/bin/x86_64", "cublas/bin"), "cuBLASLt")
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    library.cublasLtGetVersion.argtypes, library.cublasLtGetVersion.restype = (), ctypes.c_size_t
    return library


@dataclass(frozen=True)
class _Descriptors:
    """The handles that describe a product: the operation, then A, B, C and D."""

    operation: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ...]


class CublasLt:
    """A handle of cuBLASLt in the context that is current; `library` is what `open_cublaslt` gives."""

    provider = "cublaslt"

    def __init__(self, library: Any = None) -> None:
        self._library = open_cublaslt() if library is None else library
        self._handle = self._new("cublasLtCreate")

    @property
    def version(self) -> str:
        """Major, minor and patch, for instance `13.1.0`."""
        number = int(self._library.cublasLtGetVersion())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"

    def close(self) -> None:
        """Destroy the handle; the context must be current."""
        handle, self._handle = self._handle, ctypes.c_void_p()
        if handle:
            self._call("cublasLtDestroy", handle)

    def kernels(self, problem: MatmulProblem, workspace_bytes: int) -> list[LibraryKernel]:
        """The algorithms for a product that need at most so much workspace, most promising first.

        None where the library does not support it. Raises `DeviceError` where it fails.
        """
        problem.check()
        results = (HeuristicResult * REQUESTED)()
        count = ctypes.c_int(0)
        with self._described(problem) as descriptors, self._preference(workspace_bytes) as preference:
            status = self._library.cublasLtMatmulAlgoGetHeuristic(
                self._handle, descriptors.operation, *descriptors.layouts, preference,
                ctypes.c_int(REQUESTED), results, ctypes.byref(count),
            )  # fmt: skip
        if status == STATUS_NOT_SUPPORTED:
            return []
        _check("cublasLtMatmulAlgoGetHeuristic", status)
        supported = [r for r in results[: count.value] if r.state == STATUS_SUCCESS]
        return [
            LibraryKernel(
                self.provider, self.version, problem, bytes(r.algorithm).hex(), int(r.workspace_bytes)
            )
            for r in supported
        ]

    def prepare(self, kernel: LibraryKernel, pointers: Mapping[str, int], doing: str) -> PreparedMatmul:
        """A launch of a kernel on these addresses by role; raises `DeviceError` where it cannot run here."""
        return PreparedMatmul(self, kernel, pointers, doing)

    # What products are described with

    @contextmanager
    def _described(self, problem: MatmulProblem, bias: int = 0) -> Iterator[_Descriptors]:
        with ExitStack() as stack:
            yield self.describe(problem, bias, stack)

    def describe(self, problem: MatmulProblem, bias: int, stack: ExitStack) -> _Descriptors:
        """Descriptors that live until the stack is closed. bias: its address, 0 while there is none."""
        compute = COMPUTE_32F_FAST_TF32 if problem.tf32 else COMPUTE_32F
        scale = ctypes.c_int(DATA_TYPE["float32"])
        operation = self._new("cublasLtMatmulDescCreate", ctypes.c_int(compute), scale)
        stack.callback(self._library.cublasLtMatmulDescDestroy, operation)
        values: list[tuple[int, Any]] = [
            (DESC_TRANSA, ctypes.c_int32(problem.transposed_a)),
            (DESC_TRANSB, ctypes.c_int32(problem.transposed_b)),
            (DESC_EPILOGUE, ctypes.c_uint32(EPILOGUE[problem.epilogue])),
        ]
        if problem.has_bias:
            # The heuristic reads the alignment off the pointer: any aligned one tells it as much.
            values.append((DESC_BIAS_DATA_TYPE, ctypes.c_int32(DATA_TYPE[problem.result])))
            values.append((DESC_BIAS_POINTER, ctypes.c_void_p(bias or POINTER_BYTES)))
        for attribute, value in values:
            self._set("cublasLtMatmulDescSetAttribute", operation, attribute, value)
        layouts = tuple(self._layout(problem, role, stack) for role in ("a", "b", "c", "d"))
        return _Descriptors(operation, layouts)

    def _layout(self, problem: MatmulProblem, role: str, stack: ExitStack) -> ctypes.c_void_p:
        rows, columns, matrix = problem.stored(role)
        dtype = DATA_TYPE[problem.dtype if role in "ab" else problem.result]
        layout = self._new(
            "cublasLtMatrixLayoutCreate", ctypes.c_int(dtype), ctypes.c_uint64(rows),
            ctypes.c_uint64(columns), ctypes.c_int64(matrix.ld),
        )  # fmt: skip
        stack.callback(self._library.cublasLtMatrixLayoutDestroy, layout)
        name = "cublasLtMatrixLayoutSetAttribute"
        self._set(name, layout, LAYOUT_BATCH_COUNT, ctypes.c_int32(problem.batch))
        self._set(name, layout, LAYOUT_STRIDED_BATCH_OFFSET, ctypes.c_int64(matrix.stride))
        return layout

    @contextmanager
    def _preference(self, workspace_bytes: int) -> Iterator[ctypes.c_void_p]:
        preference = self._new("cublasLtMatmulPreferenceCreate")
        try:
            name = "cublasLtMatmulPreferenceSetAttribute"
            limit = ctypes.c_uint64(workspace_bytes)
            self._set(name, preference, PREFERENCE_MAX_WORKSPACE_BYTES, limit)
            for attribute in PREFERENCE_MIN_ALIGNMENT:
                self._set(name, preference, attribute, ctypes.c_uint32(POINTER_BYTES))
            yield preference
        finally:
            self._library.cublasLtMatmulPreferenceDestroy(preference)

    # Calls

    def _new(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self._call(function, ctypes.byref(handle), *arguments)
        return handle

    def _set(self, function: str, handle: ctypes.c_void_p, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        self._call(function, handle, ctypes.c_int(attribute), ctypes.byref(value), size)

    def _call(self, function: str, *arguments: Any) -> None:
        _check(function, getattr(self._library, function)(*arguments))

    def matmul(self, *arguments: Any, doing: str) -> None:
        """cublasLtMatmul with this handle; raises `DeviceError` naming what it was called for."""
        _check(f"cublasLtMatmul ({doing})", self._library.cublasLtMatmul(self._handle, *arguments))

    def fits(self, descriptors: _Descriptors, algorithm: Algorithm, workspace_bytes: int) -> bool:
        """True where the algorithm runs such a product with this workspace on this GPU."""
        result = HeuristicResult()
        status = self._library.cublasLtMatmulAlgoCheck(
            self._handle, descriptors.operation, *descriptors.layouts, ctypes.byref(algorithm),
            ctypes.byref(result),
        )  # fmt: skip
        return bool(status == STATUS_SUCCESS and result.workspace_bytes <= workspace_bytes)


class PreparedMatmul:
    """One product on fixed addresses; `start` only queues it, so a stream that is captured takes it too."""

    def __init__(
        self, library: CublasLt, kernel: LibraryKernel, pointers: Mapping[str, int], doing: str
    ) -> None:
        raw = bytes.fromhex(kernel.algorithm)
        if len(raw) != ALGORITHM_BYTES:
            raise InputError(f"{doing}: expected an algorithm of {ALGORITHM_BYTES} bytes, got {len(raw)}")
        self._library, self._doing = library, doing
        self._algorithm = Algorithm.from_buffer_copy(raw)
        self._workspace_bytes = kernel.workspace_bytes
        self._stack = ExitStack()
        problem = kernel.problem
        try:
            self._descriptors = library.describe(problem, pointers.get("bias", 0), self._stack)
            if not library.fits(self._descriptors, self._algorithm, kernel.workspace_bytes):
                raise DeviceError(f"{doing}: this GPU does not run the stored algorithm: compile it again")
        except BaseException:
            self.close()
            raise
        # Without C the factor beta is 0, and D stands in for what is not read.
        self._scales = ctypes.c_float(1.0), ctypes.c_float(1.0 if problem.c is not None else 0.0)
        addresses = {**pointers, "c": pointers.get("c", pointers["d"])}
        self._pointers = {
            role: addresses[role] + problem.stored(role)[2].start * problem.itemsize(role) for role in "abcd"
        }
        self._workspace = pointers["workspace"]

    def start(self, stream: int) -> None:
        """Queue the product on a stream."""
        at, layouts = self._pointers, self._descriptors.layouts
        one, beta = (ctypes.byref(scale) for scale in self._scales)
        a, b, c, d = (ctypes.c_void_p(at[role]) for role in ("a", "b", "c", "d"))
        self._library.matmul(
            self._descriptors.operation, one, a, layouts[0], b, layouts[1], beta, c, layouts[2], d,
            layouts[3], ctypes.byref(self._algorithm), ctypes.c_void_p(self._workspace),
            ctypes.c_size_t(self._workspace_bytes), ctypes.c_void_p(stream), doing=self._doing,
        )  # fmt: skip

    def close(self) -> None:
        """Free the descriptors."""
        self._stack.close()


def _check(function: str, status: int) -> None:
    if status != STATUS_SUCCESS:
        raise DeviceError(f"{function} failed: CUBLAS_STATUS_{STATUS.get(status, status)}")
