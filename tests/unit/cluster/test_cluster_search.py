"""The exhaustive search: equal to brute force, deterministic, with every reason counted."""

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from tilewright.costmodel.cluster import (
    Cluster,
    Training,
    Transformer,
    evaluate,
    load_cluster,
    load_model,
    load_training,
    search,
)
from tilewright.costmodel.cluster.modes.configurations import factorisations
from tilewright.ir.errors import InputError

SMALL = Transformer("small", layers=6, hidden=768, heads=12, sequence=512, vocabulary=8000)
OPEN = Training(
    name="open",
    batch=24,
    micro_batches=(1, 2, 3),
    schedules=("PR", "AR", "IM"),
    recompute=(True, False),
    sharding=(0, 1, 3),
    interleave=(1, 3),
    gradients=("device", "storage"),
)


def small_cluster(nodes: int, per_node: int) -> Cluster:
    cluster = load_cluster("dgx-h100")
    storage = replace(cluster.storage, devices=per_node)
    return replace(cluster, nodes=nodes, devices_per_node=per_node, storage=storage)


def only(training, row):
    """The training in which a row's choice is the only one."""
    return replace(
        training,
        micro_batches=(row["micro_batch"],),
        schedules=(row["schedule"],),
        recompute=(row["recompute"],),
        sharding=(row["sharding"],),
        interleave=(row["interleave"],),
        gradients=(row["gradients"],),
    )


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (2, 1), (1, 4), (2, 3), (2, 4)])
def test_search_equals_brute_force(nodes, per_node):
    """Each choice evaluated by itself, one after the other; the smallest time of the feasible ones wins."""
    cluster = small_cluster(nodes, per_node)
    choices = product((1, 2, 3), ("PR", "AR", "IM"), (True, False), (0, 1, 3), (1, 3), ("device", "storage"))
    keys = ("micro_batch", "schedule", "recompute", "sharding", "interleave", "gradients")
    best = np.inf
    for values in choices:
        found = evaluate(cluster, SMALL, only(OPEN, dict(zip(keys, values, strict=True))))
        best = min(best, *np.where(found.feasible, found.total_s, np.inf))
    assert search(cluster, SMALL, OPEN).best["total_s"] == pytest.approx(best, rel=1e-11)


def divides(row, training, model):
    m, rest = divmod(training.batch, row["dp"] * row["micro_batch"])
    chunks = row["interleave"]
    return (
        rest == 0
        and model.layers % row["p"] == 0
        and model.heads % row["wp"] == 0
        and (chunks == 1 or (row["p"] > 1 and model.layers // row["p"] % chunks == 0 and m % row["p"] == 0))
        and (row["sharding"] == 0 or row["dp"] > 1)
        and (row["gradients"] == "device" or row["schedule"] == "AR")
    )


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 1), (2, 4), (3, 2)])
def test_feasible_is_what_divides_and_fits(nodes, per_node):
    cluster = small_cluster(nodes, per_node)
    cluster = replace(cluster, device=replace(cluster.device, memory_bytes=4e8))
    found = evaluate(cluster, SMALL, OPEN)
    rows = [found.row(i) for i in range(len(found.configurations))]
    fits = [r["memory_bytes"] <= 4e8 and r["storage_bytes"] <= r["storage_capacity_bytes"] for r in rows]
    expected = [divides(row, OPEN, SMALL) and fit for row, fit in zip(rows, fits, strict=True)]
    assert found.feasible.tolist() == expected
    assert [not row["infeasible"] for row in rows] == expected
    result = search(cluster, SMALL, OPEN)
    assert result.feasible == sum(expected)
    assert result.configurations == len(rows)
    assert result.infeasible["device memory"] == sum(r["memory_bytes"] > 4e8 for r in rows)
    assert 0 < sum(expected) < len(rows)


def test_every_factorisation_is_there_once():
    triples = factorisations(small_cluster(3, 4), OPEN).tolist()
    by_hand = [[a, b, 12 // (a * b)] for a in range(1, 13) for b in range(1, 13) if 12 % (a * b) == 0]
    assert triples == by_hand
    limited = factorisations(small_cluster(3, 4), replace(OPEN, max_dp=2, max_tp=6, max_p=3)).tolist()
    assert limited == [t for t in by_hand if t[0] <= 2 and t[1] <= 6 and t[2] <= 3]


def test_ranking_is_sorted_and_ties_keep_the_order():
    result = search(small_cluster(2, 4), SMALL, OPEN, top=50)
    times = [row["total_s"] for row in result.rows()]
    assert len(times) == 50
    assert all(b >= a * (1 - 1e-11) for a, b in pairwise(times))
    assert result.ranking == search(small_cluster(2, 4), SMALL, OPEN, top=50).ranking
    # on one device, one stage and one replica nothing moves: these all take the same time
    still = replace(OPEN, schedules=("IM",), recompute=(True,), sharding=(0, 1, 3))
    ties = search(small_cluster(1, 1), SMALL, still, top=3)
    assert len({row["total_s"] for row in ties.rows()}) == 1
    assert list(ties.ranking) == sorted(ties.ranking)
    assert [row["micro_batch"] for row in ties.rows()] == [1, 2, 3]


def test_nothing_feasible_has_no_best():
    cluster = small_cluster(1, 4)
    tiny = replace(cluster, device=replace(cluster.device, memory_bytes=1.0))
    result = search(tiny, SMALL, OPEN)
    assert (result.best, result.feasible, result.rows()) == (None, 0, [])
    assert result.infeasible["device memory"] == result.configurations


def test_uneven_stages_take_what_their_longest_stage_takes():
    cluster = small_cluster(1, 4)
    training = Training("t", batch=24, uneven_stages=True)
    uneven, even = (
        evaluate(cluster, SMALL, training),
        evaluate(cluster, SMALL, replace(training, uneven_stages=False)),
    )
    stages = uneven.configurations.p
    assert uneven.feasible[stages == 4].all()
    assert not even.feasible[stages == 4].any()
    by_layers = evaluate(cluster, replace(SMALL, layers=8, vocabulary=8000), training)
    assert uneven.components_s["compute"][stages == 4] == pytest.approx(
        by_layers.components_s["compute"][stages == 4]
    )


def test_thousands_of_devices_are_searched_in_full():
    cluster = replace(load_cluster("dgx-h100"), nodes=512)
    training = replace(load_training("everything"), batch=4096)
    result = search(cluster, load_model("GPT-3"), training, top=5)
    assert result.configurations == 91 * 5 * 3 * 2 * 4 * 3 * 2
    best = result.best
    assert best["dp"] * best["wp"] * best["p"] == 4096
    assert (
        best["total_s"]
        == evaluate(cluster, load_model("GPT-3"), training)
        .total_s[np.flatnonzero(result.evaluation.feasible)]
        .min()
    )


def test_the_search_has_bounds():
    with pytest.raises(InputError, match="leave no way to use 4 devices"):
        search(small_cluster(1, 4), SMALL, replace(OPEN, max_dp=1, max_tp=1, max_p=1))
    with pytest.raises(InputError, match="rank at least 1"):
        search(small_cluster(1, 4), SMALL, OPEN, top=0)
    with pytest.raises(InputError, match="at most 20000000 configurations"):
        search(small_cluster(4, 1024), SMALL, replace(OPEN, micro_batches=tuple(range(1, 20000))))
    with pytest.raises(InputError, match="no peak for tf32"):
        search(load_cluster("B"), SMALL, replace(OPEN, precision="tf32"))
