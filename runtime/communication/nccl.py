"""Communication between GPUs of several processes through NCCL, queued on streams and captured in graphs."""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Literal, Protocol

from tilewright.runtime.communication import nccl_api as api
from tilewright.runtime.communication.agreement import RankProgram
from tilewright.runtime.communication.communicator import Communicator
from tilewright.runtime.communication.host import CHECK_S, LONGEST_SLEEP_S
from tilewright.runtime.communication.nccl_api import Nccl
from tilewright.runtime.communication.nccl_order import find_stuck, in_order
from tilewright.runtime.dtypes import DTYPES, Array
from tilewright.runtime.errors import CommunicationError, DisagreementError, InputError
from tilewright.runtime.plan.communication_kernel import CommunicationKernel


@dataclass(frozen=True)
class NcclCall:
    """A function of NCCL and its arguments before communicator and stream."""

    function: str
    arguments: tuple[int, ...]


def calls_of(
    kernel: CommunicationKernel, operands: Sequence[int], results: Sequence[int], rank: int
) -> list[NcclCall]:
    """Return the calls of this rank, which form one group; none where nothing is to be moved.

    operands, results: addresses on the GPU. rank: this one's in the communicator of exchanges. What is only
    moved is moved as bytes. Ranks in calls are positions among the members of a collective.
    """
    if kernel.kind == "exchange":
        return _exchange(kernel, operands, results)
    if len(kernel.members) == 1:
        nbytes = kernel.operands[0] * DTYPES[kernel.dtype].itemsize
        return [*_send(operands[0], nbytes, rank), *_receive(results[0], nbytes, rank)]
    if kernel.kind == "all_gather":
        return _all_gather(kernel, operands[0], results[0])
    if kernel.kind == "reduce_scatter":
        return _reduce_scatter(kernel, operands[0], results[0])
    count, dtype, op = kernel.operands[0], api.DATA_TYPE[kernel.dtype], api.REDUCTION[kernel.reduction]
    return [NcclCall("ncclAllReduce", (operands[0], results[0], count, dtype, op))] if count else []


def reason_against(kernel: CommunicationKernel) -> str:
    """Why NCCL cannot do it, or nothing."""
    if kernel.kind in ("all_reduce", "reduce_scatter") and kernel.dtype not in api.DATA_TYPE:
        return f"{kernel.describe()}: NCCL does not add or compare {kernel.dtype}"
    return ""


def _send(address: int, nbytes: int, peer: int) -> list[NcclCall]:
    return [NcclCall("ncclSend", (address, nbytes, api.BYTE, peer))] if nbytes else []


def _receive(address: int, nbytes: int, peer: int) -> list[NcclCall]:
    return [NcclCall("ncclRecv", (address, nbytes, api.BYTE, peer))] if nbytes else []


def _exchange(kernel: CommunicationKernel, operands: Sequence[int], results: Sequence[int]) -> list[NcclCall]:
    size = DTYPES[kernel.dtype].itemsize
    calls: list[NcclCall] = []
    for m in in_order(kernel.sends):
        calls += _send(operands[m.buffer], kernel.operands[m.buffer] * size, m.peer)
    for m in in_order(kernel.receives):
        calls += _receive(results[m.buffer], kernel.results[m.buffer] * size, m.peer)
    return calls


def _parts(kernel: CommunicationKernel, address: int) -> Iterator[tuple[int, int, int]]:
    """Per member its position, the address of its part, and elements."""
    size = DTYPES[kernel.dtype].itemsize
    ends = accumulate(kernel.counts)
    for position, (end, count) in enumerate(zip(ends, kernel.counts, strict=True)):
        yield position, address + (end - count) * size, count


def _all_gather(kernel: CommunicationKernel, own: int, whole: int) -> list[NcclCall]:
    """One call for equal pieces; else every member sends its piece to all, itself included."""
    size, count = DTYPES[kernel.dtype].itemsize, kernel.counts[kernel.position]
    if len(set(kernel.counts)) == 1:
        return [NcclCall("ncclAllGather", (own, whole, count * size, api.BYTE))] if count else []
    calls: list[NcclCall] = []
    for position, address, elements in _parts(kernel, whole):
        calls += _send(own, count * size, position)
        calls += _receive(address, elements * size, position)
    return calls


def _reduce_scatter(kernel: CommunicationKernel, whole: int, own: int) -> list[NcclCall]:
    """One call for equal parts; else one reduction to every member."""
    dtype, op, count = api.DATA_TYPE[kernel.dtype], api.REDUCTION["sum"], kernel.counts[kernel.position]
    if len(set(kernel.counts)) == 1:
        return [NcclCall("ncclReduceScatter", (whole, own, count, dtype, op))] if count else []
    return [
        NcclCall(
            "ncclReduce", (address, own if position == kernel.position else 0, elements, dtype, op, position)
        )
        for position, address, elements in _parts(kernel, whole)
        if elements
    ]


#: seconds that waits spend looking again and again before they sleep in between, and then for which share of
#: the time waited so far: a wait is at most so much longer than what it waits for
SPIN_S, SLEEP_SHARE = 2e-3, 0.02
#: seconds that giving a communicator up may take, and that peers have to close theirs as well
ABORT_S, CLOSE_S = 1.0, 5.0

Group = tuple[int, ...]


class HostRanks(Communicator[Array], Protocol):
    """The same ranks between host memory, as processes that can be looked at."""

    def state_of(self, peer: int) -> str:
        """Describe the process of a rank in a few words."""
        ...


class Queued:
    """See `PendingCommunication`: it runs when the stream comes to it."""

    def advance(self) -> bool:
        return True

    def finish(self) -> None:
        """See `PendingCommunication.finish`; whoever waits for the stream waits for it."""


class NcclCommunicator:
    """This rank's end of a world of GPUs, for one loaded plan; a `Communicator` between `cuda` memory.

    host: hands around what NCCL needs to find the ranks, and knows which of them still live; it stays the
        caller's. kernels: the communications of this rank's plan, in their order. gpu: text that no other GPU
        has, such as its UUID. library: what `open_nccl` gives.

    Opening is a collective of all ranks. One communicator of NCCL is made for the world and one per group of
    ranks, for this plan alone, so that plans that run side by side never share one. The GPU's context must
    be current, also in `start`. Raises `DeviceMissingError` without NCCL, `DisagreementError` on all ranks
    alike where the plans would hang or two ranks have one GPU, `CommunicationError` where ranks do not come
    within the timeout.
    """

    space: Literal["cuda"] = "cuda"
    #: whether `start` is legal while its stream is captured
    capturable = True

    def __init__(
        self, host: HostRanks, kernels: Sequence[CommunicationKernel], gpu: str, *, library: Any = None
    ) -> None:
        self._host = host
        self.rank, self.size = host.rank, host.size
        self._nccl = Nccl(self.rank, library)
        self._handles: dict[Group, ctypes.c_void_p] = {}
        self._broken = ""
        self._closed = False
        self._peers = sorted({peer for k in kernels for peer in k.peers})
        for kernel in kernels:
            self._check(kernel, kernel.describe())
        try:
            self._open_groups(self._compare(kernels, gpu))
        except BaseException as error:
            self._give_up(str(error))
            raise

    @property
    def timeout_s(self) -> float:
        """See `Communicator.timeout_s`: that of the host."""
        return self._host.timeout_s

    # Opening

    def _compare(self, kernels: Sequence[CommunicationKernel], gpu: str) -> list[Group]:
        """The groups of all ranks, in one order; raises `DisagreementError`."""
        own = RankProgram(self.rank, self.size, {}, kernels).to_text()
        texts = self._host.gather_texts(json.dumps([gpu, own]), doing="comparing programs of GPUs")
        given = [json.loads(text) for text in texts]
        gpus = [name for name, _ in given]
        for rank, name in enumerate(gpus):
            if gpus.index(name) != rank:
                raise DisagreementError(
                    f"ranks {gpus.index(name)} and {rank} have the same GPU ({name}), NCCL takes one rank "
                    f"per GPU: {self.size} ranks have {len(set(gpus))} GPUs"
                )
        programs = [RankProgram.from_text(text) for _, text in given]
        faults = (reason_against(k) for p in programs for k in p.sequence)
        fault = next((f for f in faults if f), None) or next(find_stuck(programs), None)
        if fault:
            raise DisagreementError(fault)
        return sorted({self._group(k) for p in programs for k in p.sequence})

    def _group(self, kernel: CommunicationKernel) -> Group:
        """Whose communicator a kernel uses; a member that is alone sends to itself."""
        return kernel.members if len(kernel.members) > 1 else tuple(range(self.size))

    def _open_groups(self, groups: Sequence[Group]) -> None:
        """Every rank opens its groups in one order, so that none waits for another one's later group."""
        ids = [(group, self._nccl.unique_id()) for group in groups if group[0] == self.rank]
        texts = self._host.gather_texts(json.dumps(ids), doing="handing around the ids of NCCL")
        given = {tuple(group): unique for text in texts for group, unique in json.loads(text)}
        for group in groups:
            if self.rank in group:
                doing = f"connecting the GPUs of ranks {_listed(group)}"
                position = group.index(self.rank)
                handle = self._nccl.begin_joining(given[group], len(group), position, doing)
                self._handles[group] = handle
                self._settle(handle, "ncclCommInitRankConfig", doing, group)

    # Communications

    def start(
        self,
        kernel: CommunicationKernel,
        operands: Sequence[int],
        results: Sequence[int],
        *,
        doing: str,
        stream: int = 0,
    ) -> Queued:
        """See `Communicator.start`: queue it on `stream`; operands and results are addresses."""
        self._check_usable(doing)
        self._check(kernel, doing)
        handle = self._handles.get(self._group(kernel))
        if handle is None:
            raise InputError(f"rank {self.rank}: {doing}: no communicator was opened for {kernel.describe()}")
        calls = calls_of(kernel, operands, results, self.rank)
        if calls:
            work = f"{doing}, {kernel.describe()}"
            with self._failing():
                self._issue(calls, handle, stream, work)
                self._settle(handle, calls[0].function, work, kernel.peers)
        return Queued()

    def _check(self, kernel: CommunicationKernel, doing: str) -> None:
        if max(kernel.peers, default=0) >= self.size or kernel.rank not in (None, self.rank):
            raise InputError(f"rank {self.rank} of {self.size}: {doing}: it is for another rank")

    def _issue(self, calls: Sequence[NcclCall], handle: ctypes.c_void_p, stream: int, doing: str) -> None:
        """All calls as one group, which runs as one."""
        nccl, queue = self._nccl, ctypes.c_void_p(stream)
        nccl.call("ncclGroupStart", doing=doing)
        try:
            for call in calls:
                nccl.call(call.function, *call.arguments, handle, queue, doing=doing, handle=handle)
        except BaseException:
            # The failure is the news, and what the end of the group says could only repeat it.
            with suppress(CommunicationError):
                nccl.call("ncclGroupEnd", doing=doing)
            raise
        nccl.call("ncclGroupEnd", doing=doing, handle=handle)

    # Waiting

    def wait(self, done: Callable[[], bool], *, doing: str) -> None:
        """Wait for work on a stream in which this rank communicates: until `done()` says so.

        Raises `PeerFailedError` where a peer failed or is gone, `CommunicationError` where NCCL reports a
        failure or where it takes longer than the timeout. All work of NCCL is then aborted, so that the
        stream ends, with results that mean nothing.
        """
        self._check_usable(doing)
        with self._failing():
            for waited_s in self._polls(doing, self._peers, done):
                if waited_s > self.timeout_s:
                    raise CommunicationError(
                        f"rank {self.rank}: {doing}: waited {waited_s:.1f} s for communication with "
                        f"{self._states(self._peers)}"
                    )

    def _settle(
        self,
        handle: ctypes.c_void_p,
        function: str,
        doing: str,
        members: Sequence[int],
        timeout_s: float | None = None,
    ) -> None:
        """Wait for the end of a call that was accepted."""
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        peers = [peer for peer in members if peer != self.rank]

        def done() -> bool:
            status = self._nccl.status(handle, doing)
            self._nccl.check(function, status, doing, handle)
            return status != api.IN_PROGRESS

        for waited_s in self._polls(doing, peers, done):
            if waited_s > limit_s:
                raise CommunicationError(
                    f"rank {self.rank}: {doing}: waited {waited_s:.1f} s in {function} for "
                    f"{self._states(peers)}"
                )

    def _polls(self, doing: str, peers: Sequence[int], done: Callable[[], bool]) -> Iterator[float]:
        """Seconds waited so far, again and again until `done`; looks after peers and NCCL now and then."""
        begin = checked = time.monotonic()
        while not done():
            now = time.monotonic()
            if now - checked > CHECK_S:
                checked = now
                self.check_peers(peers, doing=doing)
                for handle in self._handles.values():
                    self._nccl.check("communication", self._nccl.status(handle, doing), doing, handle)
            waited_s = now - begin
            yield waited_s
            if waited_s > SPIN_S:
                time.sleep(min(SLEEP_SHARE * waited_s, LONGEST_SLEEP_S))

    def _states(self, peers: Sequence[int]) -> str:
        return "; ".join(f"rank {peer}, {self._host.state_of(peer)}" for peer in peers) or "no other rank"

    # The world

    def gather_texts(self, text: str, *, doing: str) -> list[str]:
        return self._host.gather_texts(text, doing=doing)

    def check_peers(self, peers: Sequence[int], *, doing: str) -> None:
        self._host.check_peers(peers, doing=doing)

    def fail(self, reason: str) -> None:
        self._give_up(reason)
        self._host.fail(reason)

    def close(self) -> None:
        """See `Communicator.close`. Graphs that were captured with it must be destroyed before."""
        if self._closed:
            return
        self._closed = True
        doing = "closing the world of GPUs"
        for group, handle in sorted(self._handles.items()):
            try:
                self._nccl.call("ncclCommFinalize", handle, doing=doing, handle=handle)
                self._settle(handle, "ncclCommFinalize", doing, group, min(CLOSE_S, self.timeout_s))
                self._nccl.call("ncclCommDestroy", handle, doing=doing)
            except CommunicationError as error:
                # Whoever closes has its results; peers that are gone are no failure any more.
                self._give_up(str(error))
                return
            del self._handles[group]

    @property
    def broken(self) -> bool:
        """True where a communication failed, so that no more can follow."""
        return bool(self._broken)

    def _check_usable(self, doing: str) -> None:
        if self._broken or self._closed:
            why = f"communication failed before: {self._broken}" if self._broken else "it was closed"
            raise CommunicationError(f"rank {self.rank}: {doing}: {why}")

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """End all communication where something fails inside, here and (by the host) on the other ranks."""
        try:
            yield
        except BaseException as error:
            self.fail(str(error) or type(error).__name__)
            raise

    def _give_up(self, reason: str) -> None:
        """Abort what runs on the device.

        On a thread of its own: NCCL tells the device to stop at once, but returns only when all graphs that
        hold its work are destroyed.
        """
        self._broken = self._broken or reason
        handles = [self._handles.pop(group) for group in sorted(self._handles)]
        threads = [
            threading.Thread(target=self._nccl.abort, args=(handle,), daemon=True) for handle in handles
        ]
        for thread in threads:
            thread.start()
        end = time.monotonic() + ABORT_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks))
