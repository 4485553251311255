"""Maximum cycle ratios: closed forms of rings, all cycles of small graphs, deadlocks."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.costmodel.kernels.cycle_ratio import Edge, deadlock, maximum_cycle_ratio


def ring(copy: float, latency: float, multiply: float, slots: int) -> list[Edge]:
    """A producer and a consumer that holds one item back: it gives a slot back as it starts the next item."""
    return [
        Edge("acquire", "acquire", copy, 1),
        Edge("acquire", "receive", latency),
        Edge("receive", "receive", multiply, 1),
        Edge("receive", "release", multiply),
        Edge("release", "acquire", 0.0, slots),
    ]


@pytest.mark.parametrize(
    ("copy", "latency", "multiply", "slots", "binding"),
    [(100, 700, 512, 4, 512), (600, 700, 512, 4, 600), (100, 1800, 512, 2, 1156), (10, 2000, 100, 3, 700)],
)
def test_rings_are_bound_by_the_copy_the_product_or_the_way_around(copy, latency, multiply, slots, binding):
    found = maximum_cycle_ratio(ring(copy, latency, multiply, slots))
    assert found.clk == pytest.approx(binding)
    assert binding == pytest.approx(max(copy, multiply, (latency + multiply) / slots))
    assert sum(e.clk for e in found.cycle) / sum(e.tokens for e in found.cycle) == pytest.approx(binding)


def test_two_teams_multiply_in_turn():
    """Each writes while the other multiplies; the turn is handed on when the last chunk was received."""
    multiply, write = 600.0, 500.0
    edges = [
        Edge("first", "second", multiply),
        Edge("second", "first", multiply, 1),
        Edge("first", "first", multiply + write, 1),
        Edge("second", "second", multiply + write, 1),
    ]
    assert maximum_cycle_ratio(edges).clk == pytest.approx(2 * multiply)  # writing costs nothing


def test_a_cycle_without_a_token_is_a_deadlock():
    edges = [Edge("a", "b", 1.0), Edge("b", "c", 0.0), Edge("c", "a", 2.0), Edge("c", "c", 1.0, 1)]
    assert {e.source for e in deadlock(edges)} == {"a", "b", "c"}
    with pytest.raises(ValueError, match="token on every cycle"):
        maximum_cycle_ratio(edges)
    assert deadlock(edges[1:]) == ()
    assert maximum_cycle_ratio([Edge("a", "b", 5.0)]).clk == 0.0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 50), st.integers(1, 3)),
        min_size=1,
        max_size=9,
    )
)
def test_all_cycles_of_small_graphs(rows):
    edges = [Edge(a, b, float(clk), tokens) for a, b, clk, tokens in rows]
    best = 0.0
    for count in range(1, 6):
        for nodes in itertools.permutations(range(5), count):
            if nodes[0] != min(nodes):
                continue
            steps = [
                [e for e in edges if (e.source, e.target) == step]
                for step in zip(nodes, (*nodes[1:], nodes[0]), strict=True)
            ]
            for path in itertools.product(*steps):
                best = max(best, sum(e.clk for e in path) / sum(e.tokens for e in path))
    assert maximum_cycle_ratio(edges).clk == pytest.approx(best)
