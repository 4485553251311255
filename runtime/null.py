"""The null device: checks everything, runs nothing and records what a real device would have done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.runtime.arrays import Array, check_constants, check_repeats, host_inputs
from tilewright.runtime.device import Progress
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.loaded import Closable
from tilewright.runtime.plan import ExecutionPlan


@dataclass(frozen=True)
class Operation:
    """One recorded step: `allocate`, `upload`, `build`, `copy-in`, `launch`, `wait`, `copy-out` or `free`.

    `what` names a buffer or kernel; for `launch` and `wait`, `launch` is the index of the (awaited) launch
    and `stream` the stream that runs it (waits for it).
    """

    action: str
    what: str
    nbytes: int = 0
    launch: int = -1
    stream: int = 0


class NullDevice(Closable):
    """Needs no hardware; every operation ends up in `log`."""

    name = "null"
    language = "any"
    driver_version = ""

    def __init__(self) -> None:
        self.log: list[Operation] = []

    def load(
        self, plan: ExecutionPlan, constants: Mapping[str, Array], *, progress: Progress | None = None
    ) -> NullPlan:
        """Validate the plan and its constants and record allocations, uploads and builds."""
        self.check_open()
        plan.validate()
        checked = check_constants(plan, constants)
        self.log.append(Operation("allocate", "arena", plan.arena_bytes))
        for buffer in plan.buffers:
            if buffer.kind in ("input", "output", "constant"):
                self.log.append(Operation("allocate", buffer.name, buffer.nbytes))
        self.log += (Operation("upload", name, array.nbytes) for name, array in checked.items())
        for index, kernel in enumerate(plan.kernels):
            self.log.append(Operation("build", kernel.name))
            if progress is not None:
                progress(index + 1, len(plan.kernels), kernel.name)
        return NullPlan(plan, self.log)

    def _release(self) -> None:
        return


@dataclass
class NullPlan(Closable):
    """A plan on the null device: `run` records the stream operations and returns zeros."""

    plan: ExecutionPlan
    log: list[Operation] = field(repr=False)

    def run(self, inputs: Sequence[object]) -> list[Array]:
        """Zeros of the outputs' shapes; records copies, waits between streams and launches in plan order."""
        self.check_open()
        for name, array in zip(self.plan.inputs, host_inputs(self.plan, inputs), strict=True):
            self.log.append(Operation("copy-in", name, array.nbytes))
        self._replay()
        outputs = [self.plan.buffer_by_name[name] for name in self.plan.outputs]
        arrays = [np.zeros(buffer.shape, dtype=DTYPES[buffer.dtype]) for buffer in outputs]
        self.log += (Operation("copy-out", b.name, a.nbytes) for b, a in zip(outputs, arrays, strict=True))
        return arrays

    def _replay(self) -> None:
        launches = self.plan.launches
        for index, launch in enumerate(launches):
            for dep in launch.deps:
                if launches[dep].stream != launch.stream:
                    self.log.append(Operation("wait", launches[dep].kernel, 0, dep, launch.stream))
            self.log.append(Operation("launch", launch.kernel, 0, index, launch.stream))

    def time(self, inputs: Sequence[object], repeats: int) -> list[float]:
        """Zero seconds per replay."""
        check_repeats(repeats)
        self.run(inputs)
        return [0.0] * repeats

    def time_kernels(self, inputs: Sequence[object], repeats: int) -> list[list[float]]:
        """Zero seconds per launch and repeat."""
        check_repeats(repeats)
        self.run(inputs)
        return [[0.0] * repeats for _ in self.plan.launches]

    def _release(self) -> None:
        self.log.append(Operation("free", "plan"))
