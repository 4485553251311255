"""Seconds of ranks, predicted from their modules and taken from traces: by hand, to the last digit."""

import numpy as np
import pytest
from thread_ranks import ThreadWorld

import tilewright as tw
from tilewright.cluster.measuring.trace import RankTrace, TimedCommunicator, measured_times
from tilewright.cluster.planning.op_seconds import OpSeconds, op_seconds, timed_model, unit_starts
from tilewright.cluster.planning.parallel_plan import ParallelPlan
from tilewright.cluster.planning.prediction import component_of, predict
from tilewright.costmodel.cluster.inputs.machine import Cluster, ClusterDevice, Storage
from tilewright.costmodel.links import Link
from tilewright.costmodel.op_work import Rates
from tilewright.runtime.plan.communication_kernel import CommunicationKernel, Message

#: a relu of a thousand elements moves 8000 bytes: 8 ms; a message of them takes 1 + 2 + 1 ms
SECONDS = OpSeconds(Rates(flops_per_s=1e30, bytes_per_s=1e6), {})
LINK = Link(bytes_per_s=4e6, latency_s=2e-3, call_s=1e-3, per="device")
TYPE = "f32[1000]"
RECV = f'graph.recv(source = %d, tag = 0, dtype = "f32", shape = [1000]) : {TYPE}'


def module(*lines):
    body = "\n".join(lines)
    return tw.parse(f"module @m {{ graph.func @main(%x: {TYPE}) -> {TYPE} {{\n{body}\n}} }}").main


def told(ranks):
    """Milliseconds by component that are not zero."""
    return [{n: round(1e3 * s, 9) for n, s in r.components_s.items() if s} for r in ranks]


def test_stages_wait_for_messages():
    first = module(
        f"%a = graph.relu(%x) : {TYPE}",
        "graph.send(%a, to = 1, tag = 0)",
        f"%b = {RECV % 1}",
        "graph.return(%b)",
    )
    second = module(
        f"%a = {RECV % 0}",
        f"%b = graph.relu(%a) : {TYPE}",
        "graph.send(%b, to = 0, tag = 0)",
        "graph.return(%b)",
    )
    ranks = predict([first, second], ParallelPlan(p=2, cuts=(1,)), SECONDS, LINK)
    assert told(ranks) == [{"compute": 8, "pp": 4, "wait": 12}, {"compute": 8, "pp": 4, "wait": 8}]
    assert ranks[0].total_s == pytest.approx(24e-3)
    shared = OpSeconds(SECONDS.rates, {}, overhead_share=0.25)
    assert told(predict([first, second], ParallelPlan(p=2, cuts=(1,)), shared, LINK))[0] == {
        "compute": 6, "overhead": 2, "pp": 4, "wait": 12,
    }  # fmt: skip


def test_kernels_go_on_beside_messages_and_sends_share_the_link():
    first = module(
        f"%a = graph.relu(%x) : {TYPE}",
        "graph.send(%a, to = 1, tag = 0)",
        "graph.send(%a, to = 1, tag = 1)",
        f"%b = graph.relu(%a) : {TYPE}",
        "graph.return(%b)",
    )
    second = module(
        f"%a = {RECV % 0}",
        f'%b = graph.recv(source = 0, tag = 1, dtype = "f32", shape = [1000]) : {TYPE}',
        f"%c = graph.relu(%x) : {TYPE}",
        f"%d = graph.relu(%b) : {TYPE}",
        "graph.return(%d)",
    )
    ranks = predict([first, second], ParallelPlan(p=2, cuts=(1,)), SECONDS, LINK)
    # the second message leaves a byte time (1 ms) later and is there at 8 + 1 + 4 = 13 ms, 5 after the
    # kernel; all that time one of them is moving
    assert told(ranks) == [{"compute": 16}, {"compute": 16, "pp": 5}]


def test_sums_begin_with_their_last_member():
    def part(rank, kernels):
        lines = [f"%{k} = graph.relu({f'%{k - 1}' if k else '%x'}) : {TYPE}" for k in range(kernels)]
        total = f"%s = graph.all_reduce(%{kernels - 1}, rank = {rank}, ranks = [0, 1]) : {TYPE}"
        return module(*lines, total.replace("])", '], reduction = "sum")'), "graph.return(%s)")

    ranks = predict([part(0, 1), part(1, 2)], ParallelPlan(tp=2), SECONDS, LINK)
    # 1 ms call, two hops of 2 ms, the whole tensor once around: 1 ms
    assert told(ranks) == [{"compute": 8, "wp": 6, "wait": 8}, {"compute": 16, "wp": 6}]
    assert told(predict([part(0, 1), part(1, 1)], ParallelPlan(dp=2), SECONDS, LINK))[1] == {
        "compute": 8,
        "dp": 6,
    }


def test_ranks_that_wait_for_one_another_are_an_error():
    parts = [
        module(f"%a = {RECV % (1 - r)}", f"graph.send(%a, to = {1 - r}, tag = 0)", "graph.return(%a)")
        for r in (0, 1)
    ]
    with pytest.raises(tw.WorkError, match="would wait for one another"):
        predict(parts, ParallelPlan(p=2, cuts=(1,)), SECONDS, LINK)


def test_components_follow_from_the_places_of_ranks():
    division = ParallelPlan(2, 2, 2, 1, (3,))
    assert [component_of([other], division, 0) for other in (1, 2, 4, 7)] == ["wp", "dp", "pp", "pp"]
    assert component_of([1, 3], division, 0) == "dp"


def test_measured_seconds_are_kept_and_shared_by_work():
    net = tw.parse("""module @m { graph.func @main(%x: f32[4, 64]) -> f32[4, 64] {
  %w = graph.constant(name = "w") : f32[64, 64]
  %a = graph.dense(%x, %w) : f32[4, 64] loc "one"
  %b = graph.relu(%a) : f32[4, 64] loc "one"
  %c = graph.dense(%b, %w) : f32[4, 64] loc "two"
  %d = graph.tanh(%c) : f32[4, 64] loc "three"
  graph.return(%d) } }""")
    link = Link(1e9, 0, 0, "device")
    device = ClusterDevice("d", 1e9, 1e10, {"fp32": 1e11}, 0.1)
    cluster = Cluster("c", 1, 2, device, link, link, Storage(1e9, 1e9, 1e9, "half", 2), "intra")
    launches = [(("one",), 2e-3), (("two",), 3e-3)]  # the last op is part of the second kernel
    seconds = op_seconds(net.main, cluster, "fp32", launches)
    dense, relu, second, tanh = net.main.body.ops[1:5]
    assert seconds.of(dense) + seconds.of(relu) == pytest.approx(2e-3)
    assert seconds.of(dense) > 4 * seconds.of(relu) > 0
    assert (seconds.of(second), seconds.of(tanh)) == (pytest.approx(3e-3), 0)
    model = timed_model(net.main, "net", seconds, cluster, "fp32")
    assert [4 * u.flops / 1e10 for u in model.units] == pytest.approx([2e-3, 3e-3])
    assert [net.main.body.ops[i] for i in unit_starts(net.main)] == [dense, second]
    by_rates = op_seconds(net.main, cluster, "fp32")
    assert by_rates.of(dense) == pytest.approx(2 * 4 * 64 * 64 / 1e10)
    assert by_rates.of(net.main.body.ops[0]) == 0
    unknown = op_seconds(net.main, cluster, "fp32", [((), 1e-3), *launches])  # goes to the op with most work
    assert sum(map(unknown.of, net.main.body.ops)) == pytest.approx(6e-3)


def exchange(sends=(), receives=()):
    return CommunicationKernel(
        "exchange", "float32", (4,) * len(sends), (4,) * len(receives),
        tuple(Message(p, 0, i) for i, p in enumerate(sends)),
        tuple(Message(p, 0, i) for i, p in enumerate(receives)),
    )  # fmt: skip


def test_traces_tell_moving_from_waiting():
    """Rank 1 posts its receive at 100 s, rank 0 sends at 103; it is there at 105."""
    first = RankTrace(
        [None, exchange(sends=[1]), None, exchange(receives=[1])],
        [[(0.0, 3.0), (3.0, 9.0), (3.0, 4.0), (4.0, 10.0)]],
        [[103.0, 104.0]],
    )
    second = RankTrace(
        [None, exchange(receives=[0]), None, exchange(sends=[0])],
        [[(0.0, 0.5), (0.0, 5.0), (5.5, 8.0), (8.0, 8.0)]],
        [[100.0, 108.0]],
    )
    division = ParallelPlan(p=2, cuts=(1,))
    ranks = measured_times([first, second], division)
    assert told(ranks) == [
        {"compute": 4000, "pp": 2000, "wait": 4000},
        {"compute": 3000, "pp": 2000, "wait": 2500, "overhead": 500},
    ]
    plain = RankTrace(list(first.kernels), first.spans, first.posted, [2])
    assert RankTrace.from_plain(plain.to_plain()) == plain
    # what only updates parameters is apart, here one of four seconds
    assert told(measured_times([plain, second], division))[0] == {
        "compute": 3000, "optimizer": 1000, "pp": 2000, "wait": 4000,
    }  # fmt: skip


def test_of_several_replays_the_median_counts():
    def trace(*seconds):
        return RankTrace([None], [[(0.0, s)] for s in seconds], [[]] * len(seconds))

    ranks = measured_times([trace(1, 2, 9), trace(5, 1, 1)], ParallelPlan(dp=2))
    assert [r.total_s for r in ranks] == [1, 5]  # slowest of each replay: 5, 2, 9
    ranks = measured_times([trace(1, 2, 9), trace(5, 1, 1)], ParallelPlan(dp=2), "fastest")
    assert [r.total_s for r in ranks] == [2, 1]


def test_collectives_wait_for_the_last_member():
    def trace(rank, posted):
        kernel = CommunicationKernel("all_reduce", "float32", (4,), (4,), members=(0, 1), position=rank)
        spans = [[(0.0, 4.0), (4.0, 6.0)]] if rank else [[(0.0, 4.0), (4.0, 5.0)]]
        return RankTrace([kernel, kernel], spans, [posted])

    ranks = measured_times([trace(0, [0.0, 4.0]), trace(1, [3.0, 5.0])], ParallelPlan(tp=2))
    assert told(ranks) == [{"wp": 1000, "wait": 4000}, {"wp": 6000}]


def test_posts_are_noted_in_their_order():
    def work(communicator):
        timed = TimedCommunicator(communicator)
        kernel = CommunicationKernel(
            "all_reduce", "float32", (2,), (2,), members=(0, 1), position=communicator.rank
        )
        result = np.zeros(2, np.float32)
        for _ in range(2):
            timed.start(kernel, [np.ones(2, np.float32)], [result], doing="a sum").finish()
        posted = timed.taken()
        assert timed.gather_texts("x", doing="telling") == ["x", "x"]
        timed.check_peers([0, 1], doing="looking")
        return float(result[0]), posted, timed.taken()

    for total, posted, left in ThreadWorld(2).run(work):
        assert (total, left) == (2.0, [])
        assert posted == sorted(posted)
        assert len(posted) == 2
