"""Kernels of few samples are slow: plans rest on measured sizes, and few sizes are measured."""

import pytest
from distributed_networks import Graph
from thread_ranks import ThreadWorld

from tilewright.cluster.planning.op_seconds import op_seconds, with_batch
from tilewright.cluster.planning.search import PlanningProblem, RequestedShape, SizeTable, best_division
from tilewright.cluster.report import plan_facts, report_text
from tilewright.costmodel.cluster.inputs.machine import Cluster, ClusterDevice, Storage
from tilewright.costmodel.links import Link
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.pipelines import GRAPH

BATCH, DEVICES = 32, 4


def network(net=None):
    """Two dense layers that take the same time."""
    g = Graph()
    x = g.input(BATCH, 24)
    net = net or g.module(g("dense", g("dense", x, g.weight(24, 24)), g.weight(24, 24)))
    return run_pipeline(net, GRAPH, PassContext(reproducer_folder=None))


def cluster():
    """Devices by whose rates an op takes its FLOP, and links that take nothing."""
    link = Link(1e15, 0, 0, "device")
    device = ClusterDevice("d", 1e9, 1e18, {"fp32": 1e12}, 0.5)
    return Cluster("c", 1, DEVICES, device, link, link, Storage(1e9, 1e9, 1e9, "half", DEVICES), "intra")


def flat(samples):
    """Milliseconds of a device that is full from 8 samples on: fewer take as long."""
    return max(samples, 8) / 8


class Machine:
    """Measures networks by a law and notes what it was asked for."""

    def __init__(self, law, module=None):
        self.law, self.asked = law, []
        self.module = module or network()

    def __call__(self, samples):
        self.asked.append(samples)
        func = with_batch(self.module, samples).main
        return op_seconds(func, cluster(), "fp32", [((), 1e-3 * self.law(samples))])

    def problem(self):
        seconds = self(BATCH)
        self.asked.clear()
        return PlanningProblem(self.module, "net", cluster(), seconds, "fp32", 256)


def shape(choice):
    d = choice.best.division
    return d.dp, d.tp, d.p, d.micro_batches


TWO_STAGES = RequestedShape(dp=2, tp=1, p=2)


def test_an_optimistic_estimate_leads_to_a_measurement_not_to_a_plan():
    """By shares of the batch many micro-batches are fastest; with the seconds that they take they are not."""
    optimistic = best_division(Machine(flat).problem(), TWO_STAGES).best
    assert (optimistic.division.micro_batches, optimistic.basis) == (16, "estimated")
    machine = Machine(flat)
    found = best_division(machine.problem(), TWO_STAGES, measure=machine, most_sizes=4)
    turns = {m: (m + 1) * flat(BATCH // 2 // m) / 2 for m in (1, 2, 4, 8, 16)}
    assert found.best.division.micro_batches == min(turns, key=turns.__getitem__) == 2
    assert found.best.predicted_s == pytest.approx(1e-3 * turns[2])
    assert (found.best.basis, found.open_) == ("measured", 0)
    assert machine.asked == [1, 16, 8]  # 2 and 4 cannot be faster than 1 is


def test_what_may_be_measured_limits_the_plan():
    """Estimates never win against what was measured, and the report tells that they might."""
    machine = Machine(flat)
    problem = machine.problem()
    found = best_division(problem, TWO_STAGES, measure=machine, most_sizes=1)
    assert machine.asked == [1]
    assert (found.best.division.micro_batches, found.best.basis) == (16, "measured")
    assert found.open_ == 4
    facts = plan_facts(problem, found, [])
    assert facts["measured_batches"] == [32, 1]
    text = report_text(facts)
    assert "4 of the estimated divisions below may be faster" in text
    assert text.count("estimated, at least") == 4
    given = best_division(problem, RequestedShape(dp=2, tp=1, p=2, micro_batches=4))
    told = report_text(plan_facts(problem, given, []))
    assert "estimated: kernels of 4 samples were not measured" in told


def test_sizes_that_cannot_win_are_not_measured():
    """Where time is proportional to samples, a plan that shares are right about needs one measurement."""
    machine = Machine(lambda samples: samples)
    found = best_division(machine.problem(), RequestedShape(tp=1), measure=machine, most_sizes=8)
    assert shape(found)[0] == DEVICES
    assert machine.asked == [8]


def test_ranks_that_share_the_pricing_choose_the_same():
    alone, module = Machine(flat), network()
    wanted = best_division(alone.problem(), RequestedShape(tp=1), measure=alone, most_sizes=4)

    def work(communicator):
        machine = Machine(flat, module)
        found = best_division(machine.problem(), RequestedShape(tp=1), communicator, machine, 4)
        return shape(found), found.best.predicted_s, machine.asked

    expected = (shape(wanted), wanted.best.predicted_s, alone.asked)
    assert ThreadWorld(2, timeout_s=60).run(work) == [expected, expected]


def test_between_measured_sizes_seconds_lie_on_a_line():
    machine = Machine(lambda samples: 3 + samples)
    sizes = SizeTable(machine.module, {32: machine(32), 4: machine(4)})
    assert [sizes.of(n).basis for n in (32, 4, 16)] == ["measured", "measured", "estimated"]
    middle = sizes.of(16)
    assert middle.total_s == pytest.approx(19e-3)
    func = with_batch(machine.module, 16).main
    assert sum(map(middle.ops.of, func.body.ops)) == pytest.approx(19e-3)
    assert middle.least_share == pytest.approx(35 / 2 / 19)  # half of what 32 samples take
    assert sizes.of(5).least_share == pytest.approx(7 / 8)  # what 4 samples take
    below = sizes.of(2)
    assert (below.basis, below.total_s) == ("estimated", pytest.approx(3.5e-3))
    assert sizes.slowness(4) == pytest.approx(7 * 8 / 35)
    falling = Machine(lambda samples: 100 / samples)  # against what is assumed
    assert SizeTable(falling.module, {32: falling(32), 4: falling(4)}).of(16).least_share == 1


def test_a_network_for_one_batch_alone_goes_by_shares():
    g = Graph()
    module = network(net=g.module(g("relu", g("add", g.input(4, 6), g.weight(4, 6)))))
    seconds = op_seconds(module.main, cluster(), "fp32", [((), 1e-3)])
    found = SizeTable(module, {4: seconds}).of(2)
    assert (found.basis, found.least_share) == ("shares", 1.0)
    assert found.total_s == pytest.approx(0.5e-3)
