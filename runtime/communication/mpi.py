"""Ranks as processes that MPI started (mpi4py): nonblocking messages between host arrays."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.runtime.communication.communicator import TIMEOUT_S
from tilewright.runtime.communication.host import CHECK_S, FIRST_SLEEP_S, LONGEST_SLEEP_S, HostWorld
from tilewright.runtime.communication.processes import Process
from tilewright.runtime.communication.rounds import CHANNELS, Channel, Transport, Verb
from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import CommunicationError, DeviceMissingError, PeerFailedError

#: tags on the communicator that carries no data of plans
_FAILURE, _TEXT = 1, 2
#: bytes of a failure's reason that are sent
_REASON_BYTES = 1_000
#: seconds that `fail` gives its messages to leave
_LEAVE_S = 0.5


def import_mpi() -> Any:
    """mpi4py's MPI, initialised; raises `DeviceMissingError` where it or the MPI library is missing."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py without an MPI library
        raise DeviceMissingError(
            f"expected mpi4py and an MPI library to communicate between processes: {error}; "
            "pip install 'tilewright[mpi]'"
        ) from None
    return MPI


class MpiCommunicator(HostWorld):
    """This process among those that mpirun started; see `Communicator`.

    Opening is a collective of all ranks: raises `CommunicationError` where others do not come within the
    timeout. The messages of plans have communicators of their own, apart from those of other users of MPI.
    """

    def __init__(self, *, timeout_s: float = TIMEOUT_S) -> None:
        self.mpi = import_mpi()
        whole = self.mpi.COMM_WORLD
        super().__init__(whole.Get_rank(), whole.Get_size(), timeout_s)
        self._texts_leaving: list[tuple[Any, Array]] = []
        self._failures: dict[int, str] = {}
        self._has_failed = False
        self._parent = os.getppid()
        self._control = self._duplicate(whole)
        self._channels = {channel: self._duplicate(whole) for channel in CHANNELS}
        self._processes: list[Process] = []
        texts = self.gather_texts(Process.this().to_text(), doing="opening the world")
        self._processes = list(map(Process.from_text, texts))

    def _duplicate(self, whole: Any) -> Any:
        copy, request = whole.Idup()
        end = time.monotonic() + self.timeout_s
        while not request.Test():
            if time.monotonic() > end:
                raise CommunicationError(
                    f"rank {self.rank}: opening the world: waited {self.timeout_s:.1f} s for all of the "
                    f"{self.size} ranks to do so as well"
                )
            time.sleep(LONGEST_SLEEP_S)
        return copy

    @cached_property
    def _transport(self) -> _MpiTransport:
        return _MpiTransport(self)

    def transport(self) -> Transport:
        return self._transport

    def channel(self, channel: Channel) -> Any:
        """The MPI communicator of a channel."""
        return self._channels[channel]

    def gather_texts(self, text: str, *, doing: str) -> list[str]:
        data = np.frombuffer(text.encode(), np.uint8).copy()
        for peer in range(self.size):
            if peer != self.rank:
                self._texts_leaving.append((self._control.Isend(data, peer, _TEXT), data))
        texts: dict[int, str] = {self.rank: text}
        begin = checked = time.monotonic()
        sleep_s = FIRST_SLEEP_S
        while missing := [peer for peer in range(self.size) if peer not in texts]:
            for peer in missing:
                if (found := self._receive(peer, _TEXT)) is not None:
                    texts[peer] = found
            now = time.monotonic()
            if now - checked > CHECK_S:
                checked = now
                self.check_peers(missing, doing=doing)
            if now - begin > self.timeout_s:
                states = ", ".join(f"rank {peer}, {self.state_of(peer)}" for peer in missing)
                raise CommunicationError(
                    f"rank {self.rank}: {doing}: waited {now - begin:.1f} s for {states}"
                )
            time.sleep(sleep_s)
            sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)
        return [texts[peer] for peer in range(self.size)]

    def _receive(self, peer: int, tag: int) -> str | None:
        """A text that a peer has sent; None where none has come."""
        status = self.mpi.Status()
        message = self._control.Improbe(peer, tag, status)
        if message is None:
            return None
        data = np.empty(status.Get_count(self.mpi.BYTE), np.uint8)
        message.Recv(data)
        return data.tobytes().decode(errors="replace")

    def check_peers(self, peers: Sequence[int], *, doing: str) -> None:
        """See `Communicator.check_peers`; processes are watched where they run on this machine."""
        for peer in range(self.size):
            if peer != self.rank and (reason := self._receive(peer, _FAILURE)) is not None:
                self._failures.setdefault(peer, reason)
        # A rank that fails because another did is no cause: the peers' peers matter as well.
        for peer in dict.fromkeys((*peers, *self._failures)):
            if peer in self._failures:
                raise PeerFailedError(
                    f"rank {self.rank}: {doing}: rank {peer} failed: {self._failures[peer]}"
                )
        for peer in self.gone():
            raise PeerFailedError(
                f"rank {self.rank}: {doing}: rank {peer} is gone: its process {self._processes[peer].pid} "
                "ended without a word"
            )
        if os.getppid() != self._parent:
            raise PeerFailedError(f"rank {self.rank}: {doing}: the process that started the ranks is gone")

    @property
    def ranks_here(self) -> int:
        """The number of ranks on this machine, this one included."""
        return sum(p.machine == self._processes[self.rank].machine for p in self._processes)

    def gone(self) -> list[int]:
        """The other ranks of this machine whose processes have ended."""
        return [r for r, p in enumerate(self._processes) if r != self.rank and p.state == "gone"]

    def await_failures(self, grace_s: float) -> None:
        """After a failure: wait until all other ranks have failed too, or are gone or stopped, or so long."""
        end = time.monotonic() + grace_s
        others = {r for r in range(len(self._processes)) if r != self.rank}
        while others and time.monotonic() < end:
            others -= {r for r in others if self._processes[r].state in ("gone", "stopped")}
            others -= {r for r in others if r in self._failures or self._receive(r, _FAILURE) is not None}
            time.sleep(LONGEST_SLEEP_S)

    def state_of(self, peer: int) -> str:
        return self._processes[peer].describe() if self._processes else "whose process is unknown"

    def fail(self, reason: str) -> None:
        if not self.broken:
            self.break_off(reason)
        if self._has_failed:
            return
        self._has_failed = True
        data = np.frombuffer(reason.encode()[:_REASON_BYTES], np.uint8).copy()
        try:
            for peer in range(self.size):
                if peer != self.rank:
                    self._texts_leaving.append((self._control.Isend(data, peer, _FAILURE), data))
            end = time.monotonic() + _LEAVE_S
            while time.monotonic() < end and not self._all_left():
                time.sleep(LONGEST_SLEEP_S)
        except self.mpi.Exception:
            return  # an MPI that is broken tells nobody; the peers find out by their own timeouts

    def _all_left(self) -> bool:
        self._texts_leaving = [(r, data) for r, data in self._texts_leaving if not r.Test()]
        return not self._texts_leaving

    def close(self) -> None:
        """See `Communicator.close`. MPI itself ends with the process."""
        if not self.broken:
            self.drain(doing="closing the world")
        self.break_off("it was closed")

    def abort(self, code: int) -> None:
        """End all processes of the world that are left, this one too, with an exit code."""
        self.mpi.COMM_WORLD.Abort(code)


class _MpiTransport:
    """Messages as bytes, so that MPI need not know the element types."""

    def __init__(self, world: MpiCommunicator) -> None:
        self.world, self.mpi = world, world.mpi

    def post_send(self, array: Array, peer: int, channel: Channel, tag: int) -> _MpiRequest:
        data = array.view(np.uint8)
        request = self._call(
            peer, lambda: self.world.channel(channel).Isend([data, self.mpi.BYTE], peer, tag)
        )
        return _MpiRequest(self, request, data, peer, "send to")

    def post_receive(self, array: Array, peer: int, channel: Channel, tag: int) -> _MpiRequest:
        data = array.view(np.uint8)
        request = self._call(
            peer, lambda: self.world.channel(channel).Irecv([data, self.mpi.BYTE], peer, tag)
        )
        return _MpiRequest(self, request, data, peer, "receive from")

    def _call(self, peer: int, post: Any) -> Any:
        try:
            return post()
        except self.mpi.Exception as error:
            raise self.failure(peer, error) from None

    def failure(self, peer: int, error: Exception) -> CommunicationError:
        """Return the message of MPI, with the ranks."""
        return CommunicationError(f"rank {self.world.rank}: MPI refused a message with rank {peer}: {error}")


class _MpiRequest:
    """A message under way; holds on to its array."""

    def __init__(
        self,
        transport: _MpiTransport,
        request: Any,
        data: Array,
        peer: int,
        verb: Verb,
    ) -> None:
        self.peer, self.verb, self.nbytes = peer, verb, data.nbytes
        self._transport, self._request, self._data = transport, request, data
        self._status = transport.mpi.Status()
        self._done = False

    def done(self) -> bool:
        if self._done:
            return True
        try:
            self._done = bool(self._request.Test(self._status))
        except self._transport.mpi.Exception as error:
            raise self._transport.failure(self.peer, error) from None
        if self._done and self.verb == "receive from":
            got = self._status.Get_count(self._transport.mpi.BYTE)
            if got != self._data.nbytes:
                raise CommunicationError(
                    f"rank {self._transport.world.rank}: expected {self._data.nbytes} bytes from rank "
                    f"{self.peer}, got {got}"
                )
        return self._done
