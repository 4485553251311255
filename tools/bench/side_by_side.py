"""Rows of the benchmark prepared side by side, each in a process of its own, and timed one by one.

Compiling takes most of a benchmark's time and most of it runs on the host. A number of processes compile, set
up their peers and check results; as soon as one has made its row, the next begins. Those that are ready wait
until several are: then all others are stopped (SIGSTOP, with every process that they started) while the ready
ones are timed in turns, and go on afterwards. A process that dies or hangs while it prepares a peer costs
this peer: its row is made again without it.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from tilewright.ir.machine import usable_cores
from tilewright.runtime.communication.processes import end_with_parent
from tilewright.tools.bench.rows import Row

#: what a process is given beyond the limit of its work, which it is to keep to by itself, in seconds
GRACE_S = 20.0
#: within how many seconds the timing of one row must end
TIMING_LIMIT_S = 300.0
#: how long work that stopped processes have given to the device may go on, in seconds
SETTLE_S = 1.0
#: of so many processes that prepare, one is waited for before all are stopped
JOBS_PER_READY = 4
TIMING = "timing"


@dataclass(frozen=True)
class SideBySide:
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
        """The rows of all requests as they end, `jobs` processes at most at any time."""
        # PyTorch's compiler starts as many processes as there are cores, in each of ours.
        threads = max(1, usable_cores() // max(1, min(jobs, len(requests))))
        os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
        crew = _Crew(self, requests, jobs)
        try:
            yield from crew.rows()
        finally:
            crew.end()


@dataclass
class _Asked:
    """A row that is asked for, which has lost these peers so far."""

    asked: Any
    failures: list[dict[str, str]] = field(default_factory=list)


@dataclass
class _Worker:
    """A process with its pipe. doing: what it prepares; until: when that must end, monotonic seconds."""

    request: _Asked
    process: BaseProcess
    pipe: Connection
    doing: str = ""
    until: float = math.inf
    ready: bool = False

    def signal(self, number: int) -> None:
        """Send a signal to the process and to all that it has started."""
        assert self.process.pid is not None
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:  # it does not lead a group yet, or has ended
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)


class _Crew:
    """The processes that are at work, and what is still to be asked."""

    def __init__(self, way: SideBySide, requests: Sequence[Any], jobs: int) -> None:
        self._way, self._jobs = way, jobs
        self._waiting = deque(_Asked(asked) for asked in requests)
        self._workers: list[_Worker] = []
        self._context = multiprocessing.get_context("spawn")

    def rows(self) -> Iterator[Row]:
        """All rows as they end."""
        while self._waiting or self._workers:
            yield from self._start()
            yield from self._listen()
            yield from self._end_overdue()
            ready = [w for w in self._workers if w.ready]
            enough = max(1, self._jobs // JOBS_PER_READY)
            if ready and (len(ready) >= enough or len(ready) == len(self._workers) or self._is_late()):
                yield from self._time(ready)

    def end(self) -> None:
        """Kill whoever is left."""
        for worker in self._workers:
            worker.signal(signal.SIGKILL)
            worker.process.join()
        self._workers.clear()

    def _start(self) -> Iterator[Row]:
        while self._waiting and len(self._workers) < self._jobs:
            request = self._waiting.popleft()
            if self._way.left_s() <= 0:
                yield self._way.lost(request.asked, "the time limit was over before it")
                continue
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_work, args=(self._way.make, request.asked, theirs))
            process.start()
            theirs.close()
            self._workers.append(_Worker(request, process, ours))

    def _listen(self) -> Iterator[Row]:
        """Take what the processes say, for a second at most."""
        workers = {w.pipe: w for w in self._workers if not w.ready}
        limit = min((w.until for w in workers.values()), default=math.inf)
        timeout = max(0.0, min(1.0, limit - time.monotonic()))
        for pipe in wait(list(workers), timeout) if workers else ():
            assert isinstance(pipe, Connection)
            yield from self._receive(workers[pipe])

    def _receive(self, worker: _Worker) -> Iterator[Row]:
        """Take the next message of a worker, and give its row where that has come or cannot come any more."""
        try:
            kind, *content = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join()
            yield from self._ended(worker, f"its process ended with code {worker.process.exitcode}")
            return
        if kind == "row":
            self._workers.remove(worker)
            yield _with_failures(content[0], worker.request.failures)
        elif kind == "ready":
            worker.ready, worker.until = True, math.inf
        else:
            worker.doing, limit_s = content
            worker.until = time.monotonic() + limit_s + GRACE_S

    def _is_late(self) -> bool:
        """Return whether those that are ready have to be timed now."""
        ready = sum(w.ready for w in self._workers)
        return self._way.left_s() <= self._way.timing_s * ready

    def _end_overdue(self) -> Iterator[Row]:
        """End whoever prepares for too long, and all who prepare where time is needed for timing."""
        now, late = time.monotonic(), self._is_late()
        for worker in [w for w in self._workers if not w.ready]:
            if now > worker.until:
                yield from self._killed(worker, "it hung")
            elif late:
                yield from self._killed(worker, "the time limit was over")

    def _time(self, ready: Sequence[_Worker]) -> Iterator[Row]:
        """Time those that are ready in turns, while all others are stopped."""
        others = [w for w in self._workers if not w.ready]
        begin = time.monotonic()
        for worker in others:
            worker.signal(signal.SIGSTOP)
        try:
            if others:
                time.sleep(SETTLE_S)
            for worker in ready:
                worker.doing, worker.until = TIMING, time.monotonic() + TIMING_LIMIT_S + GRACE_S
                with suppress(OSError):  # the end of a process is noticed where it is listened to
                    worker.pipe.send("go")
                yield from self._follow(worker)
        finally:
            for worker in others:
                worker.until += time.monotonic() - begin
                worker.signal(signal.SIGCONT)

    def _follow(self, worker: _Worker) -> Iterator[Row]:
        """Listen to one alone until it has ended."""
        over = time.monotonic() + self._way.left_s() + GRACE_S
        while worker in self._workers:
            left = min(worker.until, over) - time.monotonic()
            if left <= 0:
                reason = "it hung" if worker.until <= over else "the time limit was over"
                yield from self._killed(worker, reason)
            elif worker.pipe.poll(min(left, 1.0)):
                yield from self._receive(worker)

    def _killed(self, worker: _Worker, reason: str) -> Iterator[Row]:
        worker.signal(signal.SIGKILL)
        worker.process.join()
        yield from self._ended(worker, reason)

    def _ended(self, worker: _Worker, reason: str) -> Iterator[Row]:
        """Ask again without the peer that was being prepared, or give the row as lost."""
        self._workers.remove(worker)
        request, doing = worker.request, worker.doing
        if doing:
            reason = f"{reason} while {doing if doing == TIMING else f'preparing {doing}'}"
        other = self._way.again(request.asked, doing) if doing not in ("", TIMING) else None
        if other is None or self._way.left_s() <= 0:
            yield _with_failures(self._way.lost(request.asked, reason), request.failures)
            return
        peer, _, variant = doing.partition(" ")
        failure = {"peer": peer, "variant": variant, "reason": reason}
        self._waiting.appendleft(_Asked(other, [*request.failures, failure]))


def _with_failures(row: Row, failures: Sequence[dict[str, str]]) -> Row:
    return row | {"peers": [*row.get("peers", ()), *failures]} if failures else row


def _work(make: Callable[[Any, Turn], Row], request: Any, pipe: Connection) -> None:
    end_with_parent()
    os.setpgrp()  # so that compilers which it starts are stopped and ended with it
    try:
        pipe.send(("row", make(request, Turn(pipe))))
    finally:
        pipe.close()


class Turn:
    """The turn of one process: nobody else prepares or is timed during it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def doing(self, what: str, limit_s: float) -> None:
        """Say what is being prepared, and in how many seconds that has to end; nothing by an empty name."""
        self._pipe.send(("doing", what, limit_s))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Say that nothing is left to prepare, and wait until it is this one's turn."""
        self._pipe.send(("ready",))
        self._pipe.recv()
        yield
