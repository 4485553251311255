"""Search of one layer: printed optima, the thesis' baseline, and exact against every partition."""

import random

import pytest

from tilewright.costmodel.partition.exact import least_objective
from tilewright.costmodel.partition.intervals import (
    count_partitions,
    free_space,
    interval_space,
    limited,
    partitions,
    threshold_sizes,
)
from tilewright.costmodel.partition.linked import least_max, least_sum
from tilewright.costmodel.partition.naive import output_extent, split_extent
from tilewright.costmodel.partition.objective import LayerObjective, Weights
from tilewright.costmodel.partition.pruned import pruned_search
from tilewright.ir import InputError, UnsupportedError
from tilewright.ir.windows import RowWindow


def required(output, devices, kernel, stride=1):
    pad = kernel // 2
    rows = output_extent(output, kernel, stride, pads=(pad, pad))
    window = RowWindow(kernel, stride, pad_before=pad)
    return tuple(window.reads(cut, output) for cut in split_extent(rows, devices))


def equal_devices(output, devices, threshold, kernel, stride=1):
    space = interval_space(output, threshold_sizes(output, [1] * devices, threshold))
    return space, LayerObjective((1.0,) * devices, required(output, devices, kernel, stride))


def test_minimal_counterexample_of_the_pruning():
    space, objective = equal_devices(8, 2, 20, 3)
    assert objective.required == ((0, 5), (3, 8))
    assert least_objective(space, objective) == (((0, 5), (3, 8)), 5.0)
    found = pruned_search(space, objective)
    assert (found.intervals, found.value, found.evaluated) == (((0, 4), (4, 8)), 6.0, 3)
    assert objective.value([(0, 4), (3, 8)]) == pytest.approx(6.5556, abs=1e-4)


@pytest.mark.parametrize(("threshold", "evaluated"), [(5, 26), (10, 48), (15, 70), (20, 92)])
def test_evaluations_of_the_pruned_search(threshold, evaluated):
    assert pruned_search(*equal_devices(448, 2, threshold, 3)).evaluated == evaluated


@pytest.mark.parametrize(
    ("devices", "kernel", "stride", "exact", "pruned"),
    [
        (2, 3, 1, 225, 226),
        (2, 5, 1, 226, 228),
        (2, 3, 2, 225, 225),
        (4, 3, 1, 114.5022, 115.0),
        (4, 5, 1, 117.0087, 121.7651),
    ],
)
def test_exact_and_pruned_on_the_thesis_tensor(devices, kernel, stride, exact, pruned):
    case = equal_devices(448, devices, 5, kernel, stride)
    found = least_objective(*case)
    assert found.value == pytest.approx(exact, abs=5e-5)
    assert case[1].value(found.intervals) == found.value
    assert pruned_search(*case).value == pytest.approx(pruned, abs=5e-5)


def test_other_exact_optima_of_four_devices():
    assert least_objective(*equal_devices(448, 4, 5, 3, 2)).value == pytest.approx(113.2517, abs=5e-5)
    space, _ = equal_devices(448, 4, 5, 3)
    assert least_objective(space, LayerObjective((1.0,) * 4)).value == 112


def test_largest_case_is_the_same_at_every_threshold():
    """5e28 partitions; a wider threshold allows all that a narrower one does."""
    values = [least_objective(*equal_devices(448, 16, t, 3)).value for t in (5, 10, 15, 20)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(30.1288, abs=5e-5)


def random_instance(draws):
    output, devices = draws.randint(3, 10), draws.randint(1, 3)
    overlap = draws.random() < 0.6
    speeds = tuple(draws.choice([1, 1, 2, 3, 0.5]) for _ in range(devices))
    if draws.random() < 0.5:
        space = free_space(output, [draws.randint(1, output) for _ in speeds], overlap=overlap)
    else:
        sizes = threshold_sizes(output, speeds, draws.choice([20, 50, 80, 120]))
        space = interval_space(output, sizes, overlap=overlap)
        if draws.random() < 0.5:
            space = limited(space, [draws.randint(2, output) for _ in speeds])
    starts = [draws.randint(0, output) for _ in speeds]
    wanted = tuple((start, draws.randint(start, output)) for start in starts)
    weights = Weights(*(draws.choice([0, 1, 1, 2.5]) for _ in range(4)), corrected=draws.random() < 0.5)
    if weights.imbalance and weights.maximum_in_imbalance < 1:
        weights = Weights(1.5, weights.fetched, weights.cropped, weights.imbalance)
    objective = LayerObjective(speeds, None if draws.random() < 0.2 else wanted, weights)
    return space, objective


def test_exact_is_the_least_of_all_partitions():
    draws = random.Random(1)
    impossible = 0
    for _ in range(250):
        space, objective = random_instance(draws)
        every = [objective.value(p) for p in partitions(space)]
        assert count_partitions(space) == len(every)
        if not every:
            impossible += 1
            with pytest.raises(InputError, match="expected sizes and memory that allow"):
                least_objective(space, objective)
            continue
        found = least_objective(space, objective)
        assert found.value == pytest.approx(min(every), rel=1e-12)
        assert found.intervals in set(partitions(space))
    assert 0 < impossible < 100


@pytest.mark.parametrize(
    ("output", "speeds", "wanted", "weights"),
    [
        (12, (0.5, 3, 0.5), ((8, 8), (10, 12), (4, 7)), (0, 2, 1, 1)),
        (13, (3, 3, 2), ((4, 8), (7, 9), (0, 9)), (0.1, 0.3, 1, 3)),
        (11, (3, 1, 0.5), ((3, 6), (10, 11), (1, 6)), (0.1, 0.3, 0.1, 3)),
        (9, (2, 3, 2), ((8, 9), (6, 9), (9, 9)), (0, 0.1, 0.1, 10)),
        (10, (0.5, 1, 2), ((8, 10), (5, 10), (7, 7)), (1, 2, 1, 3)),
    ],
)
def test_optimum_inside_the_hull(output, speeds, wanted, weights):
    """The ends of the hull are no optimum here, nor is what lies on either side of its first piece."""
    space = free_space(output, [output] * len(speeds), overlap=True)
    objective = LayerObjective(speeds, wanted, Weights(*weights, corrected=True))
    found = least_objective(space, objective)
    assert found.value == pytest.approx(min(map(objective.value, partitions(space))), rel=1e-12)


def test_sums_and_maxima_of_any_costs():
    draws = random.Random(8)
    for _ in range(60):
        space, _ = random_instance(draws)
        tables = [node.valid * 0.0 for node in space.nodes]
        for table in tables:
            table.flat = [draws.choice([0, 1, 2, 5, float("inf")]) for _ in range(table.size)]
        every = [
            [
                float(t[s - n.starts.start, e - s - n.sizes.start])
                for t, n, (s, e) in zip(tables, space.nodes, p, strict=True)
            ]
            for p in partitions(space)
        ]
        for search, total in ((least_sum, sum), (least_max, max)):
            best = min((total(costs) for costs in every), default=float("inf"))
            if best == float("inf"):
                with pytest.raises(InputError):
                    search(space, tables)
            else:
                assert search(space, tables).value == best


def test_bad_objectives_are_refused():
    space, objective = equal_devices(8, 2, 20, 3)
    with pytest.raises(UnsupportedError, match="use the corrected objective"):
        least_objective(space, LayerObjective((1.0, 1.0), None, Weights(slowest=0.5)))
    with pytest.raises(InputError, match="expected finite weights"):
        Weights(fetched=-1)
    with pytest.raises(InputError, match="one required interval per device"):
        LayerObjective((1.0,), objective.required)
    with pytest.raises(InputError, match="expected 2 speeds, got 1"):
        least_objective(space, LayerObjective((1.0,)))


def test_the_pruned_search_tells_how_far_it_is(monkeypatch):
    from tilewright.costmodel.partition import pruned

    monkeypatch.setattr(pruned, "PROGRESS_EVERY", 1)
    case = equal_devices(64, 3, 20, 3)
    told = []
    found = pruned_search(*case, progress=lambda share, evaluated: told.append((share, evaluated)))
    assert found == pruned_search(*case)
    shares = [share for share, _ in told]
    assert shares == sorted(shares)
    assert 0 <= shares[0] < shares[-1] < 1
    assert told[-1][1] <= found.evaluated
