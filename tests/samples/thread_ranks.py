"""Ranks as threads of one process: a world without processes and engines, for tests and for one machine."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tilewright.runtime.communication.communicator import TIMEOUT_S
from tilewright.runtime.communication.host import CHECK_S, HostWorld
from tilewright.runtime.communication.rounds import Channel, Transport, Verb
from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import CommunicationError, PeerFailedError

T = TypeVar("T")
_Key = tuple[int, int, str, int]  # from, to, channel, tag


class ThreadWorld:
    """`size` ranks of one process; each thread uses the communicator of its rank."""

    def __init__(self, size: int, *, timeout_s: float = TIMEOUT_S) -> None:
        self.size = size
        self.changed = threading.Condition()
        self.sent: dict[_Key, deque[Array]] = defaultdict(deque)
        self.awaited: dict[_Key, deque[_Receive]] = defaultdict(deque)
        self.failed: dict[int, str] = {}
        self.texts: dict[int, deque[str]] = defaultdict(deque)
        self.communicators = tuple(ThreadCommunicator(self, rank, timeout_s) for rank in range(size))

    def run(self, work: Callable[[ThreadCommunicator], T]) -> list[T]:
        """What `work` returns for each rank's communicator, each in a thread of its own.

        A rank that raises fails for the others too; the exception that came first is raised here.
        """
        results: list[Any] = [None] * self.size
        errors: list[BaseException] = []

        def one(communicator: ThreadCommunicator) -> None:
            try:
                results[communicator.rank] = work(communicator)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it belongs to the caller's thread
                errors.append(error)
                communicator.fail(str(error))

        threads = [threading.Thread(target=one, args=(c,), daemon=True) for c in self.communicators]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results


class ThreadCommunicator(HostWorld):
    """One rank of a `ThreadWorld`; see `Communicator`."""

    def __init__(self, world: ThreadWorld, rank: int, timeout_s: float) -> None:
        super().__init__(rank, world.size, timeout_s)
        self.world = world

    def transport(self) -> Transport:
        """This object itself."""
        return self

    def post_send(self, array: Array, peer: int, channel: Channel, tag: int) -> _Sent:
        """See `Transport`; the message is a copy."""
        key = self.rank, peer, channel, tag
        with self.world.changed:
            self.world.sent[key].append(array.copy())
            self._match(key)
        return _Sent(peer)

    def post_receive(self, array: Array, peer: int, channel: Channel, tag: int) -> _Receive:
        """See `Transport`."""
        key = peer, self.rank, channel, tag
        request = _Receive(peer, self.rank, array)
        with self.world.changed:
            self.world.awaited[key].append(request)
            self._match(key)
        return request

    def _match(self, key: _Key) -> None:
        sent, awaited = self.world.sent[key], self.world.awaited[key]
        while sent and awaited:
            awaited.popleft().take(sent.popleft())

    def gather_texts(self, text: str, *, doing: str) -> list[str]:
        """See `Communicator.gather_texts`."""
        world, end = self.world, time.monotonic() + self.timeout_s
        with world.changed:
            for rank in range(self.size):
                world.texts[rank * self.size + self.rank].append(text)
            world.changed.notify_all()
            own = range(self.rank * self.size, (self.rank + 1) * self.size)
            while missing := [i % self.size for i in own if not world.texts[i]]:
                self._raise_failed(missing, doing)
                if time.monotonic() > end:
                    ranks = ", ".join(map(str, missing))
                    raise CommunicationError(
                        f"rank {self.rank}: {doing}: waited {self.timeout_s:.1f} s for rank {ranks}"
                    )
                world.changed.wait(CHECK_S)
            return [world.texts[i].popleft() for i in own]

    def check_peers(self, peers: Sequence[int], *, doing: str) -> None:
        """See `Communicator.check_peers`."""
        with self.world.changed:
            self._raise_failed(peers, doing)

    def _raise_failed(self, peers: Sequence[int], doing: str) -> None:
        # A rank that fails for what another told is no cause: the peers' peers matter as well.
        for peer in dict.fromkeys((*peers, *self.world.failed)):
            if peer != self.rank and peer in self.world.failed:
                raise PeerFailedError(
                    f"rank {self.rank}: {doing}: rank {peer} failed: {self.world.failed[peer]}"
                )

    def state_of(self, peer: int) -> str:
        """See `HostWorld.state_of`."""
        return "which is a thread of this process"

    def fail(self, reason: str) -> None:
        """See `Communicator.fail`."""
        self.break_off(reason)
        with self.world.changed:
            self.world.failed.setdefault(self.rank, reason)
            self.world.changed.notify_all()

    def close(self) -> None:
        """See `Communicator.close`."""
        self.break_off("it was closed")


class _Sent:
    """A message that its peer can take when it likes."""

    verb: Verb = "send to"
    nbytes = 0

    def __init__(self, peer: int) -> None:
        self.peer = peer

    def done(self) -> bool:
        return True


class _Receive:
    """A message that is waited for."""

    verb: Verb = "receive from"

    def __init__(self, peer: int, rank: int, array: Array) -> None:
        self.nbytes = array.nbytes
        self.peer, self._rank, self._array = peer, rank, array
        self._filled = threading.Event()
        self._wrong = ""

    def take(self, message: Array) -> None:
        """The message has come."""
        if message.nbytes == self._array.nbytes:
            self._array[...] = message.view(self._array.dtype)
        else:
            self._wrong = f"expected {self._array.nbytes} bytes from rank {self.peer}, got {message.nbytes}"
        self._filled.set()

    def done(self) -> bool:
        if self._wrong:
            raise CommunicationError(f"rank {self._rank}: {self._wrong}")
        return self._filled.is_set()
