"""Writing a store step by step: one tensor is in memory, and what appears is the whole file or nothing."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from tilewright.runtime.atomic_file import atomic_file
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import InputError, StorageError
from tilewright.runtime.storage.header import StoreHeader, block_count, encode_header
from tilewright.runtime.storage.layout import BLOCK_BYTES, StepSpec, StoredStep, TensorSpec, plan_layout


class StoreWriter:
    """A new store, used as `with StoreWriter(path, steps) as writer`; `path` appears when that ends well.

    The space of the whole file is taken at the start. Raises `InputError` for steps, names and arrays
    that do not fit together, `StorageError` where the file cannot be written (a full disk, for instance).
    """

    def __init__(self, path: str | os.PathLike[str], steps: Sequence[StepSpec]) -> None:
        self.layout = plan_layout(steps)
        self._path = Path(path)
        empty = tuple(np.zeros(block_count(step.nbytes), np.uint32) for step in self.layout.steps)
        self._header = StoreHeader(self.layout, empty)
        self._header_bytes = len(encode_header(self._header))
        self._stack = ExitStack()
        self._file: Any = None
        self._written = 0

    def __enter__(self) -> Self:
        try:
            self._file = self._stack.enter_context(atomic_file(self._path))
            os.posix_fallocate(self._file.fileno(), 0, self._header_bytes + self.layout.nbytes)
        except OSError as error:
            with suppress(OSError):
                self._stack.__exit__(type(error), error, error.__traceback__)
            raise self._fault(error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            with suppress(OSError):  # closing a file on a full disk fails as well; the first error counts
                self._stack.__exit__(kind, error, trace)
            return
        try:
            with self._stack:
                if self._written < len(self.layout.steps):
                    missing = self.layout.steps[self._written].name
                    raise InputError(f"{self._path}: step {missing!r:.100} and what follows are missing")
                self._file.seek(0)
                self._file.write(encode_header(self._header))
        except OSError as fault:
            raise self._fault(fault) from None

    def write_step(self, arrays: Mapping[str, Array]) -> None:
        """Write the next step; each array is looked up once, in the order of the file, and then let go.

        So `arrays` may make them when asked. They must have the names, dtypes and shapes of the step.
        """
        if self._file is None or self._written == len(self.layout.steps):
            raise InputError(f"{self._path}: there is no step to write now")
        number = self._written
        step = self.layout.steps[number]
        if set(arrays) != set(step.start_of):
            odd = sorted(set(arrays) ^ set(step.start_of))[0]
            raise InputError(
                f"{self._path}: tensor {odd!r:.100} is not both in step {step.name!r:.100} and in its arrays"
            )
        try:
            self._write(step, arrays, self._header.checksums[number])
        except OSError as error:
            raise self._fault(error) from None
        self._written += 1

    def _write(self, step: StoredStep, arrays: Mapping[str, Array], checksums: Any) -> None:
        # A step that failed half-way may be written again.
        self._file.seek(self._header_bytes + step.offset)
        checksums[:] = 0
        done = 0

        def put(data: memoryview) -> None:
            nonlocal done
            while data:
                block, used = divmod(done, BLOCK_BYTES)
                part = data[: BLOCK_BYTES - used]
                checksums[block] = zlib.crc32(part, int(checksums[block]))
                self._file.write(part)
                done += len(part)
                data = data[len(part) :]

        for tensor, start in zip(step.tensors, step.starts, strict=True):
            put(memoryview(bytes(start - done)))
            put(_bytes_of(tensor, arrays[tensor.name], step))
        put(memoryview(bytes(step.nbytes - done)))

    def _fault(self, error: OSError) -> StorageError:
        total = self._header_bytes + self.layout.nbytes
        return StorageError(f"{self._path}: {total} bytes cannot be written ({error.strerror or error})")


def _bytes_of(tensor: TensorSpec, array: Array, step: StoredStep) -> memoryview:
    """The array's bytes in C order; raises `InputError` for another dtype or shape than planned."""
    if (array.dtype.name, array.shape) != (tensor.dtype, tensor.shape):
        raise InputError(
            f"step {step.name!r:.100}, tensor {tensor.name!r:.100}: expected {tensor.dtype} {tensor.shape}, "
            f"got {array.dtype.name} {array.shape}"
        )
    dense = np.ascontiguousarray(array, dtype=DTYPES[tensor.dtype])
    return dense.reshape(-1).view(np.uint8).data if dense.size else memoryview(b"")
