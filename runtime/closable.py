"""Things with resources: they close once, work as context managers and refuse work after that."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from tilewright.runtime.errors import DeviceError

_closing = threading.Lock()


class Closable:
    """A thing with resources; subclasses free them in `_release`, which runs at most once."""

    _closed = False

    def _release(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} frees nothing")

    def close(self) -> None:
        """Free everything; later calls, from whichever thread, do nothing."""
        with _closing:
            if self._closed:
                return
            self._closed = True
        self._release()

    def check_open(self) -> None:
        """Raise `DeviceError` if it was closed."""
        if self._closed:
            raise DeviceError(f"this {type(self).__name__} was closed and can do no more work")

    def __enter__(self) -> Self:
        self.check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
