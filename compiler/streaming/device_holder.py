"""`DeviceHolder`: opens a device at the first call, keeps it for later ones, and frees it with its folder."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Self, TypeVar

from tilewright.ir import InputError
from tilewright.runtime.interface.queue import Allocation, DeviceQueue
from tilewright.streaming.store_file import StoreFolder


@dataclass
class Opened:
    """What is open on a device; stack: closes all of it. windows: memory for values."""

    windows: list[Allocation]
    queue: DeviceQueue
    stack: ExitStack


Held = TypeVar("Held", bound=Opened)


class DeviceHolder(Generic[Held]):
    """Streams through a device, which one call at a time may use.

    The first call opens the device. `close()` or a `with` block frees it and a temporary folder: then it
    cannot be called again. It may be called twice.
    """

    #: what to do when it is closed, behind a colon of the message
    anew = "compile the network again"

    def __init__(self, target: str, folder: StoreFolder) -> None:
        self.target = target
        self._folder = folder
        self._opened: Held | None = None
        self._lock = threading.RLock()
        self._closed = False

    @abstractmethod
    def _opening(self) -> Held:
        """Open everything."""

    def _release(self) -> None:
        """Free what it has beside the device and the folder."""

    @contextmanager
    def _working(self) -> Iterator[None]:
        """One caller at a time; after a failure the device is opened anew."""
        with self._lock:
            self._check_open()
            try:
                yield
            except InputError:
                raise
            except BaseException:
                self.close_device()
                raise

    def _check_open(self) -> None:
        if self._closed:
            raise InputError(f"this executable was closed: {self.anew}")

    def _open(self) -> Held:
        self._check_open()
        if self._opened is None:
            self._opened = self._opening()
        return self._opened

    def close_device(self) -> None:
        """Free the device; the next call opens it again."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.stack.close()

    def close(self) -> None:
        """Free the device and everything else, and remove a temporary folder."""
        with self._lock:
            self._closed = True
            with ExitStack() as rest:
                rest.callback(self._folder.close)
                rest.callback(self._release)
                self.close_device()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
