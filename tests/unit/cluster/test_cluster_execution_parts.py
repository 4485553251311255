"""Networks divided by samples, weights and stages at once give what the whole network gives."""

import numpy as np
import pytest
from distributed_networks import Graph, cnn, inputs_of, mlp, names_of, transformer

import tilewright as tw
from tilewright.cluster.planning.parallel_plan import ParallelPlan, RankCoordinates
from tilewright.cluster.planning.parts import part_of
from tilewright.ir.interpreter.lockstep import interpret_ranks
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.pipelines import GRAPH


def divided(net, dp, tp, p, micro_batches, least=256):
    """All ranks' modules of a network cut behind two thirds of its ops, compared with the whole one."""
    net = run_pipeline(net, GRAPH, PassContext(reproducer_folder=None))
    cuts = (len(net.main.body.ops) * 2 // 3,) * (p - 1)
    division = ParallelPlan(dp, tp, p, micro_batches, cuts, least)
    parts = [part_of(net, division, rank) for rank in range(division.devices)]
    arrays = inputs_of(net)
    wanted = tw.interpret(net, *arrays, precision="fp64")
    for part in parts:
        assert [v.type for v in part.main.params] == [v.type for v in net.main.params]
    for got in interpret_ranks(parts, *arrays, precision="fp64"):
        for g, w in zip(got, wanted, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-11, atol=1e-11)
    return parts


@pytest.mark.parametrize(
    "net", [mlp(batch=4), cnn(batch=4), transformer(batch=4, heads=4)], ids=["mlp", "cnn", "gpt"]
)
@pytest.mark.parametrize("shape", [(2, 2, 1, 1), (2, 1, 2, 2), (1, 2, 2, 2), (2, 2, 2, 1)], ids=str)
def test_ways_to_divide_compose(net, shape):
    divided(net, *shape)


def test_each_way_alone_is_its_pass():
    assert set(names_of(divided(mlp(batch=4), 2, 1, 1, 1)[0])) == {"all_gather"}
    assert "all_reduce" in names_of(divided(mlp(batch=4), 1, 2, 1, 1)[0])
    assert set(names_of(divided(mlp(batch=4), 1, 1, 2, 2)[0])) == {"send", "recv"}


def test_groups_of_ranks():
    division = ParallelPlan(2, 3, 2, 1, (5,))
    assert [division.coordinates(r) for r in (0, 4, 6, 11)] == [
        RankCoordinates(0, 0, 0),
        RankCoordinates(0, 1, 1),
        RankCoordinates(1, 0, 0),
        RankCoordinates(1, 1, 2),
    ]
    for r in range(division.devices):
        place = division.coordinates(r)
        assert division.rank(place.stage, place.replica, place.part) == r
        assert division.tensor_group(place)[place.part] == r
        assert division.batch_group(place)[place.replica] == r
    assert division.tensor_group(RankCoordinates(1, 0, 0)) == (6, 7, 8)
    assert division.batch_group(RankCoordinates(1, 0, 2)) == (8, 11)


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(tw.InputError, match="2 replicas share evenly, got 3"):
        divided(mlp(batch=3), 2, 1, 2, 1)
    with pytest.raises(tw.UnsupportedError, match="expected a weight of at least 1000000 bytes"):
        divided(mlp(batch=4), 1, 2, 1, 1, least=1_000_000)
    with pytest.raises(tw.InputError, match="at most 4 micro-batches, got 5"):
        divided(mlp(batch=4), 1, 1, 2, 5)
    g = Graph()
    mixing = g.module(g("mean", g("relu", g.input(4, 3)), axis=(0,), keepdims=True))
    with pytest.raises(tw.UnsupportedError, match="work on samples one by one"):
        divided(mixing, 2, 1, 2, 1)
    divided(mixing, 2, 1, 1, 1)  # replicas without stages may gather


@pytest.mark.parametrize(
    "wrong", [{"dp": 0}, {"p": 2}, {"p": 3, "cuts": (4, 2)}, {"micro_batches": 2}], ids=str
)
def test_divisions_that_mean_nothing_are_refused(wrong):
    with pytest.raises(tw.InputError, match="expected"):
        ParallelPlan(**wrong)
