"""The ranks that mpirun started, as one world: opened once, failing together, left in good order."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tilewright.runtime.communication.communicator import TIMEOUT_S
from tilewright.runtime.communication.mpi import MpiCommunicator
from tilewright.runtime.communication.processes import end_with_parent
from tilewright.runtime.errors import CommunicationError
from tilewright.runtime.machine import usable_cores

#: environment variables by which launchers tell a process that it is one of several
_RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
#: seconds a rank that failed gives the others to say so themselves, before it ends and mpirun ends them
GRACE_S = 3.0
#: OpenCL implementations for CPUs read from these how many threads run kernels: PoCL's and Intel's
THREADS = ("POCL_MAX_PTHREAD_COUNT", "CL_CONFIG_CPU_TBB_NUM_WORKERS")

_opening = threading.Lock()
_opened: list[MpiCommunicator] = []
_exit_code = [1]  # of this process, where it ends after a failure


def started_by_mpi() -> bool:
    """Return whether mpirun started this process."""
    return any(name in os.environ for name in _RANKS)


def open_world(timeout_s: float | None = None) -> MpiCommunicator:
    """The communicator of this process, opened by the first call; every rank must make one.

    timeout_s: how long each wait for another rank may take from now on; None keeps what is set, at first
    `TIMEOUT_S`. Raises `DeviceMissingError` where mpi4py or an MPI is missing, `CommunicationError` where
    ranks do not come.
    """
    with _opening:
        if not _opened:
            if started_by_mpi():
                end_with_parent()  # an mpirun that is killed can end nobody
            communicator = MpiCommunicator(timeout_s=timeout_s or TIMEOUT_S)
            _limit_threads(communicator)
            atexit.register(_leave, communicator)
            _opened.append(communicator)
        if timeout_s is not None:
            _opened[0].timeout_s = timeout_s
        return _opened[0]


def _limit_threads(communicator: MpiCommunicator) -> None:
    """Give every rank of a machine its share of the cores, where nothing else was set for OpenCL."""
    cores = os.cpu_count() or 1  # of the whole machine
    allowed = usable_cores()
    # Fewer than there are: mpirun has given this rank cores of its own.
    share = allowed if 1 < allowed < cores else allowed // communicator.ranks_here
    for name in THREADS:
        os.environ.setdefault(name, str(max(1, share)))


@contextmanager
def together(communicator: MpiCommunicator, exit_code: Callable[[BaseException], int]) -> Iterator[None]:
    """End the work of all ranks where it fails inside, on whichever rank: the others learn at once why.

    exit_code: of this process, after such a failure. A rank that mpirun ends (SIGTERM), as it does when
    another one has died, says so in one sentence.
    """

    def end(number: int, frame: FrameType | None) -> None:
        if communicator.broken:
            return  # its own sentence is on its way; what does not end by itself mpirun kills
        gone = communicator.gone()
        reason = f"rank {gone[0]} is gone" if gone else "mpirun ends all ranks"
        print(f"error: rank {communicator.rank}: stopped, because {reason}", file=sys.stderr, flush=True)
        os._exit(1)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except BaseException as error:
        _exit_code[0] = exit_code(error)
        communicator.fail(str(error) or type(error).__name__)
        raise
    signal.signal(signal.SIGTERM, before)


def _leave(communicator: MpiCommunicator) -> None:
    """End this process at once where MPI's own end would wait for ranks that are gone or do not answer."""
    if communicator.size == 1:
        return
    if not communicator.broken:
        try:
            communicator.close()
        except CommunicationError as error:
            print(f"error: {error}", file=sys.stderr)
        else:
            return
    communicator.await_failures(GRACE_S)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_exit_code[0])
