"""Which calls of NCCL one communication is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from tilewright.runtime.communication import nccl_api as api
from tilewright.runtime.communication.nccl_order import in_order
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.plan.communication_kernel import CommunicationKernel


@dataclass(frozen=True)
class Call:
    """A function of NCCL and its arguments before communicator and stream."""

    function: str
    arguments: tuple[int, ...]


def calls_of(
    kernel: CommunicationKernel, operands: Sequence[int], results: Sequence[int], rank: int
) -> list[Call]:
    """What this rank calls, as one group; nothing where nothing is to be moved.

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
    return [Call("ncclAllReduce", (operands[0], results[0], count, dtype, op))] if count else []


def reason_against(kernel: CommunicationKernel) -> str:
    """Why NCCL cannot do it, or nothing."""
    if kernel.kind in ("all_reduce", "reduce_scatter") and kernel.dtype not in api.DATA_TYPE:
        return f"{kernel.describe()}: NCCL does not add or compare {kernel.dtype}"
    return ""


def _send(address: int, nbytes: int, peer: int) -> list[Call]:
    return [Call("ncclSend", (address, nbytes, api.BYTE, peer))] if nbytes else []


def _receive(address: int, nbytes: int, peer: int) -> list[Call]:
    return [Call("ncclRecv", (address, nbytes, api.BYTE, peer))] if nbytes else []


def _exchange(kernel: CommunicationKernel, operands: Sequence[int], results: Sequence[int]) -> list[Call]:
    size = DTYPES[kernel.dtype].itemsize
    calls: list[Call] = []
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


def _all_gather(kernel: CommunicationKernel, own: int, whole: int) -> list[Call]:
    """One call for equal pieces; else every member sends its piece to all, itself included."""
    size, count = DTYPES[kernel.dtype].itemsize, kernel.counts[kernel.position]
    if len(set(kernel.counts)) == 1:
        return [Call("ncclAllGather", (own, whole, count * size, api.BYTE))] if count else []
    calls: list[Call] = []
    for position, address, elements in _parts(kernel, whole):
        calls += _send(own, count * size, position)
        calls += _receive(address, elements * size, position)
    return calls


def _reduce_scatter(kernel: CommunicationKernel, whole: int, own: int) -> list[Call]:
    """One call for equal parts; else one reduction to every member."""
    dtype, op, count = api.DATA_TYPE[kernel.dtype], api.REDUCTION["sum"], kernel.counts[kernel.position]
    if len(set(kernel.counts)) == 1:
        return [Call("ncclReduceScatter", (whole, own, count, dtype, op))] if count else []
    return [
        Call(
            "ncclReduce", (address, own if position == kernel.position else 0, elements, dtype, op, position)
        )
        for position, address, elements in _parts(kernel, whole)
        if elements
    ]
