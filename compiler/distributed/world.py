"""The world this process is part of: the ranks that mpirun started, opened once, and left in good order."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from tilewright.executable import clear_errors
from tilewright.ir import InputError, TilewrightError
from tilewright.runtime.communication.communicator import TIMEOUT_S
from tilewright.runtime.communication.mpi import MpiCommunicator

#: environment variables by which launchers tell a process that it is one of several
_RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
#: seconds a rank that failed gives the others to say so themselves, before it ends and mpirun ends them
GRACE_S = 3.0
#: PoCL reads from it how many threads it may start
POCL_THREADS = "POCL_MAX_PTHREAD_COUNT"

_opening = threading.Lock()
_opened: MpiCommunicator | None = None


def started_by_mpi() -> bool:
    """Whether this process is one of those that mpirun started."""
    return any(name in os.environ for name in _RANKS)


def world(timeout_s: float = TIMEOUT_S) -> MpiCommunicator:
    """The ranks that mpirun started, this process being one of them; opened by the first call.

    timeout_s: how long each wait for another rank may take; the latest call that names another one counts.
    Raises WorkError where mpi4py or an MPI is missing, or where ranks do not come.
    """
    global _opened
    with _opening, clear_errors():
        if _opened is None:
            _opened = MpiCommunicator(timeout_s=timeout_s)
            _limit_threads(_opened)
            atexit.register(_leave, _opened)
        if timeout_s != TIMEOUT_S:
            _opened.timeout_s = timeout_s
        return _opened


def _limit_threads(communicator: MpiCommunicator) -> None:
    """Give every rank of a machine its share of the cores, where PoCL has not been told otherwise."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    bound = allowed < (os.cpu_count() or 1)  # mpirun may have given each rank cores of its own
    share = allowed if bound and allowed > 1 else allowed // max(1, communicator.ranks_here)
    os.environ.setdefault(POCL_THREADS, str(max(1, share)))


@contextmanager
def together(communicator: MpiCommunicator) -> Iterator[None]:
    """What fails inside, on whichever rank, ends the work of all: the others are told at once why.

    A rank that mpirun ends (SIGTERM), as it does when another one has died, says so in one sentence.
    """
    with _ended_clearly(communicator):
        try:
            yield
        except BaseException as error:
            _exit_codes[0] = 2 if isinstance(error, InputError) else 1
            if isinstance(error, TilewrightError) and not str(error).startswith("rank "):
                error.args = (f"rank {communicator.rank}: {error}",)
            if not communicator.broken:
                communicator.fail(str(error) or type(error).__name__)
            raise


@contextmanager
def _ended_clearly(communicator: MpiCommunicator) -> Iterator[None]:
    def end(number: int, frame: FrameType | None) -> None:
        if communicator.broken:
            return  # its own sentence is on its way; what does not end by itself mpirun kills
        gone = communicator.gone()
        told = f"rank {gone[0]} is gone" if gone else "mpirun ends all ranks"
        print(f"error: rank {communicator.rank}: stopped, because {told}", file=sys.stderr, flush=True)
        os._exit(1)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        # One that failed is still to say why.
        if not communicator.broken:
            signal.signal(signal.SIGTERM, before)


_exit_codes = [1]


def _leave(communicator: MpiCommunicator) -> None:
    """End the process where MPI could not: its own end waits for all ranks, also for those that are gone."""
    if not communicator.broken:
        with clear_errors():
            communicator.close()
        return
    communicator.await_failures(GRACE_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_exit_codes[0])
