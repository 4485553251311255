"""One step's requests in a pool of threads: began, ended, failed or cancelled as one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tilewright.runtime.errors import StorageError
from tilewright.runtime.storage.source import Transfer


class ChunkedTransfer:
    """A `PendingTransfer` whose chunks run in the order of their bytes, several at once.

    request(begin, end) moves these bytes of the step or raises `StorageError`; a failure ends the rest.
    at_end() is called once, by the thread that ends the last chunk, where all went well.
    """

    def __init__(
        self,
        pool: ThreadPoolExecutor,
        step: int,
        nbytes: int,
        chunk_bytes: int,
        request: Callable[[int, int], None],
        verified: bool,
        at_end: Callable[[], None],
    ) -> None:
        self._step, self._nbytes, self._verified = step, nbytes, verified
        self._request, self._at_end = request, at_end
        self._lock = threading.Lock()
        self._stopped = self._running = False
        self._failure: BaseException | None = None
        self._began_s = self._ended_s = time.perf_counter()
        starts = range(0, nbytes, chunk_bytes)
        self._left = len(starts)
        if not starts:
            at_end()
        self._futures: list[Future[None]] = [
            pool.submit(self._run, begin, min(begin + chunk_bytes, nbytes)) for begin in starts
        ]

    def done(self) -> bool:
        """Return whether nothing is under way any more."""
        return all(future.done() for future in self._futures)

    def wait(self) -> Transfer:
        """Wait for the end; raises `StorageError`."""
        wait(self._futures)
        if self._failure is not None:
            raise self._failure
        if self._left:  # cancelled here, or by the end of the pool
            raise StorageError(f"step number {self._step} was cancelled on its way")
        return Transfer(self._step, self._nbytes, self._began_s, self._ended_s, self._verified)

    def cancel(self) -> None:
        """Start no more requests and wait for those in flight."""
        with self._lock:
            self._stopped = True
        for future in self._futures:
            future.cancel()
        wait(self._futures)

    def _run(self, begin: int, end: int) -> None:
        with self._lock:
            if self._stopped:
                return
            if not self._running:
                self._running, self._began_s = True, time.perf_counter()
        try:
            self._request(begin, end)
        except BaseException as error:
            with self._lock:
                self._stopped, self._failure = True, self._failure or error
            raise
        with self._lock:
            self._left -= 1
            self._ended_s = time.perf_counter()
            last = self._left == 0
        if last:
            self._at_end()
