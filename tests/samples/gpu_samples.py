"""A stand-in for the CUDA driver: GPU memory is host memory, and what is queued runs at once."""

# ruff: noqa: N802, N815 - the driver's own names

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np

SUCCESS, NOT_READY = SimpleNamespace(name="CUDA_SUCCESS"), SimpleNamespace(name="CUDA_ERROR_NOT_READY")


class Gpu:
    """Answers driver calls with numbers and notes them in `log`, which may be shared with a library.

    busy: streams on which work never ends until it is cleared.
    """

    CUresult = SimpleNamespace(
        CUDA_SUCCESS=SUCCESS, CUDA_ERROR_NOT_READY=NOT_READY, CUDA_ERROR_OUT_OF_MEMORY=object()
    )
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)

    def __init__(self, number: int, log: list[tuple[Any, ...]]) -> None:
        self.number, self.log, self.busy = number, log, False
        self.memory: dict[int, np.ndarray[Any, Any]] = {}
        self.next = 100

    @staticmethod
    def CUgraphEdgeData() -> SimpleNamespace:
        return SimpleNamespace(type=0, from_port=0)

    def names(self, among: Iterable[str]) -> list[str]:
        return [entry[0] for entry in self.log if entry[0] in set(among)]

    def __getattr__(self, function: str) -> Any:
        if not function.startswith("cu"):
            raise AttributeError(function)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.log.append((function, *arguments))
            self.next += 1
            return SUCCESS, self.next

        return call

    CUgraphInstantiate_flags = SimpleNamespace(CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY=8)

    def cuCtxGetStreamPriorityRange(self) -> tuple[Any, int, int]:
        return SUCCESS, 0, -5

    def cuDeviceGetCount(self) -> tuple[Any, int]:
        return SUCCESS, 8

    def cuDeviceGetUuid(self, device: int) -> tuple[Any, Any]:
        return SUCCESS, SimpleNamespace(bytes=bytes([self.number] * 16))

    def cuDeviceGetName(self, size: int, device: int) -> tuple[Any, bytes]:
        return SUCCESS, b"made up\0"

    def cuGetErrorName(self, status: Any) -> tuple[Any, bytes]:
        return SUCCESS, status.name.encode()

    cuGetErrorString = cuGetErrorName

    def cuCtxPushCurrent(self, context: int) -> tuple[Any]:
        return (SUCCESS,)

    def cuCtxPopCurrent(self) -> tuple[Any, int]:
        return SUCCESS, 0

    def cuStreamQuery(self, stream: int) -> tuple[Any]:
        return (NOT_READY if self.busy else SUCCESS,)

    cuEventQuery = cuStreamQuery

    def cuEventElapsedTime(self, begin: int, end: int) -> tuple[Any, float]:
        return SUCCESS, 2.0

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, int]:
        block = np.zeros(nbytes, np.uint8)
        self.memory[block.ctypes.data] = block
        return SUCCESS, block.ctypes.data

    def cuMemFree(self, address: int) -> tuple[Any]:
        del self.memory[address]
        return (SUCCESS,)

    def cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: int) -> tuple[Any]:
        ctypes.memmove(target, source, nbytes)
        return (SUCCESS,)

    cuMemcpyDtoHAsync = cuMemcpyDtoDAsync = cuMemcpyHtoDAsync
