"""The protocol of communicators: how the communication launches of a plan reach the other ranks.

Every rank replays its own plan. Communications of a rank form one order, that of its plan, and every rank
keeps it: they are started in this order, so messages between the same two ranks with the same tag, and
collectives of the same members, meet in the order of the plans on all ranks. One replay after another is one
order as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar

from tilewright.runtime.dtypes import Array
from tilewright.runtime.plan.communication_kernel import CommunicationKernel

#: seconds that a wait for another rank may take, where nothing else is asked for
TIMEOUT_S = 60.0

#: what a communication reads and writes: NumPy arrays (host memory) or addresses (device memory)
Place_contra = TypeVar("Place_contra", contravariant=True)


class PendingCommunication(Protocol):
    """A communication that was started."""

    def advance(self) -> bool:
        """Do what can be done without waiting; whether it is complete. Raises as `finish` does."""
        ...

    def finish(self) -> None:
        """Wait until the results are there.

        Raises `CommunicationError` naming the launch and the peer where that takes longer than the
        communicator's timeout, where a peer has failed or is gone, or where a message has another size.
        A second call does nothing.
        """
        ...


class Communicator(Protocol[Place_contra]):
    """The ranks of one world, seen from one of them.

    Two kinds of memory, named by `space`. `host`: places are contiguous one-dimensional NumPy arrays;
    `start` posts the messages and returns, `finish` waits for them, on whichever thread calls it, one at a
    time. `cuda`: places are device addresses (integers); `start` enqueues the communication on `stream` and
    returns, so what is enqueued there afterwards runs after it; `finish` waits for nothing (the stream does),
    and everything is legal while the stream is captured into a graph. What then hangs on the device is found
    by whoever waits for the stream: it asks `check_peers` after `timeout_s`, aborts the communicator with
    `close` and raises what `check_peers` tells.

    Memory: results must not be touched from `start` to the end of `finish`. Operands on `host` belong to the
    communicator from `start` on, for good: what is sent may be received long after `finish`, so that a rank
    can run ahead of the others. On `cuda`, both must keep until the work on the stream has ended.
    """

    @property
    def rank(self) -> int:
        """This process, 0 to size - 1."""
        ...

    @property
    def size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def timeout_s(self) -> float:
        """Seconds that a wait may take before it is an error."""
        ...

    @property
    def space(self) -> Literal["host", "cuda"]:
        """The kind of memory that `start` takes."""
        ...

    def start(
        self,
        kernel: CommunicationKernel,
        operands: Sequence[Place_contra],
        results: Sequence[Place_contra],
        *,
        doing: str,
        stream: int = 0,
    ) -> PendingCommunication:
        """Begin one communication; `doing` says for messages which launch of which plan it is.

        Communications started earlier need not be finished. Raises `CommunicationError`.
        """
        ...

    def gather_texts(self, text: str, *, doing: str) -> list[str]:
        """The text that each rank gives, by rank: a collective of the whole world, used while loading.

        Raises `CommunicationError` naming the ranks that gave none within the timeout.
        """
        ...

    def check_peers(self, peers: Sequence[int], *, doing: str) -> None:
        """Raise `PeerFailedError` for the first of these ranks that has failed or whose process is gone."""
        ...

    def fail(self, reason: str) -> None:
        """Tell all other ranks that this one gives up; their waits then end with `PeerFailedError`.

        Never raises and never waits for long; may be called twice.
        """
        ...

    def close(self) -> None:
        """Give everything back; may be called twice. Works without the peers after `fail` or an error."""
        ...


HostCommunicator = Communicator[Array]
DeviceCommunicator = Communicator[int]
AnyCommunicator = Communicator[Any]
