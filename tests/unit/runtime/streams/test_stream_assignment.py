"""Stream plans on execution plans: edges, order, memory, choice by model, by name and by measurement."""

import random
from dataclasses import replace

import numpy as np
import pytest
from concat_networks import network

import tilewright as tw
from tilewright.costmodel import load_hardware
from tilewright.measuring.stream_choice import KernelCost, choose_streams, work_of
from tilewright.runtime.errors import DeviceMissingError, InputError
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch
from tilewright.runtime.plan.hazards import check_hazards
from tilewright.runtime.streams import Dag, Work, plan_streams
from tilewright.runtime.streams.assignment import with_streams

POLICIES = ("serial", "exact", "nimble", "nimble-code", "ios", "resource", "limited(2)")


def plan_of(dag, size=1024):
    """A plan with one launch per node that reads what its predecessors wrote."""
    buffers = [Buffer("x", "float32", (size,), "input", 4 * size)]
    buffers += [
        Buffer(f"b{i}", "float32", (size,), "arena" if dag.successors[i] else "output", 4 * size)
        for i in range(dag.n)
    ]
    launches = [
        Launch(
            "k",
            (*(f"b{u}" for u in dag.predecessors[i]), "x", f"b{i}"),
            (1, 1, 1),
            32,
            deps=dag.predecessors[i],
            writes=(len(dag.predecessors[i]) + 1,),
            origin=(f"node {i}",),
        )
        for i in range(dag.n)
    ]
    outputs = tuple(f"b{i}" for i in range(dag.n) if not dag.successors[i])
    code = KernelCode("k", "k", "cuda", "")
    return ExecutionPlan("null", tuple(buffers), (code,), tuple(launches), ("x",), outputs, 0)


def random_dag(rng, n, p):
    return Dag.of(n, [(u, v) for v in range(n) for u in range(v) if rng.random() < p])


@pytest.mark.parametrize("policy", POLICIES)
def test_edges_are_the_reduced_edges_of_what_the_streams_enforce(policy):
    rng = random.Random(policy)
    for n in (1, 2, 5, 9, 14):
        dag = random_dag(rng, n, 0.3)
        streams = plan_streams(dag, policy)
        placed = with_streams(plan_of(dag), streams)
        check_hazards(placed)
        got = placed.dag
        node = dict(enumerate(streams.order))
        assert {(node[u], node[v]) for u, v in got.edges} == set(streams.happens_before.reduced)
        assert all(placed.launches[i].origin == (f"node {node[i]}",) for i in range(n))
        assert all(got.position[u] < got.position[v] for u, v in got.edges)
        if policy in ("exact", "nimble", "nimble-code", "resource"):
            assert {(node[u], node[v]) for u, v in got.edges} == set(dag.reduced)


def test_memory_is_shared_only_under_the_new_order():
    """Two branches that run side by side cannot share bytes; one after the other they can."""
    dag = Dag.of(6, [(0, 1), (1, 2), (2, 5), (0, 3), (3, 4), (4, 5)])
    serial = with_streams(plan_of(dag), plan_streams(dag, "serial"))
    side_by_side = with_streams(plan_of(dag), plan_streams(dag, "exact"))
    assert serial.arena_bytes < side_by_side.arena_bytes
    assert len({x.stream for x in side_by_side.launches}) == 2


def test_streams_of_another_graph_are_refused():
    dag, other = Dag.of(3, [(0, 1), (1, 2)]), Dag.of(3, [(0, 2)])
    with pytest.raises(InputError, match="leave launch 1 free to run before launch 0"):
        with_streams(plan_of(dag), plan_streams(other, "exact"))
    with pytest.raises(InputError, match="expected streams of 3 launches, got 2"):
        with_streams(plan_of(dag), plan_streams(Dag.of(2, []), "exact"))


class Clock:
    """A device that says how long a plan of so many streams takes."""

    def __init__(self, seconds_by_streams):
        self.seconds, self.loads, self.plan = seconds_by_streams, 0, None

    def load(self, plan, constants):
        self.loads += 1
        loaded = Clock(self.seconds)
        loaded.plan = plan
        return loaded

    def time(self, inputs, repeats):
        return [self.seconds(len({x.stream for x in self.plan.launches}))] * repeats

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def choose(seconds, policy="auto"):
    dag = Dag.of(6, [(0, 1), (1, 5), (0, 2), (2, 5), (0, 3), (3, 5), (0, 4), (4, 5)])
    plan = plan_of(dag)
    work = work_of(plan, {"k": KernelCost(5e-6, 0.1)}, load_hardware("opencl"))
    return choose_streams(plan, policy, work, constants={}, device=lambda: Clock(seconds))


def test_auto_takes_what_is_measured_to_be_fastest():
    assert len({x.stream for x in choose(lambda n: 1.0 / n).plan.launches}) == 4
    two = choose(lambda n: 1.0 if n == 2 else 2.0)
    assert (two.policy, two.chosen_by) == ("limited(2)", "measurement")
    assert two.facts()["replay_s"]["serial"] == 2.0


def test_the_model_plans_no_streams_that_cannot_pay():
    dag = Dag.of(6, [(0, 1), (1, 5), (0, 2), (2, 5), (0, 3), (3, 5), (0, 4), (4, 5)])
    plan = plan_of(dag)
    whole, part = (Work.of(6, [5e-6] * 6, [share] * 6, 1e-6) for share in (1.0, 0.1))
    # On a CPU every launch takes the whole device.
    chosen = choose_streams(plan, "model", whole, constants={}, device=Clock)
    assert (chosen.policy, chosen.seconds) == ("serial", {"serial": pytest.approx(30e-6)})
    assert choose_streams(plan, "model", part, constants={}, device=Clock).facts()["count"] > 1


@pytest.mark.parametrize(("parallel_s", "count"), [(0.97, 1), (0.5, 2)])
def test_streams_are_worth_their_memory(parallel_s, count):
    """Two branches side by side take 1.67 times the arena: worth half of the time, not 3 % of it."""
    dag = Dag.of(6, [(0, 1), (1, 2), (2, 5), (0, 3), (3, 4), (4, 5)])
    plan = plan_of(dag)
    large = plan.replace(
        buffers=tuple(
            replace(b, nbytes=b.nbytes << 16, shape=(b.shape[0] << 16, *b.shape[1:]))
            if b.kind == "arena"
            else b
            for b in plan.buffers
        )
    )
    work = work_of(plan, {"k": KernelCost(5e-6, 0.1)}, load_hardware("opencl"))
    clock = Clock(lambda n: 1.0 if n == 1 else parallel_s)
    chosen = choose_streams(large, "auto", work, constants={}, device=lambda: clock)
    assert chosen.facts()["count"] == count


def test_auto_stays_serial_without_a_clear_gain():
    assert choose(lambda n: 1.0 if n == 1 else 0.995).policy == "serial"
    assert choose(lambda n: 1.0).policy == "serial"


def test_a_named_policy_is_not_measured():
    def refuse(n):
        raise AssertionError("nothing is to be measured")

    assert choose(refuse, "exact").facts() == {
        "policy": "exact",
        "chosen_by": "name",
        "count": 4,
        "synchronisations": 6,
        "edges": 8,
        "replay_s": {},
    }


def test_auto_without_a_device_says_so(monkeypatch, module):
    def missing(target):
        raise DeviceMissingError("this machine has no NVIDIA driver")

    monkeypatch.setattr("tilewright.api.open_device", missing)
    with pytest.raises(tw.WorkError, match="no NVIDIA driver"):
        tw.compile(module, target="cuda:sm_90a", streams="auto")


@pytest.fixture(scope="module")
def module():
    """Three modules of SqueezeNet's kind: convolutions side by side, joined."""
    params, lines, given = [("x", (1, 32, 12, 12))], [], "%x"
    for i in range(3):
        params += [(f"s{i}", (8, 32, 1, 1)), (f"a{i}", (16, 8, 1, 1)), (f"b{i}", (16, 8, 3, 3))]
        lines.append(f"%c{i} = graph.conv2d({given}, %s{i}) : f32[1, 8, 12, 12]")
        lines.append(f"%r{i} = graph.relu(%c{i}) : f32[1, 8, 12, 12]")
        lines.append(f"%d{i} = graph.conv2d(%r{i}, %a{i}) : f32[1, 16, 12, 12]")
        lines.append(f"%e{i} = graph.conv2d(%r{i}, %b{i}, padding = [1, 1, 1, 1]) : f32[1, 16, 12, 12]")
        lines.append(f"%j{i} = graph.concatenate(%d{i}, %e{i}, axis = 1) : f32[1, 32, 12, 12]")
        given = f"%j{i}"
    return network(params, lines, [(given, (1, 32, 12, 12))])


def test_compiling_with_streams(module):
    serial = tw.compile(module, target="cuda:sm_90a", streams="serial")
    exact = tw.compile(module, target="cuda:sm_90a", streams="exact")
    model = tw.compile(module, target="cuda:sm_90a")
    assert serial.report()["streams"]["count"] == 1
    assert exact.report()["streams"]["count"] > 1
    facts = model.report()["streams"]
    assert facts["chosen_by"] == "model"
    assert facts["replay_s"][facts["policy"]] <= facts["replay_s"]["serial"]
    for exe in (serial, exact, model):
        check_hazards(exe.plan)


def test_streams_do_not_change_results(module):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.shape).astype(np.float32) for t in module.input_types]
    results = []
    for policy in ("serial", "exact", "limited(2)"):
        with tw.compile(module, target="opencl", streams=policy) as exe:
            results.append(exe(*inputs)[0])
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[0], results[2])


def test_bad_streams_and_instances(module):
    with pytest.raises(tw.InputError, match="expected streams among model, auto"):
        tw.compile(module, target="null", streams="limited(0)")
    with pytest.raises(tw.InputError, match="positive number of instances, got 0"):
        tw.compile(module, target="null", instances=0)


def test_chosen_plans_have_few_streams():
    """A replay of very many streams would cost the host more than it saves the device."""
    n = 40
    dag = Dag.of(n, [(0, v) for v in range(1, n - 1)] + [(v, n - 1) for v in range(1, n - 1)])
    plan = plan_of(dag)
    work = work_of(plan, {"k": KernelCost(5e-6, 0.0)}, load_hardware("opencl"))
    chosen = choose_streams(plan, "auto", work, constants={}, device=lambda: Clock(lambda n: 1.0 / n))
    assert chosen.facts()["count"] == 8
    assert "exact" not in chosen.seconds
    named = choose_streams(plan, "exact", work, constants={}, device=lambda: Clock(lambda n: 1.0 / n))
    assert named.facts()["count"] == n - 2
