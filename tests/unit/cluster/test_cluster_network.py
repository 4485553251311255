"""Units of a network from its graph: known counts, live values at cuts, even stages, and planning."""

from dataclasses import replace
from itertools import combinations, pairwise

import pytest

import tilewright as tw
from tilewright.costmodel.cluster import (
    NetworkModel,
    Training,
    Unit,
    evaluate,
    load_cluster,
    network_model,
    network_units,
    search,
)
from tilewright.ir.errors import InputError

CHAIN = """
module @net() {
  graph.func @main(
    %x: f32[2, 3, 8, 8], %w1: f32[4, 3, 3, 3], %w2: f32[6, 2, 3, 3], %w3: f32[10, 384]
  ) -> f32[2, 10] {
    %0 = graph.conv2d(%x, %w1, padding = [1, 1, 1, 1]) : f32[2, 4, 8, 8]
    %1 = graph.relu(%0) : f32[2, 4, 8, 8]
    %2 = graph.conv2d(%1, %w2, padding = [1, 1, 1, 1], groups = 2) : f32[2, 6, 8, 8]
    %3 = graph.max_pool2d(%0, pool_size = [1, 1]) : f32[2, 4, 8, 8]
    %4 = graph.batch_flatten(%2) : f32[2, 384]
    %5 = graph.dense(%4, %w3) : f32[2, 10]
    %6 = graph.sum(%3, axis = [1, 2, 3], keepdims = false) : f32[2]
    %7 = graph.expand_dims(%6, axis = 1) : f32[2, 1]
    %8 = graph.add(%5, %7) : f32[2, 10]
    graph.return(%8)
  }
}
"""


def chain():
    return network_units(tw.parse(CHAIN).main, inputs=["x"])


def test_units_of_a_small_network():
    first, second, third = chain()
    assert [u.name for u in (first, second, third)] == ["0:conv2d", "1:conv2d", "2:dense"]
    assert [u.parameters for u in (first, second, third)] == [4 * 3 * 9, 6 * 2 * 9, 10 * 384]
    assert first.flops == 2 * 4 * 64 * 27 + 4 * 64
    assert second.flops == 2 * 6 * 64 * 18 + 4 * 64
    assert third.flops == 2 * 10 * 384 + 4 * 64 + 10
    assert (first.inside, second.inside) == (2 * 4 * 64, 6 * 64 + 4 * 64)
    assert [u.channels for u in (first, second, third)] == [4, 6, 10]
    assert [u.reduced for u in (first, second, third)] == [4 * 64, 6 * 64, 10]


def test_a_cut_sends_what_is_still_used():
    """Before the second unit both results of the first are alive, as one skips ahead."""
    assert [u.crossing for u in chain()] == [3 * 64, 2 * 4 * 64, 384 + 4 * 64]


@pytest.mark.parametrize(
    ("name", "parameters", "flops", "units"),
    [
        # published: 25.6 M parameters (and 53,120 of norms), 3.9 G multiply-adds (stride on 1x1)
        ("resnet50", 25.6e6, 7.75e9, 54),
        # published: 138.36 M, 15.5 G multiply-adds; 13 convolutions, 3 dense layers
        ("vgg16", 138.36e6, 30.97e9, 16),
        # published: 109.5 M with a pooler; 128 tokens of 24 x 768^2 x 12 layers and attention
        ("bert_base", 109e6, 22.4e9, 72),
    ],
)
def test_known_networks(data_dir, name, parameters, flops, units):
    module = tw.frontends.relay.load(str(data_dir / "relay" / f"{name}.relay"))
    samples = [hint for hint in module.input_names if hint == "data" or hint.endswith("ids")]
    net = network_model(module.main, name, inputs=samples)
    assert net.layers == units
    assert sum(u.parameters for u in net.units) == pytest.approx(parameters, rel=0.01)
    assert sum(u.flops for u in net.units) == pytest.approx(flops, rel=0.01)
    if name == "resnet50":
        training = Training(
            "t", batch=256, micro_batches=(1, 4, 8), schedules=("PR", "AR", "IM"), precision="fp32"
        )
        cluster = replace(load_cluster("dgx-a100"), nodes=4)
        result = search(cluster, net, training)
        assert result.feasible > 100
        assert result.best["schedule"] == "IM"
        assert result.best["components_s"]["compute"] >= 3 * 7.7e9 * 256 / 32 / (0.5 * 19.5e12) * 0.99


def synthetic(flops, channels=8):
    return NetworkModel("net", tuple(
        Unit(str(i), 10, float(f), 5.0, 7.0 + i, channels, 5.0) for i, f in enumerate(flops)
    ))  # fmt: skip


@pytest.mark.parametrize(
    "flops", [[1], [5, 1, 1, 1, 5], [1, 9, 2, 3, 3, 2, 8, 1], [0, 0, 4, 0], [3, 3, 3, 3, 3, 3]]
)
def test_stages_are_as_even_as_brute_force_finds(flops):
    net, n = synthetic(flops), len(flops)
    for p in range(1, n + 1):
        cuts = net.cuts(p)
        assert (cuts[0], cuts[-1], len(cuts)) == (0, n, p + 1)
        assert all(a < b for a, b in pairwise(cuts))
        best = min(
            max(sum(flops[a:b]) for a, b in zip((0, *inner), (*inner, n), strict=True))
            for inner in combinations(range(1, n), p - 1)
        )
        assert net.stage(p).flops == best


def test_the_load_of_a_stage_is_the_worst_of_all():
    load = synthetic([1, 1, 4, 1, 1]).stage(3)
    assert (load.flops, load.units, load.parameters) == (4, 2, 20)
    assert (load.edge, load.boundary, load.largest_boundary) == (10.0, 10.0 + 11.0, 11.0)
    with pytest.raises(InputError, match="expected 1 to 5 stages of net, got 6"):
        synthetic([1, 1, 4, 1, 1]).cuts(6)


def test_a_network_is_cut_where_its_channels_and_units_allow():
    cluster = replace(load_cluster("dgx-a100"), nodes=1)
    found = evaluate(cluster, synthetic([1e9] * 3, channels=6), Training("t", batch=64))
    c = found.configurations
    assert found.against["more stages than layers"].tolist() == (c.p > 3).tolist()
    assert found.against["layer not divisible by wp"].tolist() == (6 % c.tp != 0).tolist()
    assert not found.against["layers not divisible by p"].any()


def test_faults():
    func = tw.parse(CHAIN).main
    with pytest.raises(InputError, match=r"expected inputs among x, w1, w2, w3, got .'y'"):
        network_units(func, inputs=["y"])
    with pytest.raises(InputError, match="at least one sample"):
        network_units(func, samples=0)
    nothing = "module @m() { graph.func @main(%x: f32[2]) -> f32[2] { graph.return(%x) } }"
    with pytest.raises(InputError, match="@main: expected a network that computes something"):
        network_units(tw.parse(nothing).main)
    with pytest.raises(InputError, match="as no input has dimensions"):
        network_units(tw.parse(nothing.replace("f32[2]", "f32[]")).main)
