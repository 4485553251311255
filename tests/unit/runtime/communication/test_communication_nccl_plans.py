"""Plans that communicate on GPUs, with stand-ins for driver and NCCL: graphs, streams, waits, releases."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_samples import Gpu
from nccl_samples import Fabric, FakeNccl
from thread_ranks import ThreadCommunicator, ThreadWorld

from tilewright.runtime.communication import nccl_api
from tilewright.runtime.cuda.context import Context, own_ordinal
from tilewright.runtime.cuda.memory import CudaPool
from tilewright.runtime.cuda.plan import CudaPlan, ReplayKind
from tilewright.runtime.cuda.staged import StagedCommunicator
from tilewright.runtime.errors import CommunicationError, InputError, PeerFailedError
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.communication_kernel import CommunicationKernel, Message
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch

KINDS: tuple[ReplayKind, ...] = ("graph", "capture", "eager", "checked")


def plan_of(rank: int) -> ExecutionPlan:
    """Swap the input with the other rank, then add up what came."""
    message = Message(1 - rank, 4, 0)
    swap = CommunicationKernel("exchange", "float32", (3,), (3,), (message,), (message,))
    total = CommunicationKernel("all_reduce", "float32", (3,), (3,), members=(0, 1), position=rank)
    kernels = {"swap": swap, "total": total}
    return validate(
        ExecutionPlan(
            target="cuda",
            buffers=(
                Buffer("x", "float32", (3,), "input", 12),
                Buffer("came", "float32", (3,), "arena", 12),
                Buffer("sum", "float32", (3,), "output", 12),
            ),
            kernels=tuple(KernelCode(n, n, "communication", k.to_json()) for n, k in kernels.items()),
            launches=(
                Launch("swap", ("x", "came"), (1, 1, 1), 1, writes=(1,)),
                Launch("total", ("came", "sum"), (1, 1, 1), 1, deps=(0,), stream=1, writes=(1,)),
            ),
            inputs=("x",),
            outputs=("sum",),
            arena_bytes=256,
        )
    )


class Rank:
    """One rank's loaded plan, its driver and its library, whose calls are in one log."""

    def __init__(self, host: ThreadCommunicator, fabric: Fabric, kind: ReplayKind) -> None:
        self.nccl = FakeNccl(fabric)
        self.gpu = Gpu(host.rank, self.nccl.log)
        with _opening:
            _library[threading.get_ident()] = self.nccl
        context: Any = Context(self.gpu, 0)  # type: ignore[arg-type]  # a stand-in for the driver
        self.plan = CudaPlan(context, CudaPool(), plan_of(host.rank), {}, replay=kind, communicator=host)

    def names(self, *among: str) -> list[str]:
        return self.gpu.names(among)


_opening = threading.Lock()
_library: dict[int, FakeNccl] = {}


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_api, "open_nccl", lambda: _library[threading.get_ident()])


def on_two(kind: ReplayKind, work: Callable[[Rank, int], Any], timeout_s: float = 20.0) -> list[Any]:
    fabric = Fabric()

    def one(host: ThreadCommunicator) -> Any:
        return work(Rank(host, fabric, kind), host.rank)

    return ThreadWorld(2, timeout_s=timeout_s).run(one)


@pytest.mark.parametrize("kind", ["eager", "checked"])
def test_what_is_launched_step_by_step_computes(kind: ReplayKind) -> None:
    def work(rank: Rank, number: int) -> list[float]:
        with rank.plan as plan:
            plan.run([np.full(3, 9, np.float32)])
            (out,) = plan.run([np.full(3, 1 + number, np.float32)])
            assert plan.time([np.ones(3, np.float32)], 2) == [0.002, 0.002]
        assert not rank.gpu.memory
        return [float(v) for v in out]

    assert on_two(kind, work) == [[3.0] * 3] * 2


def test_each_is_a_child_graph_and_one_follows_the_other() -> None:
    def work(rank: Rank, number: int) -> None:
        names = rank.names(
            "ncclSend", "ncclRecv", "ncclAllReduce", "cuStreamBeginCapture", "cuStreamEndCapture",
            "cuGraphAddChildGraphNode", "cuGraphInstantiate",
        )  # fmt: skip
        swap, total = ["ncclSend", "ncclRecv"], ["ncclAllReduce"]
        begin, end = ["cuStreamBeginCapture"], ["cuStreamEndCapture", "cuGraphAddChildGraphNode"]
        connected_before = [*swap, *total]  # captures forbid what the first calls do
        assert names == [
            *connected_before, *begin, *swap, *end, *begin, *total, *end, "cuGraphInstantiate"
        ]  # fmt: skip
        assert [e[1:] for e in rank.gpu.log if e[0] == "cuStreamCreateWithPriority"] == [(1, -5)] * 2
        (flags,) = (e[2] for e in rank.gpu.log if e[0] == "cuGraphInstantiate")
        assert flags == 8
        (edges,) = (e for e in rank.gpu.log if e[0] == "cuGraphAddDependencies")
        assert len(edges[2]) == 1
        assert edges[4][0].type == 0
        rank.plan.run([np.ones(3, np.float32)])
        assert rank.names("cuGraphLaunch") == ["cuGraphLaunch"]
        rank.plan.close()

    on_two("graph", work)


def test_a_captured_plan_holds_both_on_their_streams() -> None:
    def work(rank: Rank, number: int) -> None:
        inside = rank.names("ncclGroupEnd", "cuStreamBeginCapture", "cuStreamEndCapture", "cuStreamWaitEvent")
        assert inside[2:] == [
            "cuStreamBeginCapture", "cuStreamWaitEvent", "ncclGroupEnd", "cuStreamWaitEvent", "ncclGroupEnd",
            "cuStreamWaitEvent", "cuStreamEndCapture",
        ]  # fmt: skip
        rank.plan.close()

    on_two("capture", work)


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_go_before_the_communicator_that_they_hold(kind: ReplayKind) -> None:
    def work(rank: Rank, number: int) -> None:
        rank.plan.close()
        last = rank.names("cuGraphExecDestroy", "cuGraphDestroy", "ncclCommFinalize", "ncclCommDestroy")
        assert last[-2:] == ["ncclCommFinalize", "ncclCommDestroy"]
        if kind in ("graph", "capture"):
            assert last[-4:-2] == ["cuGraphExecDestroy", "cuGraphDestroy"]

    on_two(kind, work)


def test_a_hung_peer_is_noticed_and_everything_is_freed() -> None:
    stopped = threading.Event()

    def work(rank: Rank, number: int) -> None:
        if number == 1:
            assert stopped.wait(20)
            rank.gpu.busy = True
            with pytest.raises(PeerFailedError, match="rank 0 failed: rank 0: running 2 kernels"):
                rank.plan.run([np.ones(3, np.float32)])
            rank.gpu.busy = False
            rank.plan.close()
            return
        rank.gpu.busy = True
        told = r"running 2 kernels, 2 of them communications: waited 0\.\d s for communication with rank 1"
        with pytest.raises(CommunicationError, match=told):
            rank.plan.run([np.ones(3, np.float32)])
        assert rank.names("ncclCommAbort", "ncclCommFinalize") == ["ncclCommAbort"]
        rank.gpu.busy = False  # aborted, the stream ends
        with pytest.raises(CommunicationError, match="communication failed before"):
            rank.plan.run([np.ones(3, np.float32)])
        rank.plan.close()
        assert not rank.gpu.memory
        stopped.set()

    on_two("graph", work, timeout_s=0.4)


def test_what_does_not_end_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.cuda.communication.DRAIN_S", 0.05)

    def work(rank: Rank, number: int) -> None:
        rank.gpu.busy = True
        with pytest.raises(CommunicationError):
            rank.plan.run([np.ones(3, np.float32)])
        rank.plan.close()
        assert rank.gpu.memory
        assert rank.names("cuGraphExecDestroy", "cuStreamSynchronize") == []

    on_two("graph", work, timeout_s=0.3)


@pytest.mark.parametrize("kind", ["graph", "checked"])
def test_through_host_memory_where_asked(kind: ReplayKind) -> None:
    """No library, no graph: two ranks may even share a GPU."""

    def one(host: ThreadCommunicator) -> list[float]:
        gpu = Gpu(0, [])
        context: Any = Context(gpu, 0)  # type: ignore[arg-type]
        staged = StagedCommunicator(host, context)
        with CudaPlan(context, CudaPool(), plan_of(host.rank), {}, replay=kind, communicator=staged) as plan:
            (out,) = plan.run([np.full(3, 1 + host.rank, np.float32)])
        assert gpu.names(["cuGraphInstantiate"]) == []
        assert not gpu.memory
        return [float(v) for v in out]

    assert ThreadWorld(2, timeout_s=20).run(one) == [[3.0] * 3] * 2


def test_a_plan_that_communicates_needs_the_others() -> None:
    context: Any = Context(Gpu(0, []), 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="expected a communicator: the plan is one of several ranks'"):
        CudaPlan(context, CudaPool(), plan_of(0), {})


def test_each_rank_of_a_machine_has_its_own_gpu() -> None:
    assert own_ordinal(4, {}) == 0
    assert own_ordinal(4, {"OMPI_COMM_WORLD_LOCAL_RANK": "3"}) == 3
    assert own_ordinal(2, {"SLURM_LOCALID": "3"}) == 1
    assert own_ordinal(0, {"MPI_LOCALRANKID": "2"}) == 0
