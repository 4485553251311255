"""The exact partitioner against every partition, and Algorithm 1, which is never better."""

import numpy as np
import pytest
from partition_graphs import all_partitions, crossing_program, random_program

from tilewright.costmodel import load_hardware
from tilewright.ir import verify
from tilewright.passes import PassContext
from tilewright.passes.tensor.fusion.covers import algorithm1, cheapest_partition, cover, waiting
from tilewright.passes.tensor.fusion.legality import candidates, legal
from tilewright.passes.tensor.fusion.op_graph import OpGraph
from tilewright.passes.tensor.fusion.partitioners import PARTITIONERS, choose, price

H100 = PassContext(target="cuda:sm_90a", hardware=load_hardware("cuda:sm_90a"))


def random_costs(rng, graph):
    """Seconds of every legal set: merging helps or hurts as it falls, more than a model would let it."""
    return {s: float(rng.uniform(0.4, 1.3)) * s.bit_count() ** 0.8 for s in candidates(graph).sets}


def all_legal(graph):
    return {s for s in range(1, 1 << len(graph.ops)) if legal(graph, s) is None}


@pytest.mark.parametrize("seed", range(10))
def test_candidates_are_all_legal_sets(seed):
    rng = np.random.default_rng(seed)
    for _ in range(8):
        module = random_program(rng, int(rng.integers(2, 9)))
        verify(module)
        graph = OpGraph(module.main)
        found = candidates(graph)
        assert found.complete
        assert len(found.sets) == len(set(found.sets))
        assert set(found.sets) == all_legal(graph)


@pytest.mark.parametrize("seed", range(10))
def test_exact_is_the_cheapest_of_all_partitions(seed):
    rng = np.random.default_rng(100 + seed)
    for _ in range(40):
        graph = OpGraph(random_program(rng, int(rng.integers(2, 9))).main)
        costs = random_costs(rng, graph)
        best = cheapest_partition(graph, costs)
        least = min(seconds for _, seconds in all_partitions(graph, costs))
        assert best.exact
        assert best.seconds == pytest.approx(least, rel=1e-12)
        assert sum(costs[s] for s in best.sets) == pytest.approx(best.seconds)
        assert not waiting(graph, best.sets)
        assert sum(best.sets) == (1 << len(graph.ops)) - 1
        printed = algorithm1(graph, costs)
        assert printed.seconds >= best.seconds - 1e-9
        assert not waiting(graph, printed.sets)


def test_the_cheapest_cover_may_wait_for_itself_and_is_not_taken():
    graph = OpGraph(crossing_program().main)
    costs = {s: 1.0 if s.bit_count() == 1 else 1.5 for s in candidates(graph).sets}
    pairs = (0b010001, 0b100010)
    assert all(p in costs for p in pairs)
    costs |= dict.fromkeys(pairs, 0.5)
    free = cover((1 << len(graph.ops)) - 1, costs)
    assert set(pairs) <= set(free.sets)
    assert waiting(graph, free.sets)
    best = cheapest_partition(graph, costs)
    assert best.exact
    assert not waiting(graph, best.sets)
    assert best.seconds == min(t for _, t in all_partitions(graph, costs)) > free.seconds


def test_algorithm1_misses_three_that_only_pay_together():
    """A chain of which no pair pays, but all three do: exact finds it, merging by pairs does not."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        graph = OpGraph(random_program(rng, 3).main)
        sets = candidates(graph).sets
        if 0b111 in sets and len(graph.ops) == 3:
            costs = {s: 1.0 if s == 0b111 else 3.0 * s.bit_count() for s in sets}
            assert cheapest_partition(graph, costs).sets == (0b111,)
            assert algorithm1(graph, costs).seconds == 9.0
            return
    pytest.fail("no chain of three that may be one kernel")


def test_a_beam_says_that_it_is_one():
    rng = np.random.default_rng(3)
    graph = OpGraph(random_program(rng, 14).main)
    costs = random_costs(rng, graph)
    few = cheapest_partition(graph, costs, max_states=1)
    many = cheapest_partition(graph, costs)
    assert (few.exact, many.exact) == (False, True)
    assert few.seconds > many.seconds
    assert not waiting(graph, few.sets)


def test_by_the_model_no_partitioner_beats_exact():
    rng = np.random.default_rng(11)
    for _ in range(12):
        priced = price(random_program(rng, 8).main, H100)
        found = {name: choose(priced, name) for name in PARTITIONERS}
        assert found["exact"].exact
        assert found["exact"].seconds <= min(c.seconds for c in found.values()) + 1e-15
        assert all(not waiting(priced.graph, c.sets) for c in found.values())
        least = min(t for _, t in all_partitions(priced.graph, priced.seconds))
        assert found["exact"].seconds == pytest.approx(least, rel=1e-12)
