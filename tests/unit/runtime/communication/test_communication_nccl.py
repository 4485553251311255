"""NCCL's part of a world of GPUs, with a stand-in for the library: calls, groups, waits, failures."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nccl_samples import Fabric, FakeNccl
from thread_ranks import ThreadCommunicator, ThreadWorld

from tilewright.runtime.communication import nccl_api
from tilewright.runtime.communication.nccl import NcclCommunicator
from tilewright.runtime.errors import (
    CommunicationError,
    DeviceError,
    DeviceMissingError,
    DisagreementError,
    InputError,
    PeerFailedError,
)
from tilewright.runtime.plan.communication_kernel import CommunicationKernel, Message

Array = np.ndarray[Any, np.dtype[Any]]


def collective(
    kind: Any, dtype: str, members: Sequence[int], rank: int, counts: Sequence[int], **more: Any
) -> CommunicationKernel:
    """For all_reduce, `counts` is the number of elements."""
    position = members.index(rank)
    part, whole = (counts[position % len(counts)],), (sum(counts),)
    operands, results = {
        "all_gather": (part, whole), "reduce_scatter": (whole, part), "all_reduce": (whole, whole)
    }[kind]  # fmt: skip
    kept = () if kind == "all_reduce" else tuple(counts)
    kernel = CommunicationKernel(
        kind, dtype, operands, results, members=tuple(members), position=position, counts=kept, **more
    )
    kernel.check()
    return kernel


def swap(rank: int, count: int = 2, tag: int = 5) -> CommunicationKernel:
    """Ranks 0 and 1 send each other as much."""
    peer = 1 - rank
    return CommunicationKernel(
        "exchange", "float32", (count,), (count,), (Message(peer, tag, 0),), (Message(peer, tag, 0),)
    )


def opened(
    work: Callable[[NcclCommunicator, FakeNccl], Any],
    kernels: Callable[[int], Sequence[CommunicationKernel]],
    size: int = 2,
    *,
    timeout_s: float = 20.0,
    prepare: Callable[[int, FakeNccl], None] = lambda rank, fake: None,
) -> tuple[list[Any], list[FakeNccl]]:
    """What `work` returns on each rank's communicator, and the libraries."""
    fabric = Fabric()
    fakes = [FakeNccl(fabric) for _ in range(size)]

    def one(host: ThreadCommunicator) -> Any:
        prepare(host.rank, fakes[host.rank])
        c = NcclCommunicator(host, kernels(host.rank), f"GPU-{host.rank}", library=fakes[host.rank])
        try:
            return work(c, fakes[host.rank])
        finally:
            c.close()

    return ThreadWorld(size, timeout_s=timeout_s).run(one), fakes


def run_one(c: NcclCommunicator, kernel: CommunicationKernel, *operands: Array) -> list[Array]:
    dtype = operands[0].dtype if operands else np.dtype(kernel.dtype)
    results = [np.zeros(n, dtype) for n in kernel.results]
    places = [[a.ctypes.data for a in arrays] for arrays in (operands, results)]
    pending = c.start(kernel, *places, doing="launch 3", stream=77)
    assert pending.advance()
    pending.finish()
    return results


@pytest.mark.parametrize("counts", [(4, 4, 4), (3, 0, 5)])
@pytest.mark.parametrize("dtype", ["float32", "int16", "bool", "bfloat16"])
def test_all_gather(dtype: str, counts: tuple[int, ...]) -> None:
    wanted_type = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    parts = [(np.arange(n) + 3 * r).astype(wanted_type) for r, n in enumerate(counts)]

    def kernels(rank: int) -> list[CommunicationKernel]:
        return [collective("all_gather", dtype, (0, 1, 2), rank, counts)]

    got, fakes = opened(lambda c, _: run_one(c, kernels(c.rank)[0], parts[c.rank])[0], kernels, 3)
    for array in got:
        np.testing.assert_array_equal(array, np.concatenate(parts))
    used = {n for n in fakes[0].names() if n in ("ncclAllGather", "ncclSend", "ncclRecv")}
    assert used == ({"ncclAllGather"} if len(set(counts)) == 1 else {"ncclSend", "ncclRecv"})


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int32", "uint8"])
@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_all_reduce(dtype: str, reduction: str) -> None:
    parts = [np.asarray([1, 5, 2 + r], dtype) for r in range(2)]

    def kernels(rank: int) -> list[CommunicationKernel]:
        return [collective("all_reduce", dtype, (0, 1), rank, (3,), reduction=reduction)]

    got, fakes = opened(lambda c, _: run_one(c, kernels(c.rank)[0], parts[c.rank])[0], kernels)
    wanted = np.maximum(*parts) if reduction == "max" else np.add(*parts)
    for array in got:
        np.testing.assert_array_equal(array, wanted)
    (call,) = (e for e in fakes[1].log if e[0] == "ncclAllReduce")
    assert call[3:] == (3, nccl_api.DATA_TYPE[dtype], {"sum": 0, "max": 2}[reduction], 1, 77)


@pytest.mark.parametrize("counts", [(2, 2, 2), (2, 0, 3)])
def test_reduce_scatter(counts: tuple[int, ...]) -> None:
    parts = [np.arange(sum(counts), dtype=np.float32) * (r + 1) for r in range(3)]

    def kernels(rank: int) -> list[CommunicationKernel]:
        return [collective("reduce_scatter", "float32", (0, 1, 2), rank, counts)]

    got, fakes = opened(lambda c, _: run_one(c, kernels(c.rank)[0], parts[c.rank])[0], kernels, 3)
    whole = np.arange(sum(counts), dtype=np.float32) * 6
    for array, wanted in zip(got, np.split(whole, np.cumsum(counts)[:-1]), strict=True):
        np.testing.assert_array_equal(array, wanted)
    roots = [e[6] for e in fakes[0].log if e[0] == "ncclReduce"]
    assert roots == ([] if len(set(counts)) == 1 else [0, 2])


def test_an_exchange_is_one_group_of_messages_in_the_order_of_tags() -> None:
    def kernels(rank: int) -> list[CommunicationKernel]:
        peer = 1 - rank
        sends = (Message(peer, 9, 0), Message(peer, 4, 1))
        receives = (Message(peer, 4, 0), Message(peer, 9, 1))
        return [CommunicationKernel("exchange", "float32", (3, 2), (2, 3), sends, receives)]

    def work(c: NcclCommunicator, _: FakeNccl) -> list[Array]:
        operands = [np.full(n, 10 * c.rank + n, np.float32) for n in (3, 2)]
        return run_one(c, kernels(c.rank)[0], *operands)

    got, fakes = opened(work, kernels)
    assert [a.tolist() for a in got[0]] == [[12.0, 12.0], [13.0, 13.0, 13.0]]
    names = fakes[0].names()
    begin = names.index("ncclGroupStart")
    assert names[begin : begin + 6] == [
        "ncclGroupStart",
        *["ncclSend"] * 2,
        *["ncclRecv"] * 2,
        "ncclGroupEnd",
    ]
    sent = [e[2:5] for e in fakes[0].log if e[0] == "ncclSend"]
    assert sent == [(8, nccl_api.BYTE, 1), (12, nccl_api.BYTE, 1)]


def test_groups_have_communicators_of_their_own_opened_in_one_order() -> None:
    groups = ((0, 1), (3, 2), (2, 0))

    def kernels(rank: int) -> list[CommunicationKernel]:
        return [collective("all_reduce", "float32", g, rank, (1,)) for g in groups if rank in g]

    def work(c: NcclCommunicator, _: FakeNccl) -> list[float]:
        return [float(run_one(c, k, np.asarray([1 + c.rank], np.float32))[0][0]) for k in kernels(c.rank)]

    got, fakes = opened(work, kernels, 4)
    assert got == [[3.0, 4.0], [3.0], [7.0, 4.0], [7.0]]
    joined = [[e[1:] for e in f.log if e[0] == "ncclCommInitRankConfig"] for f in fakes]
    assert joined == [[(2, 0), (2, 1)], [(2, 1)], [(2, 0), (2, 1)], [(2, 0)]]
    assert [f.names().count("ncclGetUniqueId") for f in fakes] == [1, 0, 1, 1]
    for fake in fakes:
        assert fake.names().count("ncclCommDestroy") == len(fake.comms)
        assert "ncclCommAbort" not in fake.names()


def test_a_member_alone_sends_to_itself_and_nothing_is_nothing() -> None:
    def kernels(rank: int) -> list[CommunicationKernel]:
        alone = collective("all_reduce", "int32", (rank,), rank, (4,))
        return [alone, collective("all_gather", "int32", (0, 1), rank, (0, 0))]

    def work(c: NcclCommunicator, fake: FakeNccl) -> Array:
        alone, empty = kernels(c.rank)
        (got,) = run_one(c, alone, np.arange(4, dtype=np.int32))
        before = len(fake.log)
        run_one(c, empty, np.empty(0, np.int32))
        assert len(fake.log) == before
        return got

    for array in opened(work, kernels)[0]:
        np.testing.assert_array_equal(array, np.arange(4))


def test_a_failed_call_ends_the_group_and_all_communication() -> None:
    def work(c: NcclCommunicator, fake: FakeNccl) -> str:
        if c.rank == 1:
            while not c._host.world.failed:  # type: ignore[attr-defined]
                time.sleep(0.001)
            with pytest.raises(PeerFailedError, match=r"rank 0 failed: .*ncclSend failed: ncclSystemError"):
                c.wait(lambda: False, doing="running")
            return "told"
        fake.fail["ncclSend"] = 2
        with pytest.raises(CommunicationError) as caught:
            run_one(c, swap(0), np.ones(2, np.float32))
        assert fake.names()[-2:] == ["ncclGroupEnd", "ncclCommAbort"]
        with pytest.raises(CommunicationError, match="communication failed before: rank 0: launch 3"):
            run_one(c, swap(0), np.ones(2, np.float32))
        return str(caught.value)

    got, fakes = opened(work, lambda rank: [swap(rank)])
    assert got == [
        "rank 0: launch 3, exchange to 1 and from 1: ncclSend failed: ncclSystemError "
        "(text of 2; last words)",
        "told",
    ]
    for fake in fakes:
        assert fake.comms[0].gone == "ncclCommAbort"
        assert "ncclCommFinalize" not in fake.names()


def test_a_peer_that_does_not_come_is_given_up() -> None:
    """Rank 1 never queues its half; rank 0 names it, its communicator is aborted."""
    done = threading.Event()

    def work(c: NcclCommunicator, fake: FakeNccl) -> None:
        if c.rank == 1:
            done.wait(20)
            return
        with pytest.raises(
            CommunicationError, match=r"waited 0\.\d s for communication with rank 1, which is"
        ):
            c.wait(lambda: False, doing="running 3 kernels")
        assert c.broken
        assert fake.comms[0].gone == "ncclCommAbort"
        done.set()

    opened(work, lambda rank: [swap(rank)], timeout_s=0.5)


def test_waits_end_with_the_work_and_with_what_nccl_reports() -> None:
    def work(c: NcclCommunicator, fake: FakeNccl) -> None:
        if c.rank == 1:
            return
        looks = iter([False, False, True])
        c.wait(lambda: next(looks), doing="running")
        fake.comms[0].status = 6
        with pytest.raises(CommunicationError, match="running: communication failed: ncclRemoteError"):
            c.wait(lambda: False, doing="running")

    opened(work, lambda rank: [swap(rank)])


def test_connecting_ends_with_the_timeout() -> None:
    def stuck(rank: int, fake: FakeNccl) -> None:
        if rank == 0:
            fake.stuck.add("ncclCommInitRankConfig")

    with pytest.raises(CommunicationError, match=r"connecting the GPUs of ranks 0, 1: waited .* for rank 1"):
        opened(lambda c, _: None, lambda rank: [swap(rank)], timeout_s=0.3, prepare=stuck)


def test_two_ranks_on_one_gpu_are_refused_everywhere() -> None:
    def one(host: ThreadCommunicator) -> str:
        with pytest.raises(DisagreementError) as caught:
            NcclCommunicator(host, [swap(host.rank)], "GPU-a", library=FakeNccl(fabric))
        return str(caught.value)

    fabric = Fabric()
    assert set(ThreadWorld(2, timeout_s=20).run(one)) == {
        "ranks 0 and 1 have the same GPU (GPU-a), NCCL takes one rank per GPU: 2 ranks have 1 GPUs"
    }


def refusal(*programs: Sequence[CommunicationKernel]) -> str:
    """The one sentence all ranks give instead of opening."""
    fabric = Fabric()

    def one(host: ThreadCommunicator) -> str:
        with pytest.raises(DisagreementError) as caught:
            NcclCommunicator(host, programs[host.rank], f"GPU-{host.rank}", library=FakeNccl(fabric))
        return str(caught.value)

    (text,) = set(ThreadWorld(len(programs), timeout_s=20).run(one))
    return text


def test_programs_that_would_hang_on_streams_are_refused() -> None:
    def send(peer: int, tag: int, n: int = 2) -> CommunicationKernel:
        return CommunicationKernel("exchange", "float32", (n,), (), (Message(peer, tag, 0),))

    def receive(peer: int, tag: int, n: int = 2) -> CommunicationKernel:
        return CommunicationKernel("exchange", "float32", (), (n,), (), (Message(peer, tag, 0),))

    both_send = refusal([send(1, 1), receive(1, 2)], [send(0, 2), receive(0, 1)])
    assert both_send.endswith("for one another: rank 0 in exchange to 1; rank 1 in exchange to 0")
    crossed = refusal([send(1, 1), send(1, 2, 3)], [receive(0, 2, 3), receive(0, 1)])
    assert "rank 0 sends 2 elements of float32 with tag 1 where rank 1 expects 3" in crossed
    sums = [collective("reduce_scatter", "int16", (0, 1), rank, (1, 1)) for rank in range(2)]
    assert refusal(*([k] for k in sums)) == (
        "reduce_scatter among ranks 0, 1: NCCL does not add or compare int16"
    )


def test_an_old_library_and_a_program_of_another_rank_are_refused() -> None:
    host = ThreadWorld(1, timeout_s=1).communicators[0]
    with pytest.raises(DeviceError, match=r"at least version 2\.18\.0, got 2\.17\.5"):
        NcclCommunicator(host, [], "GPU", library=FakeNccl(Fabric(), version=21705))
    with pytest.raises(InputError, match=r"rank 0 of 1: .*: it is for another rank"):
        NcclCommunicator(host, [swap(0)], "GPU", library=FakeNccl(Fabric()))


def test_the_library_beside_torch_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def nothing(*_: Any) -> Any:
        raise DeviceMissingError("not here")

    (tmp_path / "lib").mkdir()
    path = tmp_path / "lib" / "libnccl.so.2"
    path.write_bytes(b"no library")
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(nccl_api, "open_library", nothing)
    monkeypatch.setattr(nccl_api.importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(DeviceMissingError, match=f"beside torch does not load: {path}"):
        nccl_api.open_nccl()


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> Any:
        raise DeviceMissingError("not here")

    monkeypatch.setattr(nccl_api, "open_library", nothing)
    monkeypatch.setattr(nccl_api.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv(nccl_api.MULTICAST_VARIABLE, raising=False)
    with pytest.raises(DeviceMissingError, match=r"libnccl\.so\.2 .* pip install 'tilewright\[nccl\]'"):
        nccl_api.open_nccl()
    assert nccl_api.os.environ[nccl_api.MULTICAST_VARIABLE] == "0"
