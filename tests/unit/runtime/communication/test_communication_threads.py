"""The world of threads: every kind of communication, orders, waits that end, ranks that fail."""

import threading
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from thread_ranks import ThreadCommunicator, ThreadWorld

from tilewright.runtime.errors import CommunicationError, InputError, PeerFailedError
from tilewright.runtime.plan.communication_kernel import CommunicationKernel, Message

Array = np.ndarray[Any, np.dtype[Any]]


def collective(
    kind: Any, dtype: str, size: int, rank: int, counts: Sequence[int], **more: Any
) -> CommunicationKernel:
    """A collective of all ranks; for all_reduce, `counts` is the number of elements."""
    part, whole = (counts[rank % len(counts)],), (sum(counts),)
    operands, results = {
        "all_gather": (part, whole), "reduce_scatter": (whole, part), "all_reduce": (whole, whole)
    }[kind]  # fmt: skip
    kept = () if kind == "all_reduce" else tuple(counts)
    kernel = CommunicationKernel(
        kind, dtype, operands, results, members=tuple(range(size)), position=rank, counts=kept, **more
    )
    kernel.check()
    return kernel


def run_one(communicator: ThreadCommunicator, kernel: CommunicationKernel, *operands: Array) -> list[Array]:
    results = [np.full(n, 77, operands[0].dtype if operands else kernel.dtype) for n in kernel.results]
    communicator.start(kernel, list(operands), results, doing="test").finish()
    return results


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_all_gather_with_unequal_pieces(dtype: str) -> None:
    counts = (3, 0, 5)
    parts = [
        np.arange(n) % 2 == 0 if dtype == "bool" else np.arange(n) + 10 * r for r, n in enumerate(counts)
    ]
    parts = [p.astype(dtype) for p in parts]

    def work(c: ThreadCommunicator) -> Array:
        return run_one(c, collective("all_gather", dtype, 3, c.rank, counts), parts[c.rank])[0]

    for got in ThreadWorld(3, timeout_s=20).run(work):
        np.testing.assert_array_equal(got, np.concatenate(parts))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_all_reduce_has_the_same_bits_everywhere(dtype: str, reduction: str) -> None:
    rng = np.random.default_rng(0)
    parts = [(100 * rng.standard_normal(7)).astype(dtype) for _ in range(3)]

    def work(c: ThreadCommunicator) -> Array:
        kernel = collective("all_reduce", dtype, 3, c.rank, (7,), reduction=reduction)
        return run_one(c, kernel, parts[c.rank])[0]

    stack = np.stack(parts)
    wanted = stack.max(0) if reduction == "max" else stack.astype(np.float64).sum(0)
    for got in ThreadWorld(3, timeout_s=20).run(work):
        assert got.dtype == np.dtype(dtype)
        np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2e-3 if dtype == "float16" else 1e-5)


def test_half_precision_sums_are_kept_in_float32() -> None:
    # 256 + 1 is 256 in bfloat16: adding one after another in 16 bits would never move.
    parts = [np.full(4, 256, ml_dtypes.bfloat16), *(np.ones(4, ml_dtypes.bfloat16) for _ in range(2))]

    def work(c: ThreadCommunicator) -> Array:
        return run_one(c, collective("all_reduce", "bfloat16", 3, c.rank, (4,)), parts[c.rank])[0]

    for got in ThreadWorld(3, timeout_s=20).run(work):
        np.testing.assert_array_equal(got.astype(np.float32), np.full(4, 258, np.float32))


def test_reduce_scatter_keeps_the_own_part() -> None:
    counts = (2, 0, 3)
    parts = [np.arange(5, dtype=np.float32) * (r + 1) for r in range(3)]

    def work(c: ThreadCommunicator) -> Array:
        return run_one(c, collective("reduce_scatter", "float32", 3, c.rank, counts), parts[c.rank])[0]

    whole = np.arange(5, dtype=np.float32) * 6
    for got, wanted in zip(ThreadWorld(3, timeout_s=20).run(work), np.split(whole, [2, 2]), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_exchanges_overtake_nothing() -> None:
    """Two messages of one tag arrive in order although both are started before either is finished."""

    def work(c: ThreadCommunicator) -> list[float]:
        peer = 1 - c.rank
        kernel = CommunicationKernel(
            "exchange", "float32", (2,), (2,), (Message(peer, 5, 0),), (Message(peer, 5, 0),)
        )
        results = [np.zeros(2, np.float32) for _ in range(3)]
        operands = [np.full(2, 10 * c.rank + i, np.float32) for i in range(3)]
        pending = [c.start(kernel, [o], [r], doing="test") for o, r in zip(operands, results, strict=True)]
        pending[-1].finish()
        assert all(p.advance() for p in pending)
        return [float(r[0]) for r in results]

    assert ThreadWorld(2, timeout_s=20).run(work) == [[10.0, 11.0, 12.0], [0.0, 1.0, 2.0]]


def test_groups_and_messages_do_not_mix() -> None:
    """Collectives of two groups and messages between their ranks are all under way at once."""

    def work(c: ThreadCommunicator) -> tuple[float, float]:
        group = (0, 1) if c.rank < 2 else (3, 2)
        peer = (c.rank + 2) % 4
        sums = CommunicationKernel(
            "all_reduce", "float32", (1,), (1,), members=group, position=group.index(c.rank)
        )
        swap = CommunicationKernel(
            "exchange", "float32", (1,), (1,), (Message(peer, 0, 0),), (Message(peer, 0, 0),)
        )
        total, other = np.zeros(1, np.float32), np.zeros(1, np.float32)
        one = c.start(sums, [np.full(1, c.rank, np.float32)], [total], doing="sum")
        two = c.start(swap, [np.full(1, c.rank, np.float32)], [other], doing="swap")
        two.finish()
        one.finish()
        return float(total[0]), float(other[0])

    assert ThreadWorld(4, timeout_s=20).run(work) == [(1, 2), (1, 3), (5, 0), (5, 1)]


def test_a_peer_that_never_comes_is_an_error_with_names() -> None:
    world = ThreadWorld(2, timeout_s=0.15)
    kernel = CommunicationKernel("exchange", "float32", (), (2,), (), (Message(1, 5, 0),))
    one = world.communicators[0]
    pending = one.start(kernel, [], [np.zeros(2, np.float32)], doing="launch 3 of kernel 'halo'")
    message = r"rank 0: launch 3 of kernel 'halo', exchange from 1: waited 0\.\d s to receive from rank 1"
    with pytest.raises(CommunicationError, match=message):
        pending.finish()
    with pytest.raises(CommunicationError, match="communication failed before"):
        one.start(kernel, [], [np.zeros(2, np.float32)], doing="again")


def test_a_rank_that_fails_ends_the_waits_of_others() -> None:
    def work(c: ThreadCommunicator) -> None:
        if c.rank == 1:
            raise ValueError("no memory left")
        with pytest.raises(PeerFailedError, match="rank 1 failed: no memory left"):
            run_one(c, collective("all_reduce", "float32", 3, c.rank, (4,)), np.zeros(4, np.float32))

    with pytest.raises(ValueError, match="no memory left"):
        ThreadWorld(3, timeout_s=20).run(work)


def test_a_message_of_another_size_is_refused() -> None:
    def work(c: ThreadCommunicator) -> None:
        if c.rank:
            run_one(
                c,
                CommunicationKernel("exchange", "float32", (3,), (), (Message(0, 0, 0),)),
                np.zeros(3, "f4"),
            )
        else:
            with pytest.raises(CommunicationError, match="expected 8 bytes from rank 1, got 12"):
                run_one(c, CommunicationKernel("exchange", "float32", (), (2,), (), (Message(1, 0, 0),)))

    ThreadWorld(2, timeout_s=20).run(work)


def test_a_program_of_another_rank_is_refused() -> None:
    world = ThreadWorld(2, timeout_s=1)
    with pytest.raises(InputError, match="is for rank 0"):
        run_one(world.communicators[1], collective("all_reduce", "float32", 2, 0, (1,)), np.zeros(1, "f4"))
    with pytest.raises(InputError, match="is for rank 2"):
        run_one(
            world.communicators[0],
            CommunicationKernel("exchange", "float32", (), (2,), (), (Message(2, 0, 0),)),
        )


def test_texts_of_all_ranks() -> None:
    def work(c: ThreadCommunicator) -> list[list[str]]:
        return [c.gather_texts(f"{word} {c.rank}", doing="test") for word in ("a", "b")]

    assert ThreadWorld(2, timeout_s=20).run(work) == [[["a 0", "a 1"], ["b 0", "b 1"]]] * 2
    with pytest.raises(CommunicationError, match=r"rank 0: test: waited 0\.1 s for rank 1, 2"):
        ThreadWorld(3, timeout_s=0.1).communicators[0].gather_texts("x", doing="test")
    assert threading.active_count() < 50


def test_second_rounds_keep_the_order_although_the_first_ones_end_in_another() -> None:
    """The second sum could go on before the first one, which waits for rank 2, on rank 0 alone."""
    world = ThreadWorld(3, timeout_s=5)
    results = [[np.zeros(6, np.float32), np.zeros(4, np.float32)] for _ in range(3)]
    pending = []

    def start(rank: int, groups: Sequence[int]) -> None:
        for group in groups:
            n, members = (6, (0, 1, 2)) if group == 0 else (4, (0, 1))
            kernel = CommunicationKernel("all_reduce", "float32", (n,), (n,), members=members, position=rank)
            operand = np.full(n, 10**rank, np.float32)
            c = world.communicators[rank]
            pending.append(c.start(kernel, [operand], [results[rank][group]], doing="test"))

    start(0, (0, 1))
    start(1, (0, 1))
    world.communicators[0].advance()
    start(2, (0,))
    world.communicators[1].advance()
    for _ in range(3):
        for c in world.communicators:
            c.advance()
    assert all(p.complete for p in pending)
    for rank in (0, 1):
        assert [float(r[-1]) for r in results[rank]] == [111.0, 11.0]
