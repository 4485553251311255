"""Stand-ins for libraries: a cuBLASLt that computes on host memory, and arrays it can point to."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.runtime.errors import DeviceMissingError
from tilewright.runtime.libraries import cublaslt as api
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.problem import Problem

DTYPE = {0: np.dtype(np.float32), 2: np.dtype(np.float16), 14: np.dtype(ml_dtypes.bfloat16)}
SUPPORTED = {api.EPILOGUE[name] for name in ("none", "relu", "bias", "relu_bias", "gelu", "gelu_bias")}


class FakeCublasLt:
    """Answers the C functions that `CublasLt` calls, with descriptors as dicts and pointers to host memory.

    `algorithms`: how many it proposes; `gelu`: whether it takes one; `log`: the functions called, in order.
    """

    def __init__(self, *, version: int = 130100, algorithms: int = 3, gelu: bool = True) -> None:
        self.version, self.algorithms, self.gelu = version, algorithms, gelu
        self.objects: dict[int, dict[Any, Any]] = {}
        self.log: list[str] = []
        self.runs = 0

    def __getattr__(self, name: str) -> Callable[..., int]:
        if not name.startswith("cublasLt"):
            raise AttributeError(name)
        plain = name.removeprefix("cublasLt")

        def call(*arguments: Any) -> int:
            self.log.append(plain)
            if plain.endswith("Create"):
                return self._create(*arguments)
            if plain.endswith("Destroy"):
                self.objects.pop(arguments[0].value)
                return 0
            if plain.endswith("SetAttribute"):
                handle, attribute, value, size = arguments
                assert size.value == ctypes.sizeof(value._obj)
                self.objects[handle.value][attribute.value] = value._obj.value
                return 0
            return int(getattr(self, f"_{plain}")(*arguments))

        return call

    def _create(self, out: Any, *arguments: Any) -> int:
        number = 1 + max(self.objects, default=0)
        self.objects[number] = {"made": [a.value for a in arguments]}
        out._obj.value = number
        return 0

    def cublasLtGetVersion(self) -> int:  # noqa: N802
        return self.version

    def _MatmulAlgoGetHeuristic(self, handle: Any, operation: Any, *rest: Any) -> int:  # noqa: N802
        *_, preference, requested, results, count = rest
        epilogue = self.objects[operation.value][api.DESC_EPILOGUE]
        if epilogue not in SUPPORTED or (epilogue & api.EPILOGUE["gelu"] and not self.gelu):
            return api.STATUS_NOT_SUPPORTED
        assert self.objects[preference.value][api.PREFERENCE_MAX_WORKSPACE_BYTES] >= 0
        for i in range(min(self.algorithms, requested.value)):
            results[i].algorithm.data[0] = i + 1
            results[i].workspace_bytes = 256 * i
        count._obj.value = min(self.algorithms, requested.value)
        return 0

    def _MatmulAlgoCheck(self, *arguments: Any) -> int:  # noqa: N802
        algorithm, result = arguments[-2:]
        if not 1 <= algorithm._obj.data[0] <= self.algorithms:
            return api.STATUS_NOT_SUPPORTED
        result._obj.workspace_bytes = 256 * (algorithm._obj.data[0] - 1)
        return 0

    def _Matmul(  # noqa: N802
        self, handle: Any, operation: Any, alpha: Any, a: Any, a_layout: Any, b: Any, b_layout: Any,
        beta: Any, c: Any, c_layout: Any, d: Any, d_layout: Any, algorithm: Any, workspace: Any, size: Any,
        stream: Any,
    ) -> int:  # fmt: skip
        what = self.objects[operation.value]
        left, right = self._matrices(a, a_layout), self._matrices(b, b_layout)
        if what[api.DESC_TRANSA]:
            left = left.swapaxes(1, 2)
        if what[api.DESC_TRANSB]:
            right = right.swapaxes(1, 2)
        total = alpha._obj.value * (left.astype(np.float64) @ right.astype(np.float64))
        if beta._obj.value:
            total = total + beta._obj.value * self._matrices(c, c_layout).astype(np.float64)
        epilogue = what[api.DESC_EPILOGUE]
        out = self._matrices(d, d_layout)
        if epilogue & api.EPILOGUE["bias"]:
            bias = _view(what[api.DESC_BIAS_POINTER], DTYPE[what[api.DESC_BIAS_DATA_TYPE]], (out.shape[1],))
            total = total + bias.astype(np.float64)[None, :, None]
        if epilogue & api.EPILOGUE["relu"]:
            total = np.maximum(total, 0.0)
        if epilogue & api.EPILOGUE["gelu"]:
            total = 0.5 * total * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (total + 0.044715 * total**3)))
        out[...] = total.astype(out.dtype)
        self.runs += 1
        return 0

    def _matrices(self, pointer: Any, layout: Any) -> np.ndarray:
        """A batch of matrices as [batch, rows, columns], a view of host memory."""
        what = self.objects[layout.value]
        dtype, rows, columns, ld = what["made"]
        batch, stride = what[api.LAYOUT_BATCH_COUNT], what[api.LAYOUT_STRIDED_BATCH_OFFSET]
        item = DTYPE[dtype].itemsize
        steps = (stride * item, item, ld * item)
        span = (batch - 1) * stride + (columns - 1) * ld + rows
        flat = _view(pointer.value, DTYPE[dtype], (span,))
        return np.lib.stride_tricks.as_strided(flat, (batch, rows, columns), steps, writeable=True)


def _view(address: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer((ctypes.c_uint8 * count).from_address(address), np.uint8).view(dtype).reshape(shape)


class FakeLibraryDevice:
    """Proposes algorithms as a CUDA device with `library` does, and runs nothing."""

    name = "fake"

    def __init__(self, provider: Any) -> None:
        self.provider = provider

    def library_version(self, provider: str) -> str:
        if provider != self.provider.provider:
            raise DeviceMissingError(f"no library {provider}")
        return str(self.provider.version)

    def library_kernels(self, provider: str, problem: Problem, workspace_bytes: int) -> list[LibraryKernel]:
        if provider != self.provider.provider:
            raise DeviceMissingError(f"no library {provider}")
        found: list[LibraryKernel] = self.provider.kernels(problem, workspace_bytes)
        return found
