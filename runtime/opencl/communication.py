"""Communication launches on an OpenCL device: operands to the host, messages, results back to the device.

A communication is started as soon as its operands are on the host and finished only before the first launch
that needs it, so that kernels run meanwhile. What goes out is copied when the communication is begun, what
comes in when it is finished, both in the order of the plan: so the plan's order of communications by their
dependencies keeps its memory safe although the next one starts before the one before has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.runtime.communication.communicator import HostCommunicator, PendingCommunication
from tilewright.runtime.communication.replay import CommunicationOrder
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.opencl.driver import driver_errors
from tilewright.runtime.opencl.memory import OpenClPlanMemory
from tilewright.runtime.plan.communication_kernel import CommunicationKernel
from tilewright.runtime.plan.execution_plan import ExecutionPlan, describe_launch


@dataclass
class CommunicationEvent:
    """The commands of one communication launch, in the place of a kernel's event."""

    commands: list[Any] = field(default_factory=list)

    @property
    def profile(self) -> CommunicationEvent:
        """This object has the times that a kernel's event has."""
        return self

    @property
    def start(self) -> int:
        """Nanoseconds at which the first command started."""
        return min(int(event.profile.start) for event in self.commands)

    @property
    def end(self) -> int:
        """Nanoseconds at which the last command ended."""
        return max(int(event.profile.end) for event in self.commands)

    @property
    def command_execution_status(self) -> int:
        """The worst state of a command; negative where one failed."""
        return min((int(event.command_execution_status) for event in self.commands), default=0)


@dataclass
class _Begun:
    """A communication whose operands are on their way to the host, or which was started."""

    index: int
    kernel: CommunicationKernel
    operands: list[Array]
    results: list[Array]
    copies: list[Any]
    event: CommunicationEvent
    pending: PendingCommunication | None = None


class OpenClCommunications:
    """The communications of one loaded plan."""

    def __init__(
        self,
        cl: Any,
        queue: Any,
        plan: ExecutionPlan,
        memory: OpenClPlanMemory,
        communicator: HostCommunicator,
    ) -> None:
        self._cl, self._queue, self._plan, self._memory = cl, queue, plan, memory
        self._communicator = communicator
        self.order = CommunicationOrder.of(plan)

    def replay(self) -> Replay:
        """Return the communications of one replay."""
        return Replay(self)

    def copy(self, target: Any, source: Any, what: str, **options: Any) -> Any:
        """Start a copy between host and device."""
        with driver_errors(self._cl, f"copying {what}"):
            return self._cl.enqueue_copy(self._queue, target, source, is_blocking=False, **options)

    def mark(self, waits: Sequence[Any] | None) -> Any:
        """An event of a launch that copies nothing at this end."""
        with driver_errors(self._cl, "marking a communication"):
            return self._cl.enqueue_marker(self._queue, waits)

    def begin(self, index: int, waits: Sequence[Any] | None) -> _Begun:
        """Start to copy the operands to the host, after `waits` (None: the queue keeps the order)."""
        kernel, names = self.order.kernels[index], self._plan.launches[index].args
        dtype = DTYPES[kernel.dtype]
        operands = [np.empty(n, dtype) for n in kernel.operands]
        results = [np.empty(n, dtype) for n in kernel.results]
        copies = []
        for name, array in zip(names, operands, strict=False):
            source, offset = self._memory.region(name)
            what = f"{name!r} to the host"
            flat = array.view(np.uint8)
            copies.append(self.copy(flat, source, what, src_offset=offset, wait_for=waits))
        if not copies:
            copies = [self.mark(waits)]
        with driver_errors(self._cl, "starting a communication"):
            self._queue.flush()
        return _Begun(index, kernel, operands, results, copies, CommunicationEvent(list(copies)))

    def post(self, begun: _Begun, *, wait: bool) -> bool:
        """Start the messages where the operands are on the host, or when they are; whether they started."""
        if begun.pending is None:
            ready = self._cl.command_execution_status.COMPLETE
            if not wait and any(copy.command_execution_status > ready for copy in begun.copies):
                return False
            doing = describe_launch(begun.index, self._plan.launches[begun.index])
            with driver_errors(self._cl, doing):
                self._cl.wait_for_events(begun.copies)
            begun.pending = self._communicator.start(begun.kernel, begun.operands, begun.results, doing=doing)
        return True

    def end(self, begun: _Begun) -> None:
        """Wait for the messages and start to copy the results to the device."""
        assert begun.pending is not None
        begun.pending.finish()
        names = self._plan.launches[begun.index].args[len(begun.operands) :]
        for name, array in zip(names, begun.results, strict=True):
            target, offset = self._memory.region(name)
            copy = self.copy(target, array.view(np.uint8), f"{name!r} to the device", dst_offset=offset)
            begun.event.commands.append(copy)
        if not names:
            begun.event.commands.append(self.mark(None))


class Replay:
    """The communications of one replay: begun in the plan's order, finished in the same order."""

    def __init__(self, communications: OpenClCommunications) -> None:
        self._all = communications
        self._begun: list[_Begun] = []
        self._posted = self._finished = 0

    def before(self, index: int) -> None:
        """Finish what launch `index` needs."""
        self.finish(self._all.order.finished_before[index])
        self.advance()

    def begin(self, index: int, waits: Sequence[Any] | None) -> CommunicationEvent:
        """Begin the communication that launch `index` is; its event."""
        self._begun.append(self._all.begin(index, waits))
        self.advance()
        return self._begun[-1].event

    @property
    def all_begun(self) -> bool:
        """True where no communication of the plan is left to begin."""
        return len(self._begun) == len(self._all.order.kernels)

    def post_all(self) -> None:
        """Post the messages of all that were begun, when their operands are there."""
        while self._posted < len(self._begun):
            self._all.post(self._begun[self._posted], wait=True)
            self._posted += 1

    def advance(self) -> None:
        """Post the messages of those whose operands are there."""
        while self._posted < len(self._begun) and self._all.post(self._begun[self._posted], wait=False):
            self._posted += 1

    def finish(self, count: int | None = None) -> None:
        """Finish the first `count` communications of the plan, all that were begun where None."""
        for begun in self._begun[self._finished : count]:
            self._all.post(begun, wait=True)
            self._posted = max(self._posted, self._finished + 1)
            self.advance()
            self._all.end(begun)
            self._finished += 1
