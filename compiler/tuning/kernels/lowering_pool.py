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
class Order:
    """A kernel to lower: positions of its constant parameters, and whether these are cold."""

    kernel: Func
    constants: tuple[int, ...]
    cold: bool


@dataclass(frozen=True)
class Refused:
    """Why a kernel cannot be lowered."""

    text: str


Answer = ExecutionPlan | Refused


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

    def plans(self, orders: Sequence[Order]) -> list[Answer]:
        """The plans of the programs that run each kernel alone, without binaries, in the order asked for.

        Raises WorkError where a process has died.
        """
        return list(self._threads.map(self._plan, orders))

    def _plan(self, order: Order) -> Answer:
        process = self._free.get()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            pickle.dump(order, process.stdin)
            process.stdin.flush()
            answer: Answer = pickle.load(process.stdout)  # noqa: S301 - its own child wrote it
            return answer
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
        with suppress(BrokenPipeError):  # what it was told last cannot reach it any more
            pipe.close()
    process.wait()


def serve(orders: IO[bytes], answers: IO[bytes]) -> None:
    """Answer orders until there are no more; the first thing to come is the target."""
    target = _received(orders)
    while isinstance(order := _received(orders), Order):
        try:
            answer: Answer = lowered(kernel_program(order.kernel, order.constants), target, cold=order.cold)[
                1
            ]
        except TilewrightError as error:
            answer = Refused(str(error))
        pickle.dump(answer, answers)
        answers.flush()


def _received(orders: IO[bytes]) -> Any:
    try:
        return pickle.load(orders)  # noqa: S301 - its own parent wrote it
    except EOFError:
        return None


def work() -> None:
    """What a worker process does: answer on what was its standard output."""
    # Nothing that a pass prints may come between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with suppress(BrokenPipeError):
        serve(sys.stdin.buffer, answers)
