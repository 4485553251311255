"""The state of another rank's process where both run on one machine: alive, stopped or gone."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_parent() -> None:
    """Let the system send SIGTERM to this process when the one that started it ends, where it can (Linux).

    One system call: it may run between fork and exec.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


State = Literal["elsewhere", "running", "stopped", "gone"]
_STAT = {"T": "stopped", "t": "stopped", "Z": "gone", "X": "gone"}


@dataclass(frozen=True)
class Process:
    """A process and where it is known under this number; `began` tells it from a later one of that number."""

    machine: str
    pid: int
    began: str

    @staticmethod
    def this() -> Process:
        """The calling process."""
        pid = os.getpid()
        return Process(_machine(), pid, (_stat(pid) or ("", ""))[1])

    def to_text(self) -> str:
        """One line for other ranks."""
        return json.dumps([self.machine, self.pid, self.began])

    @staticmethod
    def from_text(text: str) -> Process:
        """Read `to_text`."""
        machine, pid, began = json.loads(text)
        return Process(machine, pid, began)

    @property
    def state(self) -> State:
        """Its state now; `elsewhere` where this machine cannot know."""
        if self.machine != _machine() or not self.began:
            return "elsewhere"
        state = _stat(self.pid)
        if state is None or state[1] != self.began:
            return "gone"
        return _STAT.get(state[0], "running")  # type: ignore[return-value]  # values of _STAT are states

    def describe(self) -> str:
        """The state in words that follow a comma."""
        state = self.state
        if state == "elsewhere":
            return f"which is process {self.pid} of {self.machine.partition('/')[0]}"
        return f"whose process {self.pid} is {state}"


def _machine() -> str:
    """Host name and space of process numbers: containers of one machine may have spaces of their own."""
    try:
        return f"{socket.gethostname()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _stat(pid: int) -> tuple[str, str] | None:
    """State letter and start time of a process as Linux tells them; None where there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name in parentheses may hold anything
    return fields[0], fields[19]
