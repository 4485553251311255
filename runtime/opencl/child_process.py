"""Processes in which a driver's compiler works, so that its crash ends nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress


def start_child(
    command: Sequence[str], variables: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process that is talked to through its pipes and imports what this one does.

    variables: what its environment holds besides. What it writes to standard error is dropped.
    """
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path, **(variables or {})},
        start_new_session=True,  # Ctrl-C is for this process to tell of
    )


def end_child(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and close its pipes; this may be called twice."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):  # the last order cannot reach it any more
            pipe.close()


def leave_no_core() -> None:
    """Write no image of this process when it crashes: the crash is a result, and its image is of no use."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
