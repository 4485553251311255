"""cuBLASLt: the algorithms it proposes for a matrix product, and products launched on given pointers."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.errors import DeviceError, InputError
from tilewright.runtime.libraries import cublaslt_api as api
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.matmul import MatmulProblem
from tilewright.runtime.libraries.problem import POINTER_BYTES

#: algorithms that the heuristic is asked for
REQUESTED = 32


@dataclass(frozen=True)
class _Descriptors:
    """The handles that describe a product: the operation, then A, B, C and D."""

    operation: ctypes.c_void_p
    layouts: tuple[ctypes.c_void_p, ...]


class CublasLt:
    """A handle of cuBLASLt in the context that is current; `library` is what `open_cublaslt` gives."""

    provider = "cublaslt"

    def __init__(self, library: Any = None) -> None:
        self._library = api.open_cublaslt() if library is None else library
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
        results = (api.HeuristicResult * REQUESTED)()
        count = ctypes.c_int(0)
        with self._described(problem) as descriptors, self._preference(workspace_bytes) as preference:
            status = self._library.cublasLtMatmulAlgoGetHeuristic(
                self._handle, descriptors.operation, *descriptors.layouts, preference,
                ctypes.c_int(REQUESTED), results, ctypes.byref(count),
            )  # fmt: skip
        if status == api.STATUS_NOT_SUPPORTED:
            return []
        _check("cublasLtMatmulAlgoGetHeuristic", status)
        found = [r for r in results[: count.value] if r.state == api.STATUS_SUCCESS]
        return [
            LibraryKernel(
                self.provider, self.version, problem, bytes(r.algorithm).hex(), int(r.workspace_bytes)
            )
            for r in found
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
        compute = api.COMPUTE_32F_FAST_TF32 if problem.tf32 else api.COMPUTE_32F
        scale = ctypes.c_int(api.DATA_TYPE["float32"])
        operation = self._new("cublasLtMatmulDescCreate", ctypes.c_int(compute), scale)
        stack.callback(self._library.cublasLtMatmulDescDestroy, operation)
        values: list[tuple[int, Any]] = [
            (api.DESC_TRANSA, ctypes.c_int32(problem.transposed_a)),
            (api.DESC_TRANSB, ctypes.c_int32(problem.transposed_b)),
            (api.DESC_EPILOGUE, ctypes.c_uint32(api.EPILOGUE[problem.epilogue])),
        ]
        if problem.has_bias:
            # The heuristic reads the alignment off the pointer: any aligned one tells it as much.
            values.append((api.DESC_BIAS_DATA_TYPE, ctypes.c_int32(api.DATA_TYPE[problem.result])))
            values.append((api.DESC_BIAS_POINTER, ctypes.c_void_p(bias or POINTER_BYTES)))
        for attribute, value in values:
            self._set("cublasLtMatmulDescSetAttribute", operation, attribute, value)
        layouts = tuple(self._layout(problem, role, stack) for role in ("a", "b", "c", "d"))
        return _Descriptors(operation, layouts)

    def _layout(self, problem: MatmulProblem, role: str, stack: ExitStack) -> ctypes.c_void_p:
        rows, columns, matrix = problem.stored(role)
        dtype = api.DATA_TYPE[problem.dtype if role in "ab" else problem.result]
        layout = self._new(
            "cublasLtMatrixLayoutCreate", ctypes.c_int(dtype), ctypes.c_uint64(rows),
            ctypes.c_uint64(columns), ctypes.c_int64(matrix.ld),
        )  # fmt: skip
        stack.callback(self._library.cublasLtMatrixLayoutDestroy, layout)
        name = "cublasLtMatrixLayoutSetAttribute"
        self._set(name, layout, api.LAYOUT_BATCH_COUNT, ctypes.c_int32(problem.batch))
        self._set(name, layout, api.LAYOUT_STRIDED_BATCH_OFFSET, ctypes.c_int64(matrix.stride))
        return layout

    @contextmanager
    def _preference(self, workspace_bytes: int) -> Iterator[ctypes.c_void_p]:
        preference = self._new("cublasLtMatmulPreferenceCreate")
        try:
            name = "cublasLtMatmulPreferenceSetAttribute"
            limit = ctypes.c_uint64(workspace_bytes)
            self._set(name, preference, api.PREFERENCE_MAX_WORKSPACE_BYTES, limit)
            for attribute in api.PREFERENCE_MIN_ALIGNMENT:
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

    def fits(self, descriptors: _Descriptors, algorithm: api.Algorithm, workspace_bytes: int) -> bool:
        """Whether the algorithm runs such a product with this workspace on this GPU."""
        result = api.HeuristicResult()
        status = self._library.cublasLtMatmulAlgoCheck(
            self._handle, descriptors.operation, *descriptors.layouts, ctypes.byref(algorithm),
            ctypes.byref(result),
        )  # fmt: skip
        return bool(status == api.STATUS_SUCCESS and result.workspace_bytes <= workspace_bytes)


class PreparedMatmul:
    """One product on fixed addresses; `start` only queues it, so a stream that is captured takes it too."""

    def __init__(
        self, library: CublasLt, kernel: LibraryKernel, pointers: Mapping[str, int], doing: str
    ) -> None:
        raw = bytes.fromhex(kernel.algorithm)
        if len(raw) != api.ALGORITHM_BYTES:
            raise InputError(f"{doing}: expected an algorithm of {api.ALGORITHM_BYTES} bytes, got {len(raw)}")
        self._library, self._doing = library, doing
        self._algorithm = api.Algorithm.from_buffer_copy(raw)
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
        given = {**pointers, "c": pointers.get("c", pointers["d"])}
        self._pointers = {
            role: given[role] + problem.stored(role)[2].start * problem.itemsize(role) for role in "abcd"
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
    if status != api.STATUS_SUCCESS:
        raise DeviceError(f"{function} failed: CUBLAS_STATUS_{api.STATUS.get(status, status)}")
