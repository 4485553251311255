"""Lowers programs of many variants of kernels in processes of their own: passes hold the interpreter lock."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import IO, Any

from tilewright.devices.targets import Target
from tilewright.ir import Func, TilewrightError, WorkError
from tilewright.ir.machine import usable_cores
from tilewright.measuring.kernel_program import kernel_program
from tilewright.measuring.measurer import lowered
from tilewright.runtime.plan.execution_plan import ExecutionPlan

#: processes at most; each needs a second to begin and 100 MB
MOST = 12
#: kernels to search from which that pays
LEAST_KERNELS = 6


@dataclass(frozen=True)
class LoweringJob:
    """A kernel to lower: positions of its constant parameters, and whether these are cold."""

    kernel: Func
    constants: tuple[int, ...]
    cold: bool


@dataclass(frozen=True)
class NotLowered:
    """The reason why a kernel cannot be lowered."""

    text: str


LoweredPlan = ExecutionPlan | NotLowered


class LoweringPool(ExitStack):
    """Worker processes; a context that ends them. They end as well when this process does."""

    def __init__(self, target: Target, workers: int | None = None) -> None:
        super().__init__()
        count = min(MOST, usable_cores()) if workers is None else workers
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="lower")
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-c", "from tilewright.tuning.kernels.lowering_pool import work; work()"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                start_new_session=True,  # Ctrl-C is for this process to tell of
            )
            self.callback(_end, process)
            assert process.stdin is not None
            pickle.dump(target, process.stdin)
            self._free.put(process)
        self.callback(self._threads.shutdown, cancel_futures=True)

    def plans(self, jobs: Sequence[LoweringJob]) -> list[LoweredPlan]:
        """The plans of the programs that run each kernel alone, without binaries, in the order of the jobs.

        Raises WorkError where a process has died.
        """
        return list(self._threads.map(self._plan, jobs))

    def _plan(self, job: LoweringJob) -> LoweredPlan:
        process = self._free.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            pickle.dump(job, process.stdin)
            process.stdin.flush()
            lowered_plan: LoweredPlan = pickle.load(process.stdout)  # noqa: S301 - its own child wrote it
            return lowered_plan
        except (EOFError, BrokenPipeError) as error:
            raise WorkError(
                f"a process that lowers kernels has died (exit status {process.poll()})"
            ) from error
        finally:
            self._free.put(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with suppress(BrokenPipeError):  # the last job cannot reach it any more
            pipe.close()
    process.wait()


def serve(jobs: IO[bytes], results: IO[bytes]) -> None:
    """Lower kernels until no more jobs come; the first object to come is the target."""
    target = _received(jobs)
    while isinstance(job := _received(jobs), LoweringJob):
        try:
            program = kernel_program(job.kernel, job.constants)
            result: LoweredPlan = lowered(program, target, cold=job.cold)[1]
        except TilewrightError as error:
            result = NotLowered(str(error))
        pickle.dump(result, results)
        results.flush()


def _received(jobs: IO[bytes]) -> Any:
    try:
        return pickle.load(jobs)  # noqa: S301 - its own parent wrote it
    except EOFError:
        return None


def work() -> None:
    """The work of a process: results go to what was its standard output."""
    # Nothing that a pass prints may come between the results.
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(BrokenPipeError):
        serve(sys.stdin.buffer, results)
