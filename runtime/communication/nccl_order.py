"""A check that the programs of all ranks can run on streams: one communication ends before the next begins.

Host transports keep what was sent until it is asked for, and tell messages apart by their tags. Between GPUs
a message meets its receiver or waits, and messages of two ranks meet in the order of their launches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tilewright.runtime.communication.agreement import RankProgram
from tilewright.runtime.plan.communication_kernel import CommunicationKernel, Message

#: peer -> what is left of a communication with it: tags, elements, type
_Left = dict[int, deque[tuple[int, int, str]]]


def in_order(messages: Sequence[Message]) -> list[Message]:
    """The messages of one exchange as both ends of each pair list them: by peer, then by tag."""
    return sorted(messages, key=lambda m: (m.peer, m.tag))


def find_stuck(programs: Sequence[RankProgram]) -> Iterator[str]:
    """Why programs, listed by rank, would wait for ever or mix up messages on streams; one fault at most."""
    ranks = [_Rank(deque(p.sequence)) for p in programs]
    moved = True
    while moved:
        moved = False
        for number, rank in enumerate(ranks):
            fault = _deliver(number, rank, ranks)
            if isinstance(fault, str):
                yield fault
                return
            moved = moved or fault or _end_collective(number, rank, ranks)
    waiting = [f"rank {i} in {r.head.describe()}" for i, r in enumerate(ranks) if r.head is not None]
    if waiting:
        yield (
            "between GPUs every communication ends before the next of its rank begins, and so the ranks "
            f"would wait for one another: {'; '.join(waiting)}"
        )


@dataclass
class _Rank:
    """The position of one rank in its program."""

    left: deque[CommunicationKernel]
    sends: _Left = field(default_factory=dict)
    receives: _Left = field(default_factory=dict)
    head: CommunicationKernel | None = None

    def __post_init__(self) -> None:
        self.go_on()

    def go_on(self) -> None:
        """Begin the next communication."""
        self.head = self.left.popleft() if self.left else None
        head = self.head
        if head is not None:
            self.sends = _by_peer(head.sends, head.operands, head.dtype)
            self.receives = _by_peer(head.receives, head.results, head.dtype)


def _by_peer(messages: Sequence[Message], sizes: Sequence[int], dtype: str) -> _Left:
    left: _Left = {}
    for m in in_order(messages):
        if sizes[m.buffer]:
            left.setdefault(m.peer, deque()).append((m.tag, sizes[m.buffer], dtype))
    return left


def _deliver(number: int, rank: _Rank, ranks: Sequence[_Rank]) -> bool | str:
    """Hand over what this rank sends and its peers await now; whether anything moved, or what is wrong."""
    if rank.head is None or rank.head.kind != "exchange":
        return False
    moved = False
    for peer, messages in rank.sends.items():
        awaited = ranks[peer].receives.get(number, deque())
        while messages and awaited:
            if messages[0] != awaited[0]:
                return (
                    f"between GPUs messages meet in the order of their launches: rank {number} sends "
                    f"{_told(messages[0])} where rank {peer} expects {_told(awaited[0])}"
                )
            messages.popleft()
            awaited.popleft()
            moved = True
    if not any(rank.sends.values()) and not any(rank.receives.values()):
        rank.go_on()
        return True
    return moved


def _told(message: tuple[int, int, str]) -> str:
    tag, count, dtype = message
    return f"{count} elements of {dtype} with tag {tag}"


def _end_collective(number: int, rank: _Rank, ranks: Sequence[_Rank]) -> bool:
    head = rank.head
    if head is None or head.kind == "exchange":
        return False
    heads = [ranks[m].head for m in head.members]
    if not all(h is not None and h.members == head.members and h.kind == head.kind for h in heads):
        return False
    for m in head.members:
        ranks[m].go_on()
    return True
