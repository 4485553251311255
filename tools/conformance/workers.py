"""Runs cases in worker processes; a case that kills its process is a failed case, not the end of the run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from tilewright.devices.opening import open_device
from tilewright.runtime.interface.device import Device
from tilewright.tools.conformance.case import FAILED, Result, Suite, run_case

#: how a worker obtains the suites, which hold open functions and files that do not travel
Open = Callable[[], Sequence[Suite]]

_suites: dict[str, Suite] = {}
#: a device of every target in use stays open: opening a GPU anew costs more than most cases
_held: dict[str, Device] = {}


def run_all(opened: Open, work: Sequence[tuple[str, str, str]], jobs: int) -> Iterator[Result]:
    """Results of all (suite, case, target) in `work`, in the order they finish."""
    if jobs <= 1:
        _enter(opened)
        yield from (_run(*item) for item in work)
        return
    left = dict.fromkeys(work)
    for result in _pooled(opened, work, jobs):
        del left[result.suite, result.name, result.target]
        yield result
    for item in left:  # some process died: one process per case shows which
        done = list(_pooled(opened, [item], 1))
        yield done[0] if done else Result(*item, FAILED, "the process died while it ran this case")


def _pooled(opened: Open, work: Sequence[tuple[str, str, str]], jobs: int) -> Iterator[Result]:
    """Results until all are done, a process dies, or the caller wants no more."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_enter, initargs=(opened,))
    try:
        pending: list[Future[Result]] = [pool.submit(_run, *item) for item in work]
        for done in as_completed(pending):
            try:
                yield done.result()
            except BrokenProcessPool:
                return
    finally:
        pool.shutdown(cancel_futures=True)


def _enter(opened: Open) -> None:
    _suites.update({s.name: s for s in opened()})


def _run(suite: str, name: str, target: str) -> Result:
    if target.startswith("cuda") and target not in _held:
        _held[target] = open_device(target)
    return run_case(_suites[suite], name, target)
