"""Components from replays with and without communications add up; a message is no longer than the link's."""

from dataclasses import replace

import numpy as np
import pytest
from thread_ranks import ThreadWorld

from tilewright.cluster.measuring.replays import (
    ReplayTimes,
    timed_replays,
    times_by_replays,
    without_communications,
)
from tilewright.cluster.planning.parallel_plan import ParallelPlan
from tilewright.cluster.planning.parts import part_of
from tilewright.costmodel.links import Link
from tilewright.distributed import compile_part
from tilewright.ir import parse
from tilewright.runtime.communication.agreement import communications
from tilewright.runtime.plan.communication_kernel import CommunicationKernel, Message
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch

#: a message of a thousand floats takes 1 + 2 + 4 ms
LINK = Link(bytes_per_s=1e6, latency_s=2e-3, call_s=1e-3, per="device")
STAGES = ParallelPlan(p=2, cuts=(1,))


def send(elements=1000):
    return CommunicationKernel("exchange", "float32", (elements,), (), (Message(1, 0, 0),))


def receive(source=0):
    return CommunicationKernel("exchange", "float32", (), (1000,), (), (Message(source, 0, 0),))


def told(ranks):
    """Milliseconds by component that are not zero."""
    return [{n: round(1e3 * s, 9) for n, s in r.components_s.items() if s} for r in ranks]


def test_waiting_is_what_neither_kernels_nor_messages_take():
    first = ReplayTimes(0.030, 0.020, [send()], [0.050])
    second = ReplayTimes(0.031, 0.010, [receive(), receive()], [0.025, 0.005])
    ranks = times_by_replays([first, second], STAGES, LINK)
    # both messages as short as the shorter one; a send holds nobody up
    assert told(ranks) == [{"compute": 20, "wait": 10}, {"compute": 10, "pp": 10, "wait": 11}]
    for times, rank in zip((first, second), ranks, strict=True):
        assert rank.total_s == pytest.approx(times.total_s)
    updating = replace(first, updates_share=0.25)
    assert told(times_by_replays([updating, second], STAGES, LINK))[0] == {
        "compute": 15, "optimizer": 5, "wait": 10,
    }  # fmt: skip


def test_the_link_bounds_messages():
    """All of them have waited; another size tells nothing, the link does."""
    first = ReplayTimes(0.030, 0.020, [send(10)], [0.001])
    second = ReplayTimes(0.030, 0.010, [receive()], [0.025])
    assert told(times_by_replays([first, second], STAGES, LINK))[1] == {"compute": 10, "pp": 7, "wait": 13}
    total = CommunicationKernel("all_reduce", "float32", (1000,), (1000,), members=(0, 1), position=0)
    ranks = [ReplayTimes(0.030, 0.010, [total], [0.018 + rank]) for rank in (0, 1)]
    # a ring of two: 1 + 2 * 2 + 4 ms
    assert told(times_by_replays(ranks, ParallelPlan(tp=2), LINK))[0] == {"compute": 10, "wp": 9, "wait": 11}


def test_components_never_exceed_the_total():
    """Messages run beside kernels, and kernels without messages may be slower than with them."""
    hidden = ReplayTimes(0.012, 0.010, [receive(1)], [0.005])
    slower = ReplayTimes(0.009, 0.010, [receive()], [0.005])
    ranks = times_by_replays([hidden, slower], STAGES, LINK)
    assert told(ranks) == [{"compute": 10, "pp": 2}, {"compute": 9}]


def test_a_rank_is_timed_with_and_without_its_communications():
    net = parse("""module @m { graph.func @main(%x: f32[4, 8]) -> f32[4, 8] {
  %a = graph.relu(%x) : f32[4, 8]
  %b = graph.tanh(%a) : f32[4, 8]
  graph.return(%b) } }""")
    inputs = [np.ones((4, 8), np.float32)]

    def work(communicator):
        part = part_of(net, STAGES, communicator.rank)
        with compile_part(part, communicator, target="opencl", mode="plan") as exe:
            exe(*inputs)
            return exe.plan, timed_replays(exe, communicator, inputs, 2, "fastest")

    ranks = ThreadWorld(2, timeout_s=60).run(work)
    for plan, times in ranks:
        talks = communications(plan)
        assert list(times.talks) == list(talks.values())
        assert len(times.talks_s) == len(talks) > 0
        assert min(times.total_s, times.kernels_s, *times.talks_s) > 0
        assert ReplayTimes.from_plain(times.to_plain()) == times
        quiet = without_communications(plan)
        assert not communications(quiet)
        kept = [i for i in range(len(plan.launches)) if i not in talks]
        assert [x.kernel for x in quiet.launches] == [plan.launches[i].kernel for i in kept]
        for new, old in enumerate(kept):
            needed = {kept.index(d) for d in plan.launches[old].deps if d not in talks}
            assert needed <= set(quiet.launches[new].deps)
    times = times_by_replays([t for _, t in ranks], STAGES, LINK)
    assert [t.total_s for t in times] == pytest.approx([t.total_s for _, t in ranks])


def test_what_depends_on_a_communication_depends_on_what_that_needs():
    talk = KernelCode("talk", "talk", "communication", send(4).to_json())
    code = KernelCode("k", "k", "opencl", "kernel void k(global float* a) {}")
    buffers = (Buffer("x", "float32", (4,), "input", 16), Buffer("y", "float32", (4,), "output", 16))
    run = Launch("k", ("y",), (1, 1, 1), 1, writes=(0,))
    launches = (
        run,
        Launch("talk", ("y",), (1, 1, 1), 1, deps=(0,)),
        replace(run, deps=(0,)),
        Launch("talk", ("y",), (1, 1, 1), 1, deps=(1, 2)),
        replace(run, deps=(3,)),
    )
    plan = ExecutionPlan("opencl", buffers, (talk, code), launches, ("x",), ("y",), 0)
    assert [x.deps for x in without_communications(plan).launches] == [(), (0,), (0, 1)]
