"""Runs cases in child processes: a crash or a hang costs one row."""

from __future__ import annotations

import io
import math
import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, suppress
from functools import partial
from importlib import import_module
from itertools import groupby
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any, cast

from tilewright.compilation.option_values import Precision
from tilewright.ir import UnsupportedError
from tilewright.running.checking import largest_error
from tilewright.tools.arguments.printing import error_line
from tilewright.tools.foreign.network import Prepared
from tilewright.tools.foreign.packaged import NotInstalled, Packaged, Trained
from tilewright.tools.foreign.registry import ENTRIES
from tilewright.tools.foreign.row import (
    ABSENT,
    AS_TORCH,
    COMPILED,
    DECLINED,
    DIED,
    EXPORTER,
    FAILED,
    FALLBACK,
    RIGHT,
    TIMEOUT,
    WRONG,
    ForeignCase,
    Row,
)
from tilewright.tools.foreign.ways import ExporterError, FellBack, Imported, Way

#: what a process does: the end of its pipe, threads for torch, whether to compile only
Child = Callable[[Connection, int, bool], None]
#: a network is built and its imports are made before its first row: that much more time than a row has
STARTING_SECONDS = 120.0
#: how much further off than torch's own a result in 16 bits may be
TWICE = 2.0


def run_all(
    cases: Sequence[ForeignCase],
    jobs: int,
    seconds: float,
    *,
    only_compile: bool = False,
    child: Child | None = None,
    starting: float = STARTING_SECONDS,
) -> Iterator[Row]:
    """Rows in the order they finish; cases of one network run one after another in one process.

    seconds: the bound of each row; the first of a network has `starting` seconds more.
    child: what a process does: it sends a row for every case of the lists it receives.
    """
    rows: SimpleQueue[Row | None] = SimpleQueue()
    groups: SimpleQueue[list[ForeignCase]] = SimpleQueue()
    for _, group in groupby(cases, lambda c: c.network):
        groups.put(list(group))
    threads = max(1, (os.cpu_count() or 1) // jobs)

    def work() -> None:
        try:
            start = partial(_Process, child or run_cases, threads, only_compile)
            _supervise(groups, start, seconds, starting, rows.put)
        finally:
            rows.put(None)

    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(work) for _ in range(jobs)]
        for _ in running:
            while (row := rows.get()) is not None:
                yield row
        for worker in running:
            worker.result()


class _Process:
    """A child process and the pipe that takes lists of cases to it and rows back."""

    def __init__(self, child: Child, threads: int, only_compile: bool) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=child, args=(theirs, threads, only_compile), daemon=True)
        self.process.start()
        theirs.close()

    def end(self) -> None:
        """Close the pipe, at which the process ends."""
        self.pipe.close()
        self.process.join()


def _supervise(
    groups: SimpleQueue[list[ForeignCase]],
    start: Callable[[], _Process],
    seconds: float,
    starting: float,
    put: Callable[[Row], None],
) -> None:
    """Rows of networks until none is left; a process that dies or hangs is replaced for what is left."""
    running: _Process | None = None
    while True:
        try:
            left = groups.get_nowait()
        except Empty:
            break
        while left:
            running = running or start()
            if _run_until_end(running, left, seconds, starting, put):
                running = None
    if running:
        running.end()


def _run_until_end(
    running: _Process, left: list[ForeignCase], seconds: float, starting: float, put: Callable[[Row], None]
) -> bool:
    """Takes the cases it has rows for off `left`; whether the process ended before all had one."""
    limit, began, state = seconds + starting, time.perf_counter(), TIMEOUT
    try:
        running.pipe.send(left)
        while left and running.pipe.poll(limit):
            put(running.pipe.recv())
            del left[0]
            limit, began = seconds, time.perf_counter()
    except (EOFError, OSError):
        state = DIED
    if not left:
        return False
    if state == TIMEOUT:
        running.process.kill()
    running.end()
    ended = f"no result within {limit:g} s" if state == TIMEOUT else f"exit code {running.process.exitcode}"
    put(Row(left.pop(0), state, seconds=time.perf_counter() - began, reason=ended))
    return True


def run_cases(pipe: Connection, threads: int, only_compile: bool) -> None:
    """The rows of lists of cases, each of one network, sent as they end, until the pipe is closed."""
    warnings.simplefilter("ignore")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # torch's exporters print whole graphs where they fail
    threading.Thread(target=_follow_parent, daemon=True).start()
    with suppress(EOFError):
        while cases := pipe.recv():
            runner = _Runner(cases[0].network, only_compile, threads)
            for case in cases:
                pipe.send(runner.row(case))
    os._exit(0)  # libraries of torch and TVM may hang at a regular end


def _follow_parent() -> None:
    """End this process with its parent, however that ends: a row may go on for minutes."""
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


class _Runner:
    """Runs cases of one network; what a way in gives is kept for the next precision and target."""

    def __init__(self, name: str, only_compile: bool, threads: int = 1) -> None:
        self._entry = ENTRIES[name]
        self._only_compile = only_compile
        self._threads = threads
        self._known: dict[Any, Any] = {}
        self._got: Sequence[Any] = ()

    def row(self, case: ForeignCase) -> Row:
        """One row; every error becomes its state."""
        start = time.perf_counter()
        noise = io.StringIO()
        state, error, reason, seconds = RIGHT, float("nan"), "", None
        try:
            with redirect_stderr(noise):
                error, seconds = self._error(case)
            if self._only_compile:
                state = COMPILED
            elif not error <= self._entry.limit(case.precision):
                state, reason = self._judged(case, error)
        except NotInstalled as e:
            state, reason = ABSENT, error_line(e)
        except ModuleNotFoundError as e:
            state, reason = ABSENT, f"pip install {e.name}"
        except FellBack as e:
            state, reason = FALLBACK, error_line(e)
        except UnsupportedError as e:
            state, reason = DECLINED, error_line(e)
        except ExporterError as e:
            state, reason = EXPORTER, error_line(e)
        except Exception as e:  # noqa: BLE001 - whatever is raised is this row's finding
            state, reason = FAILED, f"{type(e).__name__}: {error_line(e)}"
        return Row(case, state, error, seconds or time.perf_counter() - start, reason)

    def _judged(self, case: ForeignCase, error: float) -> tuple[str, str]:
        """The state of a result beyond the limit: in 16 bits torch itself may be as far off, or overflow."""
        prepared = self._known["prepared"]
        limit = self._entry.limit(case.precision)
        expected = f"expected at most {limit:g}"
        if not isinstance(prepared, Prepared):
            return WRONG, expected
        inputs, exact = self._known["inputs", case.batch], self._known["exact", case.batch]
        way = self._known.get((case.via, case.batch))
        theirs = way.as_exported(inputs) if isinstance(way, Imported) else None
        if theirs and largest_error(self._got, theirs) <= limit < largest_error(theirs, exact):
            return EXPORTER, "ONNX Runtime computes the same from the file that torch wrote"
        if case.precision == "fp32":
            return WRONG, expected
        try:
            own = largest_error(prepared.rounded(inputs, case.precision), exact)
        except Exception as e:  # noqa: BLE001 - what torch raises excuses nothing
            return WRONG, f"{expected}; torch has no result in {case.precision}: {error_line(e)}"
        if error <= TWICE * own or not math.isfinite(own):
            return AS_TORCH, f"torch's own error in {case.precision}: {own:.1e}"
        return WRONG, f"{expected}; torch's own error in {case.precision}: {own:.1e}"

    def _error(self, case: ForeignCase) -> tuple[float, float]:
        """The largest relative error, and the seconds from the network to its first result."""
        prepared: Prepared | Trained = self._kept("prepared", self._prepare)
        inputs = self._kept(("inputs", case.batch), lambda: prepared.inputs(case.batch))
        exact = self._kept(("exact", case.batch), lambda: prepared.exact(inputs))
        way: Way = self._kept((case.via, case.batch), lambda: prepared.way(case.via, inputs))
        imported = self._known[(case.via, case.batch), "seconds"]
        start = time.perf_counter()
        precision = cast("Precision", case.precision)
        got = way.run(case.target, precision, inputs, only_compile=self._only_compile)
        seconds = imported + time.perf_counter() - start
        self._got = got
        if self._only_compile:
            return float("nan"), seconds
        return largest_error(got, exact), seconds

    def _prepare(self) -> Prepared | Trained:
        if isinstance(self._entry, Packaged):
            return Trained(self._entry)
        import_module("torch").set_num_threads(self._threads)
        return Prepared(self._entry)

    def _kept(self, key: object, make: Callable[[], Any]) -> Any:
        """The object that was made before, failures included; the time it took is kept beside it."""
        if key not in self._known:
            start = time.perf_counter()
            try:
                self._known[key] = make()
            except Exception as error:  # noqa: BLE001 - raised below, for this case and the next
                self._known[key] = error
            self._known[key, "seconds"] = time.perf_counter() - start
        if isinstance(self._known[key], Exception):
            raise self._known[key]
        return self._known[key]
