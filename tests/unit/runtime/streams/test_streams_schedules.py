"""Policies that depend on what nodes take: stages, orders, list schedules, the model, choosing a plan."""

import math
import random
from itertools import combinations

import pytest
from stream_graphs import all_graphs, closure, random_graph

from tilewright.runtime.errors import InputError
from tilewright.runtime.streams import (
    Dag,
    Work,
    check_plan,
    choose_plan,
    find_plan_faults,
    plan_streams,
    replay_time,
)
from tilewright.runtime.streams.chain_cover import width
from tilewright.runtime.streams.policies import ios
from tilewright.runtime.streams.stages import Pruning, find_stages

FORK = Dag.of(6, [(0, v) for v in (1, 2, 3, 4)] + [(v, 5) for v in (1, 2, 3, 4)])


def random_work(rng, n, sync_cost=0.25):
    costs = [rng.choice([0.0, 1.0, 2.0, 5.0]) for _ in range(n)]
    shares = [rng.choice([0.0, 0.2, 0.5, 1.0]) for _ in range(n)]
    return Work.of(n, costs, shares, sync_cost)


def components(nodes, edges):
    """The connected parts of `nodes`, as sorted tuples."""
    left, parts = set(nodes), []
    while left:
        part, fresh = set(), {min(left)}
        while fresh:
            part |= fresh
            fresh = {w for u, v in edges for w in (u, v) if {u, v} & part and {u, v} <= left} - part
        left -= part
        parts.append(tuple(sorted(part)))
    return parts


def least_stage_time(dag, work):
    """Over all sequences of stages, by trying every set that may run last, the least sum of their times."""
    pairs = closure(dag.n, frozenset(dag.edges))
    best = {frozenset(): 0.0}

    def solve(nodes):
        if nodes not in best:
            options = []
            for size in range(1, len(nodes) + 1):
                for last in map(frozenset, combinations(sorted(nodes), size)):
                    if all(v in last for u, v in pairs if u in last and v in nodes):
                        options.append(solve(nodes - last) + work.stage_time(components(last, dag.edges)))
            best[nodes] = min(options)
        return best[nodes]

    return solve(frozenset(range(dag.n)))


def test_stages_are_optimal_on_small_graphs():
    rng = random.Random(2)
    graphs = [*all_graphs(4), *(random_graph(rng, 6, 2, 6) for _ in range(60))]
    for dag in graphs:
        work = random_work(rng, dag.n)
        stages = find_stages(dag, work.stage_time, Pruning(group_nodes=9, groups=9))
        assert sum(map(work.stage_time, stages)) == pytest.approx(least_stage_time(dag, work))
        assert sorted(v for stage in stages for group in stage for v in group) == list(range(dag.n))


def test_stages_keep_to_the_pruning():
    rng = random.Random(5)
    for _ in range(15):
        dag = random_graph(rng, 12, 2, 6)
        stages = find_stages(dag, random_work(rng, 14).stage_time, Pruning(group_nodes=2, groups=3))
        assert max(map(len, stages)) <= 3
        assert max(len(group) for stage in stages for group in stage) <= 2
        for stage in stages:
            assert sorted(stage) == components([v for group in stage for v in group], dag.edges)


def test_stages_follow_the_given_times():
    alone = find_stages(FORK, lambda groups: 10.0 if len(groups) > 1 else 1.0)
    assert max(map(len, alone)) == 1
    together = find_stages(FORK, lambda groups: 1.0, Pruning(group_nodes=1))
    assert [len(stage) for stage in together] == [1, 4, 1]


def test_barriers_keep_stages_apart():
    dag = Dag.of(6, [(0, 2), (1, 3), (2, 4), (3, 5)])
    plan = ios(dag, Work.of(6), lambda groups: 1.0 if len(groups) == 2 else 9.0, Pruning(group_nodes=1))
    assert plan.streams == ((0, 2, 4), (1, 3, 5))
    assert set(plan.syncs) == {(0, 3), (1, 2), (2, 5), (3, 4)}


def test_a_small_allowance_still_gives_a_plan():
    dag = random_graph(random.Random(8), 100, 1, 100)
    plan = ios(dag, Work.of(100), pruning=Pruning(endings=50))
    assert find_plan_faults(dag, plan) == []


def test_model_of_a_fork():
    plan = plan_streams(FORK)
    assert replay_time(plan, Work.of(6)) == 3
    assert replay_time(plan_streams(FORK, "serial"), Work.of(6)) == 6
    assert replay_time(plan, Work.of(6, shares=[0.5] * 6)) == 4
    assert replay_time(plan, Work.of(6, shares=[1.0] * 6)) == 6
    assert replay_time(plan, Work.of(6, sync_cost=0.5)) == 4  # one wait after the fork, one before the join
    assert replay_time(plan_streams(FORK, "limited(2)"), Work.of(6)) == 4


def test_model_keeps_within_its_bounds():
    rng = random.Random(9)
    for _ in range(60):
        dag = random_graph(rng, rng.randint(1, 12), 2, 5)
        work = random_work(rng, dag.n, sync_cost=0.0)
        longest = max(work.remaining(dag))
        area = sum(c * s for c, s in zip(work.costs, work.shares, strict=True))
        for policy in ("exact", "resource", "limited(2)", "ios", "serial"):
            time = replay_time(plan_streams(dag, policy, work), work)
            assert max(longest, area) - 1e-6 <= time <= sum(work.costs) + 1e-6


def test_resource_order_is_never_worse_in_the_model():
    rng = random.Random(10)
    better = 0
    for _ in range(80):
        dag = random_graph(rng, 25, 2, 25)
        work = random_work(rng, dag.n)
        plain, ordered = plan_streams(dag), plan_streams(dag, "resource", work)
        assert ordered.streams == plain.streams
        assert ordered.syncs == plain.syncs
        check_plan(dag, ordered, concurrent=True)
        times = replay_time(ordered, work), replay_time(plain, work)
        assert times[0] <= times[1] + 1e-9
        better += times[0] < times[1] - 1e-9
    assert better > 20


def test_list_schedule_starts_the_longest_way_first():
    dag = Dag.of(5, [(3, 4)])
    plan = plan_streams(dag, "limited(2)", Work.of(5, costs=[1, 1, 1, 2, 2]))
    assert set(plan.streams) == {(3, 4), (0, 1, 2)}
    assert plan.syncs == ()


def test_limited_between_width_and_optimum_keeps_concurrency():
    rng = random.Random(11)
    graphs = (random_graph(rng, 40, 4, 12) for _ in range(500))
    one = next(dag for dag in graphs if width(dag) < len(plan_streams(dag).streams))
    shifted = [(u + one.n * copy, v + one.n * copy) for copy in range(3) for u, v in one.edges]
    dag = Dag.of(3 * one.n, shifted)
    plans = [plan_streams(dag)]
    while len(plans[-1].streams) > width(dag):
        limit = len(plans[-1].streams) - 1
        plans.append(plan_streams(dag, f"limited({limit})"))
        check_plan(dag, plans[-1], concurrent=True)
        assert len(plans[-1].streams) == limit
        assert len(plans[-1].syncs) > len(plans[-2].syncs)
    assert len(plans) >= 4


def test_choice_takes_the_fastest_and_measures_each_plan_once():
    seen = []

    def measure(plan):
        seen.append(plan)
        return abs(len(plan.streams) - 2)

    choice = choose_plan(FORK, measure, policies=("serial", "exact", "nimble", "limited(2)", "limited(1)"))
    assert choice.policy == "limited(2)"
    assert choice.plan == plan_streams(FORK, "limited(2)")
    assert choice.times == {"serial": 1, "exact": 2, "nimble": 2, "limited(2)": 0, "limited(1)": 1}
    assert len(seen) == len(set(seen)) == 3


def test_equally_fast_plans_leave_the_first():
    assert choose_plan(FORK, lambda plan: 1.0).policy == "serial"
    with pytest.raises(InputError, match="at least one policy"):
        choose_plan(FORK, lambda plan: 1.0, policies=())


@pytest.mark.parametrize("policy", ["fast", "limited", "limited(0)", "limited(-1)", "limited(x)", "auto", ""])
def test_unknown_policies_are_refused(policy):
    with pytest.raises(InputError, match=r"policies|measures"):
        plan_streams(FORK, policy)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"costs": [1, 2]}, "costs: expected 3 numbers"),
        ({"costs": [1, -2, 1]}, r"costs\[1\]: expected a finite"),
        ({"costs": [1, math.inf, 1]}, r"costs\[1\]: expected a finite"),
        ({"shares": [0, 0, 1.5]}, r"resources\[2\]: expected a share"),
        ({"shares": [math.nan, 0, 1]}, r"resources\[0\]"),
        ({"sync_cost": -1}, "sync_cost"),
    ],
)
def test_bad_work_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        Work.of(3, **given)
