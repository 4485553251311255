"""Reading a store's steps straight into GPU memory: GPUDirect Storage through kvikio."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tilewright.runtime.closable import Closable
from tilewright.runtime.errors import DeviceMissingError, InputError, StorageError
from tilewright.runtime.storage.buffers import HostBuffer
from tilewright.runtime.storage.direct_file import open_to_read
from tilewright.runtime.storage.header import read_header
from tilewright.runtime.storage.layout import StoredStep, StoreLayout
from tilewright.runtime.storage.reader import numbered_step
from tilewright.runtime.storage.source import IoFacts, Transfer

_PACKAGE = "kvikio"


class _DeviceBytes:
    """Device memory as kvikio takes it: an address and a size by the CUDA array interface."""

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (pointer, False), "version": 3, "strides": None,
        }  # fmt: skip


class PendingDeviceRead:
    """A step on its way into device memory; see `source.Pending`. kvikio cannot cancel: `cancel` waits."""

    def __init__(self, path: str, step: int, stored: StoredStep, future: Any) -> None:
        self._path, self._step, self._stored, self._future = path, step, stored, future
        self._began_s = time.perf_counter()

    def done(self) -> bool:
        """Return whether `wait` would return, or raise, at once."""
        return bool(self._future.done())

    def wait(self) -> Transfer:
        """Wait for the end; raises `StorageError`. Checksums are not compared: no host sees the bytes."""
        stored = self._stored
        where = f"{self._path}: reading step {stored.name!r:.100} at byte {stored.offset} into the GPU"
        try:
            got = int(self._future.get())
        except (RuntimeError, OSError) as error:
            raise StorageError(f"{where} failed: {error}") from None
        if got != self._stored.nbytes:
            raise StorageError(f"{where}: expected {self._stored.nbytes} bytes, got {got}")
        return Transfer(self._step, got, self._began_s, time.perf_counter(), verified=False)

    def cancel(self) -> None:
        """Wait for the end, whatever it is."""
        try:
            self.wait()
        except StorageError:
            return


class DeviceReader(Closable):
    """Steps of a store straight into device memory: a `StepSource` whose buffers are device addresses.

    current: makes the CUDA context current, on whichever thread; without it it must be current already.
    Raises `DeviceMissingError` where kvikio is not installed, `InputError` where `path` is no store.
    Threads and request sizes are kvikio's own (KVIKIO_NTHREADS, KVIKIO_TASK_SIZE).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        current: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        kvikio = _kvikio()
        self._current = current
        self._path = os.fspath(path)
        file = open_to_read(self._path, direct=False)
        try:
            self.layout: StoreLayout = read_header(file).layout
        finally:
            file.close()
        direct = bool(kvikio.cufile_driver.get("is_gds_available"))
        note = "" if direct else "kvikio has no GPUDirect Storage here and goes through host memory"
        self.facts = IoFacts(
            self._path,
            direct,
            note,
            int(kvikio.defaults.get("task_size")),
            int(kvikio.defaults.get("num_threads")),
            "never",
        )
        self._file = kvikio.CuFile(self._path, "r")

    def start_into_device(self, step: int, pointer: int) -> PendingDeviceRead:
        """Begin to read a step to the device address `pointer`, which has room for `nbytes` of the step."""
        stored = numbered_step(self.layout.steps, step)
        if pointer <= 0:
            raise InputError(f"step {stored.name!r:.100}: expected a device address, got {pointer}")
        with self._current():
            future = self._file.pread(_DeviceBytes(pointer, stored.nbytes), stored.nbytes, stored.offset)
        return PendingDeviceRead(self._path, step, stored, future)

    def read_into_device(self, step: int, pointer: int) -> Transfer:
        """Read a step to a device address and wait for it."""
        return self.start_into_device(step, pointer).wait()

    def start(self, step: int, buffer: HostBuffer) -> PendingDeviceRead:
        """See `StepSource.start`; the buffer's address is one of the device."""
        return self.start_into_device(step, buffer.address)

    def read(self, step: int, buffer: HostBuffer) -> Transfer:
        """Read a step to a buffer of the device and wait for it."""
        return self.start(step, buffer).wait()

    def _release(self) -> None:
        """Close the file; every read must have ended."""
        self._file.close()


def _kvikio() -> Any:
    try:
        package = importlib.import_module(_PACKAGE)
        importlib.import_module(f"{_PACKAGE}.cufile_driver")
        importlib.import_module(f"{_PACKAGE}.defaults")
    except ImportError as error:
        raise DeviceMissingError(
            f"reading storage straight into the GPU needs the package kvikio (kvikio-cu12 or -cu13): {error}"
        ) from None
    return package
