"""Before they run, all ranks compare what they are about to run: one program, and messages that meet.

Every rank sees the same descriptions and decides by itself, so all raise the same error.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.errors import DisagreementError
from tilewright.runtime.plan.communication_kernel import CommunicationKernel
from tilewright.runtime.plan.execution_plan import ExecutionPlan


@dataclass(frozen=True)
class RankProgram:
    """The program that one rank is about to run.

    facts: what must be the same on all ranks, by name (network, passes, precision, ...). sequence: its
    communications in the order of its plan.
    """

    rank: int
    size: int
    facts: Mapping[str, str]
    sequence: Sequence[CommunicationKernel]

    def to_text(self) -> str:
        """JSON for the other ranks; equal communications are written once."""
        texts = [k.to_json() for k in self.sequence]
        distinct = list(dict.fromkeys(texts))
        number = {text: i for i, text in enumerate(distinct)}
        return json.dumps([self.rank, self.size, dict(self.facts), distinct, [number[t] for t in texts]])

    @staticmethod
    def from_text(text: str) -> RankProgram:
        """Read `to_text`."""
        rank, size, facts, distinct, order = json.loads(text)
        kernels = list(map(CommunicationKernel.from_json, distinct))
        return RankProgram(rank, size, facts, [kernels[i] for i in order])


def communications(plan: ExecutionPlan) -> dict[int, CommunicationKernel]:
    """The communication kernels of a plan by the launches that run them, in their order."""
    kernels = {
        k.name: CommunicationKernel.from_json(k.source) for k in plan.kernels if k.language == "communication"
    }
    return {i: kernels[x.kernel] for i, x in enumerate(plan.launches) if x.kernel in kernels}


def agree(communicator: AnyCommunicator, facts: Mapping[str, str], plan: ExecutionPlan) -> None:
    """Compare the programs of all ranks; a collective of the world.

    Raises the same `DisagreementError` on all ranks where they do not belong together, and
    `CommunicationError` where ranks do not come.
    """
    program = RankProgram(communicator.rank, communicator.size, facts, list(communications(plan).values()))
    texts = communicator.gather_texts(program.to_text(), doing="comparing programs")
    fault = next(find_disagreements(list(map(RankProgram.from_text, texts))), None)
    if fault is not None:
        raise DisagreementError(fault)


def find_disagreements(programs: Sequence[RankProgram]) -> Iterator[str]:
    """Why programs, listed by rank, cannot run together; the plainest reason first."""
    yield from _other_facts(programs)
    for position, program in enumerate(programs):
        for kernel in program.sequence:
            if kernel.rank not in (None, position):
                yield f"rank {position} runs the program of rank {kernel.rank}: {kernel.describe()}"
            if max(kernel.peers, default=0) >= len(programs):
                most = max(kernel.peers)
                yield f"rank {position} communicates with rank {most}; there are {len(programs)} ranks"
    yield from _deadlock(programs)


def _other_facts(programs: Sequence[RankProgram]) -> Iterator[str]:
    """Yield facts in which the ranks differ, each with the ranks of the minority."""
    names = dict.fromkeys(name for p in programs for name in ("world size", *p.facts))
    for name in names:
        values = [str(p.size) if name == "world size" else p.facts.get(name, "nothing") for p in programs]
        counts = Counter(values)
        if len(counts) == 1:
            continue
        usual = next(value for value in values if counts[value] == max(counts.values()))
        odd = next(i for i, value in enumerate(values) if value != usual)
        same = ", ".join(str(i) for i, value in enumerate(values) if value == usual)
        yield (
            f"rank {odd} runs another program: its {name} is {values[odd]:.100}, "
            f"that of rank {same} is {usual:.100}"
        )


class _Meeting:
    """All ranks' communications, each ended before the next begins; what is sent waits for its receiver."""

    def __init__(self, programs: Sequence[RankProgram]) -> None:
        self.left = [deque(p.sequence) for p in programs]
        self.done = [0] * len(programs)
        self.sent: dict[tuple[int, int, int], deque[tuple[int, str]]] = {}
        self.posted: set[int] = set()  # ranks whose current exchange has sent its messages
        self.fault = ""

    def run(self) -> None:
        """Go on until all have ended, nothing moves, or a fault is found."""
        moved = True
        while moved and not self.fault:
            moved = sum(map(self._advance, range(len(self.left)))) > 0

    def _advance(self, rank: int) -> bool:
        if not self.left[rank] or self.fault:
            return False
        kernel = self.left[rank][0]
        return self._exchange(rank, kernel) if kernel.kind == "exchange" else self._collective(rank, kernel)

    def _exchange(self, rank: int, kernel: CommunicationKernel) -> bool:
        moved = rank not in self.posted
        if moved:
            self.posted.add(rank)
            for m in kernel.sends:
                key = rank, m.peer, m.tag
                self.sent.setdefault(key, deque()).append((kernel.operands[m.buffer], kernel.dtype))
        expected = Counter((m.peer, rank, m.tag) for m in kernel.receives)
        if any(len(self.sent.get(key, ())) < n for key, n in expected.items()):
            return moved
        for m in kernel.receives:
            count, dtype = self.sent[m.peer, rank, m.tag].popleft()
            if (count, dtype) != (kernel.results[m.buffer], kernel.dtype):
                self.fault = (
                    f"rank {m.peer} sends {count} elements of {dtype} with tag {m.tag}, where rank {rank} "
                    f"expects {kernel.results[m.buffer]} of {kernel.dtype}"
                )
        self._end(rank)
        return True

    def _collective(self, rank: int, kernel: CommunicationKernel) -> bool:
        heads = {m: self.left[m][0] if self.left[m] else None for m in kernel.members}
        for m, head in heads.items():
            same_group = head is not None and set(head.members) == set(kernel.members)
            if head is None or (same_group and head.members != kernel.members):
                said = "has no more to do" if head is None else f"does {head.describe()}"
                self.fault = f"rank {rank} waits in {kernel.describe()} for rank {m}, which {said}"
                return False
        ready = [head for head in heads.values() if head is not None and head.members == kernel.members]
        if len(ready) < len(kernel.members):
            return False
        for m, head in zip(kernel.members, ready, strict=True):
            if _shape_of(head) != _shape_of(kernel):
                self.fault = (
                    f"rank {rank} does {kernel.describe()} of {_shape_of(kernel)}, where rank {m} does "
                    f"{head.describe()} of {_shape_of(head)}"
                )
                return False
        for m in kernel.members:
            self._end(m)
        return True

    def _end(self, rank: int) -> None:
        self.left[rank].popleft()
        self.posted.discard(rank)
        self.done[rank] += 1


def _shape_of(k: CommunicationKernel) -> str:
    sizes = k.counts or k.operands
    return f"{', '.join(map(str, sizes))} elements of {k.dtype} ({k.kind}, {k.reduction})"


def _deadlock(programs: Sequence[RankProgram]) -> Iterator[str]:
    meeting = _Meeting(programs)
    meeting.run()
    if meeting.fault:
        yield meeting.fault
        return
    waiting = [rank for rank, left in enumerate(meeting.left) if left]
    if waiting:
        places = "; ".join(
            f"rank {rank} in communication {meeting.done[rank]}, {meeting.left[rank][0].describe()}"
            for rank in waiting
        )
        yield f"the programs of the ranks wait for one another: {places}"
    for (rank, peer, tag), left in meeting.sent.items():
        if left and not waiting:
            yield f"rank {rank} sends a message with tag {tag} that rank {peer} never receives"
