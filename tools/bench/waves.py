"""Rows of the benchmark prepared several at a time, each in a process of its own, and timed one by one.

Compiling takes most of a benchmark's time and most of it runs on the host. A wave of processes compiles, sets
up its peers and checks results; when all of the wave have, they are timed in turns, while the others wait.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tilewright.tools.bench.rows import Row

#: makes a row of what was asked for; the second argument is for `Settings.turn`
Make = Callable[[Any, Callable[[], Any]], Row]


def rows_in_waves(
    make: Make, requests: Sequence[Any], jobs: int, lost: Callable[[Any, str], Row]
) -> Iterator[Row]:
    """The rows of all requests, in order within each wave of `jobs`.

    make: a function of a module, called in a new process, so that it and what is asked must be picklable.
    lost: the row of what was asked where its process ended without one, and why.
    """
    for start in range(0, len(requests), jobs):
        yield from _wave(make, requests[start : start + jobs], lost)


def _wave(make: Make, requests: Sequence[Any], lost: Callable[[Any, str], Row]) -> Iterator[Row]:
    context = multiprocessing.get_context("spawn")
    prepared = context.Barrier(len(requests))
    with tempfile.TemporaryDirectory(prefix="tilewright-bench-") as folder:
        workers: list[tuple[BaseProcess, Connection]] = []
        for one in requests:
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_work, args=(make, one, prepared, f"{folder}/turn", theirs))
            process.start()
            theirs.close()
            workers.append((process, ours))
        rows: dict[int, Row] = {}
        while len(rows) < len(workers):
            waiting = {id(ours): number for number, (_, ours) in enumerate(workers) if number not in rows}
            for ready in wait([workers[number][1] for number in waiting.values()]):
                number = waiting[id(ready)]
                worker, ours = workers[number]
                try:
                    rows[number] = ours.recv()
                except EOFError:
                    worker.join()
                    rows[number] = lost(requests[number], f"its process ended with code {worker.exitcode}")
                    # The others wait for everybody, so somebody must arrive in its place.
                    threading.Thread(target=prepared.wait, daemon=True).start()
        for worker, _ in workers:
            worker.join()
        yield from (rows[number] for number in sorted(rows))


def _work(make: Make, request: Any, prepared: Any, turn_file: str, result: Connection) -> None:
    turn = _Turn(prepared, Path(turn_file))
    try:
        result.send(make(request, turn))
    finally:
        turn.arrive()
        result.close()


class _Turn:
    """The turn of one process of a wave: all must have prepared, and nobody else may be timed."""

    def __init__(self, prepared: Any, file: Path) -> None:
        self._prepared, self._file = prepared, file
        self._arrived = False

    def arrive(self) -> None:
        """Say that nothing is left to prepare, and wait for the others; once."""
        if not self._arrived:
            self._arrived = True
            self._prepared.wait()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.arrive()
        # The system gives the lock of a file back when its holder dies.
        with open(self._file, "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
