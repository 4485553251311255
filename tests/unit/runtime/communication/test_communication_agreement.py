"""What ranks compare before they run, and the order of communications in plans."""

from dataclasses import replace

import pytest

from tilewright.runtime.communication.agreement import RankProgram, find_disagreements
from tilewright.runtime.plan.communication_kernel import CommunicationKernel, Message

FACTS = {"network": "abc", "precision": "fp32"}


def send(to: int, tag: int = 0, count: int = 4) -> CommunicationKernel:
    return CommunicationKernel("exchange", "float32", (count,), (), (Message(to, tag, 0),))


def receive(source: int, tag: int = 0, count: int = 4) -> CommunicationKernel:
    return CommunicationKernel("exchange", "float32", (), (count,), (), (Message(source, tag, 0),))


def gather(rank: int, counts: tuple[int, ...] = (1, 2)) -> CommunicationKernel:
    return CommunicationKernel(
        "all_gather", "float32", (counts[rank],), (sum(counts),), members=(0, 1), position=rank, counts=counts
    )


def faults(*sequences: list[CommunicationKernel]) -> list[str]:
    programs = [RankProgram(r, len(sequences), FACTS, s) for r, s in enumerate(sequences)]
    assert [RankProgram.from_text(p.to_text()) for p in programs] == programs
    return list(find_disagreements(programs))


def test_programs_that_meet() -> None:
    assert faults([send(1), receive(1), gather(0)], [send(0), receive(0), gather(1)]) == []
    assert faults([send(1, 1), send(1, 2)], [receive(0, 2), receive(0, 1)]) == []
    assert faults([], []) == []


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([send(1)], [], "rank 0 sends a message with tag 0 that rank 1 never receives"),
        ([receive(1)], [], "wait for one another: rank 0 in communication 0, exchange from 1"),
        ([receive(1), send(1)], [receive(0), send(0)], "wait for one another"),
        ([send(1, 0, 5)], [receive(0)], "rank 0 sends 5 elements of float32 with tag 0, where rank 1 "),
        ([gather(0)], [], "rank 0 waits in all_gather among ranks 0, 1 for rank 1, which has no more to do"),
        ([gather(0)], [gather(1, (1, 3))], "elements of float32"),
        ([gather(0)], [gather(0)], "rank 1 runs the program of rank 0"),
        ([send(2)], [], "rank 0 communicates with rank 2; there are 2 ranks"),
        ([gather(0), receive(1)], [send(0), replace(gather(1), members=(1, 0), position=0, counts=(2, 1))],
         "all_gather among ranks"),
    ],
)  # fmt: skip
def test_programs_that_do_not(
    first: list[CommunicationKernel], second: list[CommunicationKernel], message: str
) -> None:
    assert message in "; ".join(faults(first, second))


def test_the_odd_one_is_named() -> None:
    programs = [RankProgram(r, 4, FACTS, []) for r in range(4)]
    programs[2] = replace(programs[2], facts={**FACTS, "network": "def"})
    assert next(find_disagreements(programs)) == (
        "rank 2 runs another program: its network is def, that of rank 0, 1, 3 is abc"
    )
    programs[2] = RankProgram(2, 3, FACTS, [])
    assert "its world size is 3" in next(find_disagreements(programs))
