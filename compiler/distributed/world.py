"""The world this process is part of: the ranks that mpirun started, and what happens when one fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.clear_errors import clear_errors
from tilewright.ir import InputError, TilewrightError
from tilewright.runtime.communication import mpi_world
from tilewright.runtime.communication.mpi import MpiCommunicator


def world(timeout_s: float | None = None) -> MpiCommunicator:
    """The ranks that mpirun started, this process being one of them; opened by the first call.

    timeout_s: how long each wait for another rank may take from now on (at first 60 seconds). Raises
    WorkError where mpi4py or an MPI is missing, or where ranks do not come.
    """
    with clear_errors():
        return mpi_world.open_world(timeout_s)


@contextmanager
def together(communicator: MpiCommunicator) -> Iterator[None]:
    """What fails inside, on whichever rank, ends the work of all with one sentence on each.

    Errors of Tilewright name the rank they come from; the exit code of the process is theirs.
    """
    try:
        with mpi_world.together(communicator, lambda error: 2 if isinstance(error, InputError) else 1):
            yield
    except TilewrightError as error:
        if not str(error).startswith("rank "):
            error.args = (f"rank {communicator.rank}: {error}",)
        raise
