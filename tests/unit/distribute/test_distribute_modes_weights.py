"""split-weights: columns, then rows with one sum; heads; all ranks together hold a split weight once."""

import numpy as np
import pytest
from distributed_networks import Graph, attention, check, cnn, mlp, names_of, ranks_of, transformer

from tilewright.passes.graph.distribute.split_weights import split_weights


def split(module, devices, min_bytes=1, **options):
    return check(module, split_weights, devices, min_bytes=min_bytes, **options)


def held(modules):
    """Elements of all constants of all ranks together."""
    return sum(a.size for m in modules for a in m.constants.values())


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("network", [mlp, cnn, transformer])
def test_equals_the_whole(network, devices):
    split(network(), devices)


def test_two_dense_layers_need_one_sum():
    g = Graph()
    x = g.input(3, 8)
    modules = split(g.module(g.linear(g("relu", g.linear(x, 16)), 5)), 2)
    assert names_of(modules[0]) == ["all_reduce"]
    shapes = [sorted(a.shape for a in m.constants.values()) for m in modules]
    assert shapes == [[(5,), (5, 8), (8,), (8, 8)]] * 2


def test_a_lone_layer_is_split_by_columns_and_gathered():
    g = Graph()
    x = g.input(3, 8)
    modules = split(g.module(g.linear(x, 7)), 2)
    assert names_of(modules[0]) == ["all_gather"]
    assert [sorted(a.shape for a in m.constants.values()) for m in modules] == [
        [(4,), (4, 8)],
        [(3,), (3, 8)],
    ]


@pytest.mark.parametrize(
    ("heads", "devices", "parts"), [(4, 2, [2, 2]), (6, 4, [2, 2, 1, 1]), (3, 2, [2, 1])]
)
@pytest.mark.parametrize("fused", [False, True])
def test_heads_stay_whole_and_local(heads, devices, parts, fused):
    """Query, key and value by heads, everything between per head, the projection by rows: one sum."""
    g = Graph()
    x = g.input(2, 5, heads * 4)
    modules = split(g.module(attention(g, x, heads, fused)), devices)
    assert names_of(modules[0]) == ["all_reduce"]
    for m, own in zip(modules, parts, strict=True):
        products = [op.result.tensor.shape[0] for op in m.main.body.ops if op.name == "graph.batch_matmul"]
        assert products == [2 * own] * 2


@pytest.mark.parametrize(("heads", "devices"), [(4, 2), (6, 3), (6, 4)])
def test_heads_behind_parts_of_one_dimension(heads, devices):
    """[.., 3 * heads * depth] as [.., 3, heads, depth]: heads are cut, not query, key and value."""
    g = Graph()
    x = g.input(2, 5, heads * 4)
    y = g("reshape", g.linear(x, 3 * heads * 4), newshape=(2, 5, 3, heads, 4))
    parts = g("split", g("transpose", y, axes=(2, 0, 3, 1, 4)), indices=(1, 2), axis=0)
    q, k, v = (g("squeeze", p, axis=(0,)) for p in parts)
    scores = g("softmax", g("matmul", q, k, transpose_b=True))
    y = g("transpose", g("matmul", scores, v), axes=(0, 2, 1, 3))
    modules = split(g.module(g.linear(g("reshape", y, newshape=(2, 5, heads * 4)), heads * 4)), devices)
    assert names_of(modules[0]) == ["all_reduce"]


def test_a_block_needs_two_sums():
    """Embedding and logits are gathered once each; a block adds up once per attention and once per MLP."""
    for layers in (1, 2):
        modules = ranks_of(transformer(layers=layers), split_weights, 2, min_bytes=400)
        assert names_of(modules[0]) == ["all_gather", *["all_reduce"] * 2 * layers, "all_gather"]


def test_grouped_queries_share_keys():
    g = Graph()
    batch, length, heads, groups, depth = 2, 3, 8, 4, 2
    x = g.input(batch, length, 6)

    def headed(count):
        y = g("reshape", g.linear(x, count * depth), newshape=(batch, length, count, depth))
        return g("transpose", y, axes=(0, 2, 1, 3))

    q, k = headed(heads), g("repeat", headed(groups), repeats=heads // groups, axis=1)
    scores = g("softmax", g("matmul", q, k, transpose_b=True))
    modules = split(g.module(g("sum", scores, axis=(3,))), 2)
    assert names_of(modules[0]) == ["all_gather"]


def test_convolutions_alternate_between_channels_out_and_in():
    g = Graph()
    x = g.input(2, 3, 6, 6)
    modules = split(g.module(g.conv(g.conv(g.conv(x, 8, 3), 8, 3, groups=8), 6, 1)), 2, min_bytes=100)
    names = names_of(modules[0])
    assert names == ["all_reduce"]
    depthwise = [op for op in modules[0].main.body.ops if op.get("groups") == 4]
    assert len(depthwise) == 1


def test_every_split_weight_is_held_once():
    module = transformer(layers=2)
    modules = ranks_of(module, split_weights, 3, min_bytes=400)
    small = sum(a.size for a in module.constants.values() if a.nbytes < 400)
    large = sum(a.size for a in module.constants.values() if a.nbytes >= 400)
    assert large <= held(modules) <= large + 3 * small


def test_speeds_decide_how_much_is_held():
    g = Graph()
    x = g.input(3, 8)
    modules = split(g.module(g.linear(g("relu", g.linear(x, 16)), 5)), 2, speeds="3,1")
    assert [max(a.size for a in m.constants.values()) for m in modules] == [12 * 8, 4 * 8]


def test_a_device_without_speed_holds_nothing_of_what_is_split():
    g = Graph()
    x = g.input(3, 8)
    modules = split(g.module(g.linear(g("relu", g.linear(x, 16)), 5)), 2, speeds="1,0")
    assert [max(a.size for a in m.constants.values()) for m in modules] == [16 * 8, 5]


def test_small_weights_stay_whole():
    module = mlp()
    modules = split(module, 2, min_bytes=1 << 20)
    assert names_of(modules[0]) == []
    assert held(modules) == 2 * sum(a.size for a in module.constants.values())


def test_a_weight_used_twice_is_split_in_one_way():
    """The table of an embedding that is also the last layer's weight."""
    g = Graph()
    ids = g.input(2, 3, dtype="i32")
    table = g.weight(50, 8)
    x = g("tanh", g("take", table, ids, axis=0))
    modules = split(g.module(g("dense", x, table)), 2)
    assert [sorted(a.shape for a in m.constants.values()) for m in modules] == [[(50, 4)]] * 2


def test_weights_come_through_what_is_done_to_constants():
    """A transposed weight of a batch_matmul, as frontends write dense layers on three dimensions."""
    g = Graph()
    x = g.input(2, 3, 8)
    w = g("broadcast_to", g("transpose", g.weight(10, 8), axes=(1, 0)), shape=(1, 8, 10))
    modules = split(g.module(g("batch_matmul", x, w)), 2)
    assert [a.shape for m in modules for a in m.constants.values()] == [(1, 8, 5)] * 2


def test_gates_of_a_recurrent_cell():
    """Each rank has its part of all four gates; the state is gathered, which is less than adding gates up."""
    g = Graph()
    width = 8
    x, h, c = g.input(2, 6), g.input(2, width), g.input(2, width)
    for _ in range(2):
        gates = g("add", g.linear(x, 4 * width), g.linear(h, 4 * width))
        i, f, o, z = g("split", gates, indices=(width, 2 * width, 3 * width), axis=1)
        c = g("add", g("multiply", g("sigmoid", f), c), g("multiply", g("sigmoid", i), g("tanh", z)))
        h = g("multiply", g("sigmoid", o), g("tanh", c))
    modules = split(g.module(h), 2, min_bytes=600)
    assert names_of(modules[0]) == ["all_gather", "all_gather"]
    assert all(np.prod(a.shape) <= 16 * 8 for m in modules for a in m.constants.values())
