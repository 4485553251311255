"""The common part of communicators between host arrays: order, waits with a timeout, errors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Literal

from tilewright.runtime.communication.communicator import TIMEOUT_S
from tilewright.runtime.communication.rounds import TransferRequest, Transport, rounds
from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import CommunicationError, InputError
from tilewright.runtime.plan.communication_kernel import CommunicationKernel

#: seconds between two looks at whether the peers are still there
CHECK_S = 0.2
#: seconds to sleep between looks at requests: at first, doubled each time, and at most
FIRST_SLEEP_S, LONGEST_SLEEP_S = 2e-5, 2e-4
#: bytes that may have been sent without being received before the next communication waits
LEAVING_BYTES = 1 << 28


class HostPending:
    """See `PendingCommunication`. Made by `HostWorld.start`."""

    def __init__(
        self,
        world: HostWorld,
        kernel: CommunicationKernel,
        steps: Iterator[list[TransferRequest]],
        doing: str,
    ):
        self.kernel, self.doing = kernel, doing
        self._world, self._steps = world, steps
        self.waiting: list[TransferRequest] = next(steps)
        self.complete = False
        #: whether messages are posted after the first ones have come
        self.again = kernel.kind == "all_reduce"

    def advance(self) -> bool:
        self._world.advance()
        return self.complete

    def finish(self) -> None:
        self._world.wait_for(self)

    def step(self) -> bool:
        """Post the next round where the requests of this one are done; whether none is left."""
        while not self.complete:
            self.waiting = [r for r in self.waiting if not r.done()]
            if any(r.verb == "receive from" for r in self.waiting):
                return False
            self._world.let_leave(self.waiting)
            following = next(self._steps, None)
            self.complete, self.waiting = following is None, following or []
        return True


class HostWorld:
    """The part of a host communicator that is the same for every transport; subclasses bring messages.

    Subclasses implement `Transport`, `check_peers`, `state_of`, `fail` and `close`.
    """

    space: Literal["host"] = "host"

    def __init__(self, rank: int, size: int, timeout_s: float = TIMEOUT_S) -> None:
        if not timeout_s > 0:
            raise InputError(f"expected a timeout of more than 0 seconds, got {timeout_s}")
        self.rank, self.size, self.timeout_s = rank, size, timeout_s
        self._started: list[HostPending] = []
        self._leaving: list[TransferRequest] = []
        self._stuck: list[TransferRequest] = []  # kept for their arrays, which the transport may still touch
        self._broken = ""

    def transport(self) -> Transport:
        """The transport that posts the messages."""
        raise NotImplementedError(f"{type(self).__name__} has no transport")

    def check_peers(self, peers: Sequence[int], *, doing: str) -> None:
        raise NotImplementedError(f"{type(self).__name__} knows no peers")

    def state_of(self, peer: int) -> str:
        """Describe the process of a rank in a few words."""
        raise NotImplementedError(f"{type(self).__name__} knows no processes")

    def start(
        self,
        kernel: CommunicationKernel,
        operands: Sequence[Array],
        results: Sequence[Array],
        *,
        doing: str,
        stream: int = 0,
    ) -> HostPending:
        """See `Communicator.start`; `stream` means nothing here.

        The operands belong to the communicator from then on: what is sent need not have been received when
        the communication is finished, so that a rank may run ahead of those that take its results.
        """
        if self._broken:
            raise CommunicationError(
                f"rank {self.rank}: {doing}: communication failed before: {self._broken}"
            )
        wrong = [p for p in kernel.peers if p >= self.size]
        if wrong or kernel.rank not in (None, self.rank):
            raise InputError(
                f"rank {self.rank} of {self.size}: {doing}: this {kernel.describe()} is for rank "
                f"{kernel.rank if kernel.rank is not None else max(wrong)}"
            )
        self._make_room(doing)
        pending = HostPending(self, kernel, rounds(kernel, operands, results, self.transport()), doing)
        self._started.append(pending)
        return pending

    def advance(self) -> None:
        """Go on with the communications that were started.

        Of those that post messages again only the first goes on: all ranks then post these in one order.
        """
        posting = False
        for pending in list(self._started):
            if posting and pending.again:
                continue
            if pending.step():
                self._started.remove(pending)
            posting = posting or (pending.again and not pending.complete)

    def let_leave(self, sends: Sequence[TransferRequest]) -> None:
        """Take over what is sent and not yet received."""
        self._leaving.extend(sends)

    def _make_room(self, doing: str) -> None:
        """Wait until what is sent and not yet received takes no more than `LEAVING_BYTES`."""
        self._leaving = [r for r in self._leaving if not r.done()]
        if sum(r.nbytes for r in self._leaving) > LEAVING_BYTES:
            self.drain(doing=doing, room=LEAVING_BYTES)

    def drain(self, *, doing: str, room: int = 0) -> None:
        """Wait until what is sent and not yet received takes at most `room` bytes."""
        begin = checked = time.monotonic()
        while True:
            self._leaving = [r for r in self._leaving if not r.done()]
            if not self._leaving or (room and sum(r.nbytes for r in self._leaving) <= room):
                return
            now, request = time.monotonic(), self._leaving[0]
            if now - checked > CHECK_S:
                checked = now
                self.check_peers((request.peer,), doing=doing)
            if now - begin > self.timeout_s:
                raise CommunicationError(
                    f"rank {self.rank}: {doing}: waited {now - begin:.1f} s to {request.verb} rank "
                    f"{request.peer}, {self.state_of(request.peer)}"
                )
            time.sleep(LONGEST_SLEEP_S)

    def wait_for(self, pending: HostPending) -> None:
        """Wait until one is complete, whatever others are."""
        begin = checked = time.monotonic()
        sleep_s = FIRST_SLEEP_S
        try:
            self.advance()
            while not pending.complete:
                now = time.monotonic()
                if now - checked > CHECK_S:
                    checked = now
                    self.check_peers(pending.kernel.peers, doing=self._told(pending))
                if now - begin > self.timeout_s:
                    # An all_reduce may wait for one before it to post its messages.
                    late = pending if pending.waiting else next(p for p in self._started if p.waiting)
                    raise CommunicationError(self._too_late(late, now - begin))
                time.sleep(sleep_s)
                sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)
                self.advance()
        except BaseException as error:
            self.break_off(str(error) or type(error).__name__)
            raise

    def break_off(self, why: str) -> None:
        """Do no more communication: what is under way stays unfinished."""
        self._broken = self._broken or why
        self._stuck += [*self._leaving, *(r for p in self._started for r in p.waiting)]
        self._started.clear()
        self._leaving = []

    @property
    def broken(self) -> bool:
        """True where a communication failed, so that no more can follow."""
        return bool(self._broken)

    def _told(self, pending: HostPending) -> str:
        return f"{pending.doing}, {pending.kernel.describe()}"

    def _too_late(self, late: HostPending, waited_s: float) -> str:
        request = next((r for r in late.waiting if r.verb == "receive from"), late.waiting[0])
        left = sorted({r.peer for r in late.waiting})
        others = f" (and ranks {', '.join(map(str, left))} in all)" if len(left) > 1 else ""
        return (
            f"rank {self.rank}: {self._told(late)}: waited {waited_s:.1f} s to {request.verb} rank "
            f"{request.peer}{others}, {self.state_of(request.peer)}"
        )
