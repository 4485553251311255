"""Builds OpenCL programs in processes of their own.

A compiler that crashes ends nothing else, and cores share the work where a driver locks its compiler.
`BuildProcess` is what `ProgramBuilder` uses, and `shared_process` one that stays for all builders. `python -m
tilewright.runtime.opencl.build_process DEVICE` is the process: it takes the texts of programs as lines of
JSON and gives back their binaries.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any

from tilewright.runtime.opencl.child_process import end_child, leave_no_core, start_child
from tilewright.runtime.opencl.platforms import full_name, import_pyopencl, list_opencl_devices
from tilewright.runtime.opencl.trust import how_ended

#: how a process ends in which a compiler failed
_FAULTS = tuple(-s for s in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE))
#: how long a process may take to end after it closed its pipe
_ENDING_S = 10.0


class ProcessEndedError(Exception):
    """A process ended before it gave its answer; `crashed`: because the compiler failed."""

    def __init__(self, status: int) -> None:
        super().__init__(how_ended(status))
        self.crashed = status in _FAULTS


class BuildProcess:
    """A process that builds programs for the device of this full name; it starts in the background.

    One thread builds at a time, others wait; any thread may `close`, which ends a build that is going on. The
    process ends as well when this one does. `command` is the process, which is given the device's name.
    """

    def __init__(self, device: str, *, command: Sequence[str] = ()) -> None:
        module = (sys.executable, "-m", "tilewright.runtime.opencl.build_process")
        self._process = start_child([*(command or module), device])
        self._turn = threading.Lock()

    @property
    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def build(self, text: str, options: Sequence[str]) -> bytes | None:
        """The binary of a program; None where the compiler refuses the text.

        Raises `ProcessEndedError` where the process ends before that.
        """
        with self._turn:
            return self._answer(text, options)

    def _answer(self, text: str, options: Sequence[str]) -> bytes | None:
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None
        assert answers is not None
        try:
            orders.write(json.dumps({"text": text, "options": list(options)}).encode() + b"\n")
            orders.flush()
            size = int(answers.readline())
            binary = answers.read(size)
        except (OSError, ValueError):  # a broken pipe, or the end of the answers in the place of a number
            raise ProcessEndedError(self._ended()) from None
        if len(binary) < size:
            raise ProcessEndedError(self._ended())
        return binary or None

    def _ended(self) -> int:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_ENDING_S)
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        """End the process; may be called twice."""
        end_child(self._process)


_SHARED: dict[str, BuildProcess] = {}
_SHARING = threading.Lock()


def shared_process(device: str) -> BuildProcess:
    """The process that builds for the device of this full name whatever anyone here asks for.

    It starts when it is first asked for, and again once it has ended.
    """
    with _SHARING:
        process = _SHARED.get(device)
        if process is None or process.ended:
            process = _SHARED[device] = BuildProcess(device)
        return process


@atexit.register
def _close_shared() -> None:
    for process in _SHARED.values():
        process.close()


def _forget_shared() -> None:
    """Leave the processes to the one that has started them, after a fork."""
    global _SHARING
    _SHARED.clear()
    _SHARING = threading.Lock()


os.register_at_fork(after_in_child=_forget_shared)


def serve(orders: IO[bytes], answers: IO[bytes], name: str) -> None:
    """Take orders until there are no more; an answer is the size of the binary as a line, then the binary."""
    warnings.simplefilter("ignore")
    cl = import_pyopencl()
    device = next(d for d in list_opencl_devices() if full_name(d) == name)
    context = cl.Context([device])
    for line in orders:
        order = json.loads(line)
        binary = _binary(cl, context, order["text"], order["options"])
        answers.write(b"%d\n" % len(binary) + binary)
        answers.flush()


def _binary(cl: Any, context: Any, text: str, options: list[str]) -> bytes:
    """The binary of a program; empty where the compiler refuses it: whoever asks builds it to learn why."""
    try:
        program = cl.Program(context, text).build(options, cache_dir=False)
    except cl.Error:
        return b""
    (binary,) = program.get_info(cl.program_info.BINARIES)
    return bytes(binary)


def work(name: str) -> None:
    """Do the work of the process: answer on what was its standard output."""
    leave_no_core()
    # Nothing that a compiler prints may come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(BrokenPipeError):
        serve(sys.stdin.buffer, answers, name)


if __name__ == "__main__":
    work(sys.argv[1])
