"""Boundaries free in every layer: the minimum cut against every choice of boundaries."""

import itertools
import random

import numpy as np
import pytest

from tilewright.costmodel.partition.chain import ChainLayer
from tilewright.costmodel.partition.free_boundaries import BoundaryProblem, least_boundaries, linear_costs
from tilewright.costmodel.partition.naive import output_extent
from tilewright.costmodel.partition.ordered_cut import OrderedProblem
from tilewright.ir import InputError


def convex_costs(draws, rows, cap):
    bends = np.sort([draws.choice([0, 1, 1, 3, 4]) for _ in range(rows)])
    costs = np.concatenate([[draws.choice([0, 2])], np.zeros(0)]) + np.concatenate([[0], np.cumsum(bends)])
    costs = costs.astype(np.float64)
    costs[min(rows, cap) + 1 :] = np.inf
    return costs


def random_problem(draws):
    rows = draws.randint(3, 7)
    layers = []
    for _ in range(draws.randint(1, 3)):
        kernel, stride, pad = draws.randint(1, 3), draws.randint(1, 2), draws.randint(0, 1)
        kernel = min(kernel, rows + 2 * pad)
        made = output_extent(rows, kernel, stride, 1, (pad, pad))
        layers.append(ChainLayer(rows, made, kernel, stride, 1, pad))
        rows = made
    devices = draws.randint(1, 3 if len(layers) < 3 else 2)
    computing = tuple(
        tuple(
            convex_costs(draws, layer.output_rows, draws.choice([99, 99, 2, layer.output_rows // 2 + 1]))
            for _ in range(devices)
        )
        for layer in layers
    )
    return BoundaryProblem(tuple(layers), computing, tuple(draws.choice([0, 1, 2]) for _ in layers[1:]))


def every_choice(problem):
    per_layer = []
    for layer in problem.layers:
        rows = layer.output_rows
        inner = itertools.combinations_with_replacement(range(rows + 1), problem.devices - 1)
        per_layer.append([list(itertools.pairwise([0, *cuts, rows])) for cuts in inner])
    return itertools.product(*per_layer)


def crossing_by_rows(problem, layer, cut, cut_after):
    """Every row of a layer, every boundary, every device on the other side that needs the row."""
    after, count = problem.layers[layer + 1], 0
    for i in range(problem.devices - 1):
        border, border_after = cut[i][1], cut_after[i][1]
        rows_of = [(0, border_after), (border_after, after.output_rows)]
        below, above = (after.reads(rows) if rows[0] < rows[1] else (0, 0) for rows in rows_of)
        count += sum(1 for row in range(border, problem.layers[layer].output_rows) if row < below[1])
        count += sum(1 for row in range(border) if above[1] and row >= above[0])
    return count


def test_cut_is_the_best_of_all_boundaries():
    draws = random.Random(11)
    impossible = strides = 0
    for _ in range(80):
        problem = random_problem(draws)
        best = min(problem.value(choice) for choice in every_choice(problem))
        strides += any(layer.stride > 1 for layer in problem.layers[1:])
        if best == np.inf:
            impossible += 1
            with pytest.raises(InputError, match=r"expected (caps that leave|a cap of)"):
                least_boundaries(problem)
            continue
        found = least_boundaries(problem)
        assert (found.value, found.gap) == (best, 0.0)
        assert problem.value(found.intervals) == best
    assert 0 < impossible < 40
    assert strides > 20


def test_costs_are_counted_row_by_row():
    draws = random.Random(12)
    for _ in range(20):
        problem = random_problem(draws)
        choice = draws.choice(list(every_choice(problem)))
        wanted = sum(
            table[end - start]
            for tables, cut in zip(problem.computing, choice, strict=True)
            for table, (start, end) in zip(tables, cut, strict=True)
        ) + sum(
            weight * crossing_by_rows(problem, n, choice[n], choice[n + 1])
            for n, weight in enumerate(problem.crossing)
        )
        assert problem.value(choice) == wanted


def test_fractions_are_solved_within_the_gap():
    draws = random.Random(13)
    for _ in range(20):
        whole = random_problem(draws)
        computing = tuple(
            tuple(table * draws.uniform(0.1, 1) for table in tables) for tables in whole.computing
        )
        problem = BoundaryProblem(whole.layers, computing, tuple(0.37 * c for c in whole.crossing))
        best = min(problem.value(choice) for choice in every_choice(problem))
        if best < np.inf:
            found = least_boundaries(problem)
            assert best <= found.value <= best + found.gap + 1e-12
            assert found.gap < 1e-3


def test_caps_move_boundaries_towards_the_faster_device():
    layers = (ChainLayer(12, 12, 3, 1, 1, 1), ChainLayer(12, 6, 2, 2))
    computing = tuple(
        (linear_costs(layer.output_rows, 3.0, cap), linear_costs(layer.output_rows, 1.0, cap))
        for layer, cap in zip(layers, (9.0, 5.0), strict=True)
    )
    found = least_boundaries(BoundaryProblem(layers, computing, (1.0,)))
    assert found.intervals == (((0, 3), (3, 12)), ((0, 1), (1, 6)))
    assert found.value == 9 + 9 + 3 + 5 + 1


def test_boundaries_do_not_cross():
    """Negative rows on the expensive device in the middle would pay, were they allowed."""
    layer = ChainLayer(6, 6)
    tables = tuple(linear_costs(6, seconds) for seconds in (0.0, 4.0, 0.0))
    found = least_boundaries(BoundaryProblem((layer, layer), (tables, tables), (1.0,)))
    assert found.value == 0
    assert all(cut[1][0] == cut[1][1] for cut in found.intervals)


def test_bad_problems_are_refused():
    layer = ChainLayer(4, 4)
    with pytest.raises(InputError, match="convex in the rows"):
        BoundaryProblem((layer,), ((np.array([0, 3, 4, 5, 6.0]),),), ())
    with pytest.raises(InputError, match="finite from 0 rows up to a cap"):
        BoundaryProblem((layer,), ((np.array([0, np.inf, 4, 5, 6.0]),),), ())
    with pytest.raises(InputError, match="of every layer"):
        BoundaryProblem((layer,), (), ())
    with pytest.raises(InputError, match="expected 0 crossing costs"):
        BoundaryProblem((layer,), ((np.arange(5.0),),), (1.0,))
    with pytest.raises(InputError, match="submodular"):
        OrderedProblem([2, 2]).add_pair(0, 1, np.outer(np.arange(3.0), np.arange(3.0)))
