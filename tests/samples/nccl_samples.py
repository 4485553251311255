"""A stand-in for libnccl: ranks are threads, GPU memory is host memory, calls are noted and carried out."""
# ruff: noqa: N802 - the functions have the names of the library's

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.runtime.communication import nccl_api as api

TYPES = {
    0: np.int8, 1: np.uint8, 2: np.int32, 3: np.uint32, 4: np.int64, 5: np.uint64, 6: np.float16,
    7: np.float32, 8: np.float64, 9: ml_dtypes.bfloat16,
}  # fmt: skip


def at(address: int, count: int, dtype: Any) -> np.ndarray:
    """Host memory as an array."""
    raw = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(raw, np.uint8).view(dtype)


class Fabric:
    """What connects the stand-ins of all ranks."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.joined: dict[bytes, set[int]] = defaultdict(set)
        self.mail: dict[Any, deque[tuple[Operation, int, int]]] = defaultdict(deque)
        self.met: dict[Any, dict[int, Operation]] = defaultdict(dict)
        self.unique = 0


class Operation:
    """One call within a group: what is left to be done is counted."""

    def __init__(self, function: str, arguments: tuple[Any, ...]) -> None:
        self.function, self.arguments, self.left = function, arguments, 1


class Comm:
    def __init__(self, unique: bytes, size: int, rank: int) -> None:
        self.unique, self.size, self.rank = unique, size, rank
        self.under_way: list[Operation] = []
        self.sequence = 0
        self.status = 0
        self.gone = ""


class FakeNccl:
    """The library as one rank sees it. `log` has function names and plain arguments.

    fail: results by function name, given instead of carrying the call out. stuck: functions that are accepted
    and never end.
    """

    def __init__(self, fabric: Fabric, *, version: int = 22809) -> None:
        self.fabric, self.version = fabric, version
        self.log: list[tuple[Any, ...]] = []
        self.comms: list[Comm] = []
        self.fail: dict[str, int] = {}
        self.stuck: set[str] = set()
        self.group: list[tuple[Operation, Comm]] | None = None

    def names(self) -> list[str]:
        return [entry[0] for entry in self.log]

    def _answer(self, function: str, *arguments: Any) -> int:
        self.log.append((function, *arguments))
        return self.fail.get(function, 0)

    def _comm(self, handle: ctypes.c_void_p) -> Comm:
        assert handle.value is not None
        comm = self.comms[handle.value - 1]
        assert not comm.gone, f"used after {comm.gone}"
        return comm

    # Opening and closing

    def ncclGetVersion(self, version: Any) -> int:
        version._obj.value = self.version
        return self.fail.get("ncclGetVersion", 0)

    def ncclGetErrorString(self, status: int) -> bytes:
        return f"text of {status}".encode()

    def ncclGetLastError(self, handle: Any) -> bytes:
        return b"last words"

    def ncclGetUniqueId(self, unique: Any) -> int:
        with self.fabric.lock:
            self.fabric.unique += 1
            unique._obj.internal[0] = self.fabric.unique
        return self._answer("ncclGetUniqueId")

    def ncclCommInitRankConfig(
        self, handle: Any, size: int, unique: api.UniqueId, rank: int, config: Any
    ) -> int:
        config = config._obj
        assert (config.size, config.magic, config.blocking) == (ctypes.sizeof(config), 0xCAFEBEEF, 0)
        assert config.min_ctas == config.split_share == -(1 << 31)
        if status := self._answer("ncclCommInitRankConfig", size, rank):
            return status
        self.comms.append(Comm(bytes(unique.internal), size, rank))
        handle._obj.value = len(self.comms)
        with self.fabric.lock:
            self.fabric.joined[self.comms[-1].unique].add(rank)
        return api.IN_PROGRESS

    def ncclCommGetAsyncError(self, handle: ctypes.c_void_p, status: Any) -> int:
        comm = self._comm(handle)
        with self.fabric.lock:
            ready = len(self.fabric.joined[comm.unique]) == comm.size
            comm.under_way = [o for o in comm.under_way if o.left]
            busy = not ready or comm.under_way or "ncclCommInitRankConfig" in self.stuck
        status._obj.value = comm.status or (api.IN_PROGRESS if busy else 0)
        return self.fail.get("ncclCommGetAsyncError", 0)

    def ncclCommFinalize(self, handle: ctypes.c_void_p) -> int:
        self._comm(handle)
        return self._answer("ncclCommFinalize", handle.value)

    def ncclCommDestroy(self, handle: ctypes.c_void_p) -> int:
        self._comm(handle).gone = "ncclCommDestroy"
        return self._answer("ncclCommDestroy", handle.value)

    def ncclCommAbort(self, handle: ctypes.c_void_p) -> int:
        self._comm(handle).gone = "ncclCommAbort"
        return self._answer("ncclCommAbort", handle.value)

    # Communication

    def ncclGroupStart(self) -> int:
        assert self.group is None
        self.group = []
        return self._answer("ncclGroupStart")

    def ncclGroupEnd(self) -> int:
        assert self.group is not None
        group, self.group = self.group, None
        if status := self._answer("ncclGroupEnd"):
            return status
        with self.fabric.lock:
            for operation, comm in group:
                comm.under_way.append(operation)
                if operation.function not in self.stuck:
                    self._post(operation, comm)
        return api.IN_PROGRESS

    def __getattr__(self, function: str) -> Any:
        if not function.startswith("nccl"):
            raise AttributeError(function)

        def call(*arguments: Any) -> int:
            *plain, handle, stream = arguments
            assert self.group is not None, "every call is part of a group"
            if status := self._answer(function, *plain, handle.value, stream.value):
                return status
            self.group.append((Operation(function, tuple(plain)), self._comm(handle)))
            return 0

        return call

    def _post(self, operation: Operation, comm: Comm) -> None:
        if operation.function in ("ncclSend", "ncclRecv"):
            self._post_message(operation, comm)
            return
        key = comm.unique, comm.sequence
        comm.sequence += 1
        self.fabric.met[key][comm.rank] = operation
        if len(self.fabric.met[key]) == comm.size:
            found = [self.fabric.met[key][rank] for rank in range(comm.size)]
            assert len({o.function for o in found}) == 1
            COLLECTIVES[operation.function]([o.arguments for o in found])
            for o in found:
                o.left = 0

    def _post_message(self, operation: Operation, comm: Comm) -> None:
        address, count, dtype, peer = operation.arguments
        assert dtype == api.BYTE
        sending = operation.function == "ncclSend"
        path = (comm.unique, comm.rank, peer) if sending else (comm.unique, peer, comm.rank)
        other = self.fabric.mail[(*path, not sending)]
        if not other:
            self.fabric.mail[(*path, sending)].append((operation, address, count))
            return
        met, place, size = other.popleft()
        assert size == count
        source, target = (address, place) if sending else (place, address)
        ctypes.memmove(target, source, count)
        operation.left = met.left = 0


def _all_gather(calls: list[tuple[Any, ...]]) -> None:
    parts = [at(own, count, TYPES[dtype]).copy() for own, _, count, dtype in calls]
    for _, whole, count, dtype in calls:
        at(whole, count * len(calls), TYPES[dtype])[...] = np.concatenate(parts)


def _reduced(calls: list[tuple[Any, ...]], op: int) -> np.ndarray:
    parts = [at(own, count, TYPES[dtype]).copy() for own, count, dtype in calls]
    return np.maximum.reduce(parts) if op == api.REDUCTION["max"] else np.add.reduce(parts)


def _all_reduce(calls: list[tuple[Any, ...]]) -> None:
    total = _reduced([(own, count, dtype) for own, _, count, dtype, _ in calls], calls[0][-1])
    for _, result, count, dtype, _ in calls:
        at(result, count, TYPES[dtype])[...] = total


def _reduce_scatter(calls: list[tuple[Any, ...]]) -> None:
    size = len(calls)
    total = _reduced([(own, count * size, dtype) for own, _, count, dtype, _ in calls], calls[0][-1])
    for rank, (_, result, count, dtype, _) in enumerate(calls):
        at(result, count, TYPES[dtype])[...] = total[rank * count : (rank + 1) * count]


def _reduce(calls: list[tuple[Any, ...]]) -> None:
    total = _reduced([(own, count, dtype) for own, _, count, dtype, _, _ in calls], calls[0][4])
    root = calls[0][5]
    for rank, (_, result, count, dtype, _, _) in enumerate(calls):
        assert (result != 0) == (rank == root)
        if rank == root:
            at(result, count, TYPES[dtype])[...] = total


COLLECTIVES: dict[str, Callable[[list[tuple[Any, ...]]], None]] = {
    "ncclAllGather": _all_gather,
    "ncclAllReduce": _all_reduce,
    "ncclReduceScatter": _reduce_scatter,
    "ncclReduce": _reduce,
}
