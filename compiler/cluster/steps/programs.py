"""Training steps of kernels of several sizes, each compiled once for all ranks, side by side."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from tilewright.api import compile as compile_whole
from tilewright.cluster.steps.ways import StepSize, TrainingTask
from tilewright.ir import InputError, TilewrightError, WorkError
from tilewright.ir.machine import usable_cores
from tilewright.running.executable import Artifact, Executable
from tilewright.running.stateful import executable_of
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.communication.processes import end_with_parent
from tilewright.runtime.plan.execution_plan import ExecutionPlan

#: seconds between two looks at what other ranks compile
_LOOK_S = 0.2
#: text of a rank whose compilation goes on
_BUSY = "busy"


@dataclass(frozen=True)
class _Program:
    """A compiled step without the values of its state, which every rank has."""

    target: str
    plan: ExecutionPlan
    constants: dict[str, np.ndarray] = field(repr=False)
    facts: dict[str, Any] = field(repr=False)


class StepPrograms:
    """The undivided steps of a task, compiled by the ranks of one machine for one another.

    Every size has one rank that compiles it and writes it to a file that all ranks read. Where there are two
    cores for each rank or more, compilations are processes of their own, which run beside one another and
    beside what the rank itself does; else they are threads of the ranks.

    Making one is a collective of all ranks, as are its methods `begin` and `take`: they are called in the
    same order with the same arguments everywhere.
    """

    def __init__(self, task: TrainingTask, communicator: AnyCommunicator, *, target: str) -> None:
        self._task, self._communicator, self._target = task, communicator, target
        # Weights that are drawn when they are read are drawn once while they are held.
        self._weights = list(task.network.constants.values())
        self._own = tempfile.TemporaryDirectory(prefix="tilewright-steps-") if not communicator.rank else None
        own = "" if self._own is None else self._own.name
        self._folder = Path(communicator.gather_texts(own, doing="sharing compiled steps")[0])
        #: whether compilations run beside what the ranks do
        self.beside = usable_cores() >= 2 * communicator.size
        self._begun: dict[StepSize, BaseProcess | threading.Thread | None] = {}
        self._ready: dict[StepSize, _Program] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._begun.values():
            if isinstance(worker, BaseProcess):
                worker.kill()
            if worker is not None:
                worker.join()
        if self._own is not None:
            self._own.cleanup()

    def begin(self, sizes: Sequence[StepSize]) -> None:
        """Begin to compile the steps of these sizes that are not begun; returns at once."""
        for size in sizes:
            if size in self._begun:
                continue
            owner = len(self._begun) % self._communicator.size
            self._begun[size] = self._started(size) if owner == self._communicator.rank else None

    def _started(self, size: StepSize) -> BaseProcess | threading.Thread:
        request = (self._task, size, self._target, self._file(size))
        worker = (
            get_context("spawn").Process(target=_compile_to, args=(*request, os.getpid()))
            if self.beside
            else threading.Thread(target=_compile_to, args=request)
        )
        worker.start()
        return worker

    def take(self, size: StepSize) -> Executable:
        """The step of a size, with its first state; waits until it is compiled.

        Raises what its compilation raised, on all ranks alike.
        """
        self.begin([size])
        if size not in self._ready:
            self._await(size)
            data = self._file(size).read_bytes()
            self._ready[size] = pickle.loads(data)  # noqa: S301  a rank of this run wrote it
        program, step = self._ready[size], self._task.step(size)
        state = {b.name: np.asarray(step.constants[b.title]) for b in program.plan.states}
        artifact = Artifact(program.plan, {**program.constants, **state}, program.facts)
        return executable_of(artifact, program.target)

    def _file(self, size: StepSize) -> Path:
        return self._folder / f"{size.samples}x{size.runs}"

    def _await(self, size: StepSize) -> None:
        worker, owner = self._begun[size], list(self._begun).index(size) % self._communicator.size
        while True:
            # Ranks meet again and again, since compiling may take longer than one may wait for another.
            own = "" if worker is None else _BUSY if worker.is_alive() else _outcome(worker, self._file(size))
            texts = self._communicator.gather_texts(own, doing="compiling steps together")
            if texts[owner] != _BUSY:
                break
            if worker is None:
                time.sleep(_LOOK_S)
            else:
                worker.join(_LOOK_S)
        if texts[owner]:
            bad_input, sentence = json.loads(texts[owner])
            raise InputError(sentence) if bad_input else WorkError(sentence)


def _fault_file(path: Path) -> Path:
    return path.with_suffix(".fault")


def _outcome(worker: BaseProcess | threading.Thread, path: Path) -> str:
    """What went wrong in a compilation that has ended, for all ranks; nothing where it succeeded."""
    if _fault_file(path).exists():
        return _fault_file(path).read_text(encoding="utf-8")
    if path.exists():
        return ""
    code = worker.exitcode if isinstance(worker, BaseProcess) else None
    return json.dumps([False, f"the process that compiled a step ended with code {code}"])


def _compile_to(
    task: TrainingTask, size: StepSize, target: str, path: Path, parent: int | None = None
) -> None:
    """Compile a step and write it to a file, or what went wrong to another.

    parent: of a process of its own, which ends with the process of this number.
    """
    if parent is not None:
        end_with_parent()
        if os.getppid() != parent:  # it ended before
            return
    try:
        exe = compile_whole(task.step(size), target, precision=task.precision)
    except Exception as error:  # noqa: BLE001  every rank is to know of any
        told = str(error) if isinstance(error, TilewrightError) else f"{type(error).__name__}: {error}"
        fault = json.dumps([isinstance(error, InputError), told])
        _fault_file(path).write_text(fault, encoding="utf-8")
        return
    held = {b.name for b in exe.plan.states}
    constants = {n: a for n, a in exe.artifact.constants.items() if n not in held}
    program = _Program(exe.target, exe.plan, constants, dict(exe.artifact.facts))
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(program))
    unfinished.rename(path)
