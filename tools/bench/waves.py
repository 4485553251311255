"""Rows of the benchmark prepared several at a time, each in a process of its own, and timed one by one.

Compiling takes most of a benchmark's time and most of it runs on the host. A wave of processes compiles, sets
up its peers and checks results; when all of the wave have, they are timed in turns, while the others wait.
A process that dies or hangs while it prepares a peer costs this peer: its row is made again without it.
"""

from __future__ import annotations

import fcntl
import math
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from tilewright.ir.machine import usable_cores
from tilewright.tools.bench.rows import Row

#: what a process is given beyond the limit of its work, which it is to keep to by itself, in seconds
GRACE_S = 20.0
#: within how many seconds the timing of one row must end
TIMING_LIMIT_S = 300.0
TIMING = "timing"


@dataclass(frozen=True)
class Waves:
    """How rows are made. make: a function of a module, called in a new process with what is asked and its
    `Turn`, so that it and what is asked must be picklable.

    lost: the row of what was asked where its process ended without one, and why. again: what to ask instead
    where a process ended while it prepared the peer of this name, None where nothing is. left_s: seconds
    until the whole run has to end. timing_s: seconds that timing one row may take: those that still prepare
    are ended when what is left is needed to time those that have prepared.
    """

    make: Callable[[Any, Turn], Row]
    lost: Callable[[Any, str], Row]
    again: Callable[[Any, str], Any] = lambda asked, peer: None
    left_s: Callable[[], float] = lambda: math.inf
    timing_s: float = 4.0

    def rows(self, requests: Sequence[Any], jobs: int) -> Iterator[Row]:
        """The rows of all requests, wave after wave of `jobs`; within a wave as they end."""
        for start in range(0, len(requests), jobs):
            wave = requests[start : start + jobs]
            if self.left_s() <= 0:
                yield from (self.lost(asked, "the time limit was over before it") for asked in wave)
            else:
                yield from self._wave(wave)

    def _wave(self, requests: Sequence[Any]) -> Iterator[Row]:
        unmade: list[tuple[Any, _Ended]] = []
        for asked, end in _Wave(self, requests).ends():
            if isinstance(end, dict):
                yield end
            else:
                unmade.append((asked, end))
        for asked, end in unmade:
            other = self.again(asked, end.doing) if end.doing not in ("", TIMING) else None
            if other is None or self.left_s() <= 0:
                yield self.lost(asked, end.reason)
                continue
            peer, _, variant = end.doing.partition(" ")
            failure = {"peer": peer, "variant": variant, "reason": end.reason}
            for row in self._wave([other]):
                yield row | {"peers": [*row.get("peers", ()), failure]}


@dataclass
class _Ended:
    """A process that ended without a row: why, and what it was doing."""

    reason: str
    doing: str


@dataclass
class _Worker:
    """A process with its pipe. doing: what it prepares; until: when that must end, monotonic seconds."""

    process: BaseProcess
    pipe: Connection
    doing: str = ""
    until: float = math.inf
    arrived: bool = False


class _Wave:
    """The processes of one wave."""

    def __init__(self, waves: Waves, requests: Sequence[Any]) -> None:
        self._waves, self._requests = waves, requests
        self._ends: dict[int, Row | _Ended] = {}

    def ends(self) -> Iterator[tuple[Any, Row | _Ended]]:
        """Every request with its row, or with how its process ended without one, as soon as it has ended."""
        context = multiprocessing.get_context("spawn")
        self._prepared = context.Barrier(len(self._requests))
        # PyTorch's compiler starts as many processes as there are cores, in each of ours.
        threads = str(max(1, usable_cores() // len(self._requests)))
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", threads)
        with tempfile.TemporaryDirectory(prefix="tilewright-bench-") as folder:
            workers: list[_Worker] = []
            for asked in self._requests:
                ours, theirs = context.Pipe(duplex=False)
                arguments = (self._waves.make, asked, self._prepared, f"{folder}/turn", theirs)
                process = context.Process(target=_work, args=arguments)
                process.start()
                theirs.close()
                workers.append(_Worker(process, ours))
            try:
                for number in self._follow(workers):
                    yield self._requests[number], self._ends[number]
            finally:
                for worker in workers:
                    if len(self._ends) < len(workers):
                        worker.process.kill()
                    worker.process.join()

    def _follow(self, workers: Sequence[_Worker]) -> Iterator[int]:
        """The numbers of the processes as they end."""
        while running := {n: w for n, w in enumerate(workers) if n not in self._ends}:
            now = time.monotonic()
            over = now + self._waves.left_s()
            timing_s = self._waves.timing_s * sum(w.arrived for w in running.values())
            until = {
                n: min(w.until, over + (GRACE_S if w.arrived else -timing_s)) for n, w in running.items()
            }
            timeout = max(0.0, min(1.0, min(until.values()) - now))
            pipes = {w.pipe: n for n, w in running.items()}
            for ready in wait(list(pipes), timeout):
                assert isinstance(ready, Connection)
                self._receive(pipes[ready], running[pipes[ready]])
            for number, worker in running.items():
                if number not in self._ends and time.monotonic() > until[number]:
                    worker.process.kill()
                    late = time.monotonic() > worker.until
                    reason = "it hung" if late else "the time limit was over"
                    self._end(number, worker, reason)
            yield from (number for number in running if number in self._ends)

    def _receive(self, number: int, worker: _Worker) -> None:
        try:
            kind, *content = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            self._end(number, worker, f"its process ended with code {worker.process.exitcode}")
            return
        if kind == "row":
            self._ends[number] = content[0]
        elif kind == "arrived":
            worker.arrived = True
        else:
            worker.doing, limit_s = content
            worker.until = time.monotonic() + limit_s + GRACE_S

    def _end(self, number: int, worker: _Worker, reason: str) -> None:
        doing = worker.doing if worker.doing == TIMING else f"preparing {worker.doing or 'it'}"
        self._ends[number] = _Ended(f"{reason} while {doing}" if worker.doing else reason, worker.doing)
        if not worker.arrived:  # the others wait for everybody, so somebody must arrive in its place
            threading.Thread(target=self._arrive, daemon=True).start()

    def _arrive(self) -> None:
        with suppress(threading.BrokenBarrierError):
            self._prepared.wait()


def _work(
    make: Callable[[Any, Turn], Row], request: Any, prepared: Any, turn_file: str, result: Connection
) -> None:
    turn = Turn(prepared, Path(turn_file), result)
    try:
        result.send(("row", make(request, turn)))
    finally:
        turn.arrive()
        result.close()


class Turn:
    """The turn of one process of a wave: all must have prepared, and nobody else may be timed."""

    def __init__(self, prepared: Any, file: Path, result: Connection) -> None:
        self._prepared, self._file, self._result = prepared, file, result
        self._arrived = False

    def doing(self, what: str, limit_s: float) -> None:
        """Say what is being prepared, and in how many seconds that has to end; nothing by an empty name."""
        self._result.send(("doing", what, limit_s))

    def arrive(self) -> None:
        """Say that nothing is left to prepare, and wait for the others; once."""
        if not self._arrived:
            self._arrived = True
            with suppress(BrokenPipeError):
                self._result.send(("arrived",))
            self._prepared.wait()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.arrive()
        # The system gives the lock of a file back when its holder dies.
        with open(self._file, "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.doing(TIMING, TIMING_LIMIT_S)
            yield
