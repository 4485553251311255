"""What to save: minimum cuts and integer programs against all choices of small random problems."""

import random
from itertools import combinations, pairwise
from math import inf

import pytest

from tilewright.passes.graph.recompute import saving_problem
from tilewright.passes.graph.recompute.saving_problem import (
    Recomputable,
    Saving,
    SavingProblem,
    cheapest,
    cheapest_within,
    hull,
)


def problem(seed: int, most: int) -> SavingProblem[int]:
    """A random network of at most `most` values: ops with one or two results and up to three operands."""
    rng = random.Random(seed)
    size = rng.randrange(1, most + 1)
    ops: list[Recomputable[int]] = []
    made = 0
    while made < size:
        count = min(rng.choice((1, 1, 1, 2)), size - made)
        reads = tuple(rng.sample(range(made), min(made, rng.choice((0, 1, 1, 2, 3)))))
        again_s = inf if rng.random() < 0.1 else rng.choice((0.0, 1e-6, 1e-4)) * rng.random()
        ops.append(Recomputable(reads, tuple(range(made, made + count)), again_s))
        made += count
    values = {
        v: Saving(rng.randrange(1, 100), *(rng.choice((0.0, 1e-5)) * rng.random() for _ in range(3)))
        for v in range(size)
    }
    return SavingProblem(tuple(ops), values, frozenset(v for v in values if rng.random() < 0.5))


def every_choice(p: SavingProblem[int]) -> list[frozenset[int]]:
    possible = [i for i, op in enumerate(p.ops) if op.again_s < inf]
    return [frozenset(c) for n in range(len(possible) + 1) for c in combinations(possible, n)]


@pytest.mark.parametrize("seed", range(40))
def test_the_cut_is_the_best_of_all_choices(seed):
    p = problem(seed, 12)
    choices = every_choice(p)
    for byte_s in (0.0, 1e-7, 1e-6):
        cost = {c: p.seconds(c) + byte_s * p.nbytes(c) for c in choices}
        assert cost[cheapest(p, byte_s)] <= min(cost.values()) + 1e-7 * max(cost.values())


@pytest.mark.parametrize("seed", range(20))
def test_the_integer_program_is_the_best_of_all_choices_within_a_budget(seed):
    p = problem(1000 + seed, 14)
    choices = every_choice(p)
    for nbytes in (0, 60, 200, 500):
        fitting = [p.seconds(c) for c in choices if p.nbytes(c) <= nbytes]
        choice = cheapest_within(p, nbytes)
        if not fitting:
            assert choice is None
        else:
            assert choice is not None
            assert p.nbytes(choice) <= nbytes
            assert p.seconds(choice) == pytest.approx(min(fitting), rel=1e-7, abs=1e-15)


@pytest.mark.parametrize("seed", range(20))
def test_corners_of_the_hull_bound_every_choice(seed):
    p = problem(2000 + seed, 10)
    corners = [(p.nbytes(c), p.seconds(c)) for c in hull(p)]
    assert corners == sorted(corners, key=lambda c: (-c[0], c[1]))
    for c in every_choice(p):
        nbytes, seconds = p.nbytes(c), p.seconds(c)
        for (more, fast), (less, slow) in pairwise(corners):
            if less <= nbytes <= more:
                line = fast + (slow - fast) * (more - nbytes) / (more - less)
                assert seconds >= line - 1e-9 * abs(line) - 1e-15
    assert min(n for n, _ in corners) == corners[-1][0]


def test_a_program_that_is_stopped_leaves_the_corner_that_fits(monkeypatch):
    p = problem(1003, 14)
    monkeypatch.setattr(saving_problem, "_by_integer_program", lambda *_: None)
    corner = hull(p)[-1]
    assert p.nbytes(cheapest_within(p, p.nbytes(corner))) <= p.nbytes(corner)


def test_what_nobody_needs_is_not_computed_again():
    """Op 1 is free, but nothing of the backward pass depends on it."""
    ops = (Recomputable((), (0,), 0.0), Recomputable((0,), (1,), 0.0))
    costs = {v: Saving(10, 1.0, 1.0, 1.0) for v in range(2)}
    p = SavingProblem(ops, costs, frozenset({0}))
    assert cheapest(p) == {0}
    assert p.useful([0, 1]) == {0}
