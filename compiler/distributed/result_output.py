"""Keeps standard output of a rank for its results: what native libraries print goes to standard error."""

from __future__ import annotations

import io
import os
import sys
import threading

from tilewright.runtime.communication.mpi_world import started_by_mpi

_once = threading.Lock()
_kept: list[int] = []  # the descriptor of the results, for the rest of the process


def keep_output_for_results() -> None:
    """From now on Python prints where it did, and descriptor 1 leads where descriptor 2 does.

    NCCL, UCX and others print to descriptor 1 from open to exit, also on ranks that report nothing; mpirun
    merges that with the report. Does nothing in processes that mpirun did not start, and where `sys.stdout`
    is not descriptor 1.
    """
    with _once:
        if _kept or not started_by_mpi():
            return
        try:
            if sys.stdout.fileno() != 1:
                return
        except (io.UnsupportedOperation, ValueError):  # an object in memory, or closed
            return
        before = sys.stdout
        before.flush()
        _kept.append(os.dup(1))
        sys.stdout = open(  # noqa: SIM115  # open as long as the process is
            _kept[0], "w", encoding=before.encoding, errors=before.errors,
            buffering=1 if before.isatty() else -1, closefd=False,
        )  # fmt: skip
        os.dup2(2, 1)
