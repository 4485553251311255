"""Communication of loaded plans on GPUs: who connects them, their launches, and waits that notice a hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from tilewright.runtime.communication.agreement import communications
from tilewright.runtime.communication.communicator import AnyCommunicator, DeviceCommunicator
from tilewright.runtime.communication.host import LONGEST_SLEEP_S
from tilewright.runtime.communication.nccl import HostRanks, NcclCommunicator
from tilewright.runtime.communication.replay import communicator_for
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.errors import CommunicationError, DeviceError
from tilewright.runtime.plan.communication_kernel import CommunicationKernel
from tilewright.runtime.plan.execution_plan import ExecutionPlan, Launch

#: seconds that work on the GPU has to end after its communication was aborted
DRAIN_S = 5.0


class GpuRanks(DeviceCommunicator, Protocol):
    """A communicator between GPU memory that can be waited for."""

    @property
    def capturable(self) -> bool:
        """True where `start` is legal while its stream is captured into a graph."""
        ...

    @property
    def broken(self) -> bool:
        """True where a communication failed, so that no more can follow."""
        ...

    def wait(self, done: Callable[[], bool], *, doing: str) -> None:
        """Wait for queued work with communications until `done()`; raises `CommunicationError`."""
        ...


@dataclass(frozen=True)
class CommunicationLaunch:
    """A launch that goes to other GPUs: whatever the communicator queues on the stream it is given."""

    launch: Launch
    kernel: CommunicationKernel
    operands: tuple[int, ...]
    results: tuple[int, ...]
    ranks: GpuRanks = field(repr=False)
    doing: str = ""
    overlaps: bool = False

    def start(self, context: Context, stream: Any) -> None:
        """Queue it on `stream`."""
        self.ranks.start(self.kernel, self.operands, self.results, doing=self.doing, stream=int(stream))


def urgent_stream(context: Context) -> Any:
    """A stream whose kernels come before those of others that wait for a multiprocessor.

    Other GPUs wait for what is sent, and a communication takes few multiprocessors.
    """
    flag = int(context.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
    _, greatest = context.call("cuCtxGetStreamPriorityRange")
    return context.call("cuStreamCreateWithPriority", flag, greatest)


class CudaCommunications:
    """The communications of one loaded plan, and the communicator they go through.

    communicator: between host memory, over which NCCL connects the GPUs for this plan alone, or one between
        GPU memory, which stays the caller's. Raises `InputError` where there is none, and as
        `NcclCommunicator` does. The context must be current in every method.
    """

    def __init__(self, context: Context, plan: ExecutionPlan, communicator: AnyCommunicator | None) -> None:
        self._context = context
        self._kernels = communications(plan)
        self._own: NcclCommunicator | None = None
        if communicator is not None and communicator.space == "host":
            kernels = list(self._kernels.values())
            self._own = NcclCommunicator(cast(HostRanks, communicator), kernels, context.uuid())
            self.ranks: GpuRanks = self._own
        else:
            found = communicator_for(plan, communicator, "cuda", context.name())
            self.ranks = cast(GpuRanks, found)
        self._doing = f"running {len(plan.launches)} kernels, {len(self._kernels)} of them communications"

    @staticmethod
    def of(
        context: Context, plan: ExecutionPlan, communicator: AnyCommunicator | None
    ) -> CudaCommunications | None:
        """Those of a plan that communicates, or whose other ranks do; else None."""
        if not communications(plan) and (communicator is None or communicator.size == 1):
            return None
        return CudaCommunications(context, plan, communicator)

    def launch(
        self, index: int, launch: Launch, addresses: Mapping[str, int], doing: str
    ) -> CommunicationLaunch:
        """One launch on the addresses of its buffers by name."""
        kernel = self._kernels[index]
        places = [addresses[name] for name in launch.args]
        split = len(kernel.operands)
        return CommunicationLaunch(
            launch, kernel, tuple(places[:split]), tuple(places[split:]), self.ranks, doing
        )

    def wait(self, stream: Any, doing: str = "") -> None:
        """Wait for all work on a stream; raises as `NcclCommunicator.wait` and `DeviceError`."""
        self._wait_until("cuStreamQuery", stream, doing)

    def wait_events(self, events: Sequence[Any]) -> None:
        """Wait for one event after the other, each as long as the timeout: much may be queued."""
        for event in events:
            self._wait_until("cuEventQuery", event, "")

    def _wait_until(self, query: str, handle: Any, doing: str) -> None:
        work = doing or self._doing
        self.ranks.wait(lambda: self._context.finished(query, handle, doing=work), doing=work)

    def drained(self, stream: Any) -> bool:
        """Wait until nothing runs on a stream; False where aborting did not end it in some seconds."""
        try:
            if not self.ranks.broken:
                self.wait(stream, "closing a plan")
                return True
        except CommunicationError:
            pass  # the results that were asked for are there; what is left was aborted
        end = time.monotonic() + DRAIN_S
        try:
            while not self._context.finished("cuStreamQuery", stream):
                if time.monotonic() > end:
                    return False
                time.sleep(LONGEST_SLEEP_S)
        except DeviceError:
            pass  # nothing runs in a context that is beyond use
        return True

    def close(self) -> None:
        """Disconnect what was connected for this plan; graphs that hold its work must be destroyed before."""
        own, self._own = self._own, None
        if own is not None:
            own.close()
