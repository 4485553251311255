"""Communication kernels: JSON round trip and what is refused."""

import dataclasses
import json

import pytest

from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.communication_kernel import CommunicationKernel, Message

EXCHANGE = CommunicationKernel(
    "exchange", "float32", (6, 4), (5,), (Message(0, 3, 0), Message(2, 3, 1)), (Message(2, 4, 0),)
)
GATHER = CommunicationKernel(
    "all_gather", "float16", (2,), (5,), members=(4, 1, 3), position=1, counts=(3, 2, 0)
)
REDUCE = CommunicationKernel("all_reduce", "int32", (7,), (7,), members=(0, 1), position=1, reduction="max")
SCATTER = CommunicationKernel("reduce_scatter", "float64", (5,), (3,), members=(0, 1), counts=(3, 2))


@pytest.mark.parametrize("kernel", [EXCHANGE, GATHER, REDUCE, SCATTER], ids=lambda k: k.kind)
def test_json_round_trip(kernel: CommunicationKernel) -> None:
    assert CommunicationKernel.from_json(kernel.to_json()) == kernel


def test_what_a_launch_needs() -> None:
    assert EXCHANGE.writes == (2,)
    assert EXCHANGE.peers == (0, 2)
    assert EXCHANGE.rank is None
    assert EXCHANGE.describe() == "exchange to 0, 2 and from 2"
    assert EXCHANGE.bytes_moved == 40
    assert (GATHER.rank, GATHER.peers, GATHER.bytes_moved) == (1, (3, 4), 6)
    assert GATHER.describe() == "all_gather among ranks 4, 1, 3"
    assert REDUCE.bytes_moved == 28
    assert SCATTER.bytes_moved == 24


@pytest.mark.parametrize(
    ("kernel", "changes", "message"),
    [
        (EXCHANGE, {"kind": "all_to_all"}, "expected a kind among exchange"),
        (EXCHANGE, {"dtype": "float80"}, "unknown element type"),
        (EXCHANGE, {"members": (0, 1)}, "no members"),
        (EXCHANGE, {"sends": (), "operands": (), "receives": (), "results": ()}, "expected a message"),
        (EXCHANGE, {"sends": (Message(0, 3, 0),)}, "part of a send"),
        (EXCHANGE, {"receives": (Message(2, -1, 0),)}, "a tag up to"),
        (EXCHANGE, {"receives": (Message(2, 1, 0), Message(1, 1, 0))}, "received twice"),
        (EXCHANGE, {"operands": (6, -4)}, "numbers of elements"),
        (GATHER, {"results": (6,)}, "expected operands and results"),
        (GATHER, {"counts": (3, 2)}, "a count per member"),
        (GATHER, {"members": (4, 1, 4)}, "distinct ranks"),
        (GATHER, {"position": 3}, "a position among 3 members"),
        (GATHER, {"reduction": "max"}, "expected the reduction sum"),
        (REDUCE, {"results": (8,)}, "as many elements"),
        (REDUCE, {"reduction": "mean"}, "sum, max"),
        (REDUCE, {"sends": (Message(0, 0, 0),)}, "no sends"),
        (SCATTER, {"dtype": "bool"}, "expected numbers to add"),
    ],
)
def test_faults_are_named(kernel: CommunicationKernel, changes: dict[str, object], message: str) -> None:
    wrong = dataclasses.replace(kernel, **changes)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        CommunicationKernel.from_json(wrong.to_json())


def test_reading_trusts_nothing() -> None:
    data = json.loads(GATHER.to_json())
    for key, value in (("counts", "3"), ("operands", [2.0]), ("sends", [[0]]), ("extra", 1)):
        with pytest.raises(InputError, match="the communication kernel"):
            CommunicationKernel.from_json(json.dumps({**data, key: value}))
