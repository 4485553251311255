"""Dense arrays in GPU memory, for consumers that take DLPack (PyTorch, CuPy, JAX, ...)."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

import numpy as np

from tilewright.runtime import dlpack
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.dtypes import DTYPES, Array


class LentArray:
    """Memory that something else owns, for instance an input of a loaded plan; valid while that is open."""

    def __init__(
        self, context: Context, dtype: str, shape: tuple[int, ...], address: int, owner: object = None
    ) -> None:
        self._context = context
        self._owner = owner
        self.dtype = dtype
        self.shape = shape
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * DTYPES[dtype].itemsize
        self.address = address

    def numpy(self) -> Array:
        """A copy in host memory."""
        result = np.empty(self.shape, DTYPES[self.dtype])
        if result.nbytes:
            with self._context.current():
                self._context.call("cuMemcpyDtoH", result.ctypes.data, self.address, result.nbytes)
        return result

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA, self._context.ordinal

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """A capsule of this very memory; whoever writes it must have finished, no stream is made to wait."""
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            raise BufferError(f"the array lives on DLPack device {self.__dlpack_device__()}, not {dl_device}")
        if copy:
            raise BufferError("a copy was asked for; export the array and copy it there")
        return dlpack.make_capsule(
            self.address, dlpack.CUDA, self._context.ordinal, self.dtype, self.shape, self
        )


class DeviceArray(LentArray):
    """Owns its memory, which is freed when neither the array nor a consumer refers to it any more."""

    def __init__(self, context: Context, dtype: str, shape: tuple[int, ...], what: str) -> None:
        # A reference of its own to the primary context, so that the array may outlive the device object.
        super().__init__(context.again(), dtype, shape, 0)
        try:
            with self._context.current():
                self.address = self._context.allocate(self.nbytes, what)
        except BaseException:
            self._context.release()
            raise

    def free(self) -> None:
        """Free the memory now; only for arrays that no consumer looks at."""
        if self.address:
            address, self.address = self.address, 0
            with self._context.current():
                self._context.call("cuMemFree", address)
            self._context.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()

    def __del__(self) -> None:
        # At the end of the process the driver takes all memory back, and may be gone before this array.
        if getattr(self, "address", 0) and not sys.is_finalizing():
            self.free()
