"""Stream plans of small graphs against brute force, and the laws every plan keeps."""

import random
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from stream_graphs import best_covers, closure, enforced, random_graph, reduction, small_graphs

from tilewright.runtime.errors import InputError
from tilewright.runtime.streams import Dag, StreamPlan, check_plan, find_plan_faults, plan_streams
from tilewright.runtime.streams.chain_cover import width

CONCURRENT = ("exact", "nimble", "nimble-code", "resource")


def as_edges(dag):
    return dag.n, frozenset(dag.edges)


@lru_cache(maxsize=8192)
def exact_plan(dag):
    return plan_streams(dag)


def test_reduction_and_closure_of_small_graphs():
    for dag in small_graphs():
        pairs = closure(*as_edges(dag))
        assert set(dag.reduced) == reduction(*as_edges(dag))
        assert {(u, v) for u in range(dag.n) for v in range(dag.n) if dag.ordered(u, v)} == pairs
        assert len(dag.order) == dag.n
        assert all(dag.position[u] < dag.position[v] for u, v in dag.edges)


def test_exact_is_optimal_on_small_graphs():
    for dag in small_graphs():
        plan = exact_plan(dag)
        best = best_covers(*as_edges(dag))
        syncs = min(best.values())
        streams = min(count for count, value in best.items() if value == syncs)
        assert (len(plan.syncs), len(plan.streams)) == (syncs, streams), dag.edges


def test_nimble_has_fewest_synchronisations_on_small_graphs():
    for dag in small_graphs():
        plan = plan_streams(dag, "nimble")
        assert len(plan.syncs) == min(best_covers(*as_edges(dag)).values())


def test_width_is_the_fewest_chains():
    for dag in small_graphs():
        assert width(dag) == min(best_covers(*as_edges(dag)))


@pytest.mark.parametrize("policy", CONCURRENT)
def test_plans_enforce_the_closure_and_no_more(policy):
    for dag in small_graphs()[:: 1 if policy == "exact" else 5]:
        plan = exact_plan(dag) if policy == "exact" else plan_streams(dag, policy)
        assert enforced(plan) == closure(*as_edges(dag))
        assert sorted(v for nodes in plan.streams for v in nodes) == list(range(dag.n))
        if policy != "nimble-code":
            assert set(plan.syncs) <= reduction(*as_edges(dag))


@pytest.mark.parametrize("policy", ["serial", "limited(1)", "limited(2)", "limited(3)", "ios"])
def test_other_plans_enforce_all_edges(policy):
    for dag in small_graphs()[::6]:
        plan = plan_streams(dag, policy)
        assert set(dag.edges) <= enforced(plan)
        assert find_plan_faults(dag, plan) == []
        if policy in ("serial", "limited(1)"):
            assert len(plan.streams) == min(1, dag.n)
            assert not plan.syncs


def test_limited_keeps_all_concurrency_where_it_can():
    for index, dag in enumerate(small_graphs()):
        limit = 2 + index % 2
        plan = plan_streams(dag, f"limited({limit})")
        assert len(plan.streams) <= limit
        narrow = min(best_covers(*as_edges(dag))) <= limit
        assert (enforced(plan) == closure(*as_edges(dag))) == narrow
        if len(exact_plan(dag).streams) <= limit:
            assert plan == exact_plan(dag)


def lexicographic_optimum(dag):
    """Synchronisations and streams by one assignment on the closure: reduced edges weigh n + 1, others 1."""
    weight = np.zeros((dag.n, dag.n))
    for u in range(dag.n):
        for v in range(dag.n):
            weight[u, v] = dag.ordered(u, v)
    for u, v in dag.reduced:
        weight[u, v] = dag.n + 1
    taken = weight[linear_sum_assignment(weight, maximize=True)]
    return len(dag.reduced) - int((taken > 1).sum()), dag.n - int((taken > 0).sum())


def test_exact_is_the_maximum_weight_matching_on_larger_graphs():
    rng = random.Random(7)
    better = 0
    for _ in range(200):
        dag = random_graph(rng, rng.randint(9, 60), rng.randint(1, 4), rng.choice([5, 12, 60]))
        plan = plan_streams(dag)
        assert (len(plan.syncs), len(plan.streams)) == lexicographic_optimum(dag)
        check_plan(dag, plan, concurrent=True)
        merged = plan_streams(dag, "nimble-code")
        assert len(plan.streams) <= len(merged.streams) <= len(plan_streams(dag, "nimble").streams)
        better += len(plan.streams) < len(merged.streams)
    assert better > 10


def test_nimble_code_waits_for_implied_parents():
    dag = Dag.of(4, [(0, 1), (1, 2), (0, 3), (3, 2), (0, 2)])
    assert len(plan_streams(dag, "nimble-code").syncs) == len(plan_streams(dag).syncs) == 2
    wide = Dag.of(6, [(0, 1), (1, 2), (3, 4), (4, 5), (0, 5), (1, 5), (0, 4)])
    assert len(plan_streams(wide).syncs) == 2
    assert len(plan_streams(wide, "nimble-code").syncs) == 3


def test_plan_is_the_same_every_time():
    rng = random.Random(1)
    dag = random_graph(rng, 25, 3, 4)
    again = Dag.of(dag.n, rng.sample(dag.edges, len(dag.edges)) + list(dag.edges[:5]))
    for policy in (*CONCURRENT, "ios", "limited(3)"):
        assert plan_streams(dag, policy) == plan_streams(again, policy)


@pytest.mark.parametrize("policy", ["exact", "serial", "nimble", "limited(2)", "ios", "resource"])
def test_plans_of_no_node_and_one_node(policy):
    assert plan_streams(Dag.of(0, []), policy) == StreamPlan((), (), ())
    assert plan_streams(Dag.of(1, []), policy) == StreamPlan(((0,),), (), (0,))


DIAMOND = Dag.of(4, [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)])


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"syncs": ((0, 2),)}, "edge [2, 3] is not enforced"),
        ({"streams": ((0, 1, 3),)}, "node 2 is 0 times on the streams"),
        ({"streams": ((0, 1, 3), (2, 2))}, "node 2 is 2 times on the streams"),
        ({"streams": ((0, 1, 3), (2, 9))}, "node 9 is 1 times on the streams"),
        ({"syncs": ((0, 2), (2, 3), (0, 1))}, "joins nodes of one stream"),
        ({"syncs": ((0, 2), (2, 3), (3, 2))}, "contradict each other"),
        ({"syncs": ((0, 2), (2, 3), (1, 7))}, "names a node that is on no stream"),
        ({"order": (0, 1, 3, 2)}, "3 is launched before 2"),
        ({"order": (0, 1, 2)}, "node 3 is 0 times in the launch order"),
        ({"syncs": ((0, 2), (2, 3), (2, 1))}, "1 waits for 2, on which it does not depend"),
    ],
)
def test_checker_finds(change, fault):
    plan = StreamPlan(((0, 1, 3), (2,)), ((0, 2), (2, 3)), (0, 2, 1, 3))
    check_plan(DIAMOND, plan, concurrent=True)
    with pytest.raises(InputError) as error:
        check_plan(DIAMOND, replace(plan, **change), concurrent=True)
    assert fault in str(error.value)


@pytest.mark.parametrize(
    ("n", "edges", "message"),
    [
        (3, [(0, 1), (1, 2), (2, 0)], "without cycles, got"),
        (3, [(0, 0)], "got 0 -> 0"),
        (3, [(0, 3)], r"edge \[0, 3\]: expected nodes from 0 to 2"),
        (3, [(-1, 2)], r"edge \[-1, 2\]"),
        (-1, [], "got -1"),
        (10**6, [], "got 1000000"),
    ],
)
def test_bad_graphs_are_refused(n, edges, message):
    with pytest.raises(InputError, match=message):
        Dag.of(n, edges)


def test_the_cycle_that_is_named_is_one():
    edges = [(5, 0), (0, 1), (1, 2), (2, 3), (3, 1), (3, 4)]
    with pytest.raises(InputError, match="cycles") as error:
        Dag.of(6, edges)
    nodes = [int(v) for v in str(error.value).split("got ")[1].split(" -> ")]
    assert nodes[0] == nodes[-1]
    assert set(pairwise(nodes)) <= set(edges)


@pytest.mark.parametrize("policy", ["exact", "nimble", "limited(8)", "resource"])
def test_large_graphs(policy):
    dag = random_graph(random.Random(3), 3000, 3, 40)
    check_plan(dag, plan_streams(dag, policy), concurrent=policy != "limited(8)")
