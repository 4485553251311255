"""split-batch: samples over devices, in proportion to their speeds, some without any."""

import numpy as np
import pytest
from distributed_networks import Graph, check, cnn, mlp, names_of, ranks_of, transformer
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.costmodel.partition.naive import apportioned
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.passes.graph.distribute.split_batch import split_batch

NETWORKS = {"mlp": mlp, "cnn": cnn, "transformer": transformer}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("devices", "speeds"), [(2, ""), (3, "1,3,2")])
def test_equals_the_whole(name, devices, speeds):
    module = NETWORKS[name]()
    modules = check(module, split_batch, devices, speeds=speeds)
    assert names_of(modules[0]) == ["all_gather"] * len(module.main.result_types)


def test_more_devices_than_samples():
    modules = check(transformer(batch=2), split_batch, 4)
    (gather,) = (op for op in modules[3].main.body.ops if op.name == "graph.all_gather")
    assert gather["extents"] == (1, 1, 0, 0)
    assert gather.operands[0].tensor.shape[0] == 0


def test_heads_follow_their_samples():
    """The merged batch * heads axis is cut at whole samples, and nothing is gathered between."""
    (module, *_) = ranks_of(transformer(batch=3, heads=2), split_batch, 2)
    products = [op for op in module.main.body.ops if op.name == "graph.batch_matmul"]
    assert [op.result.tensor.shape[0] for op in products] == [4, 4]


def test_what_mixes_samples_is_gathered_and_then_cut_again():
    g = Graph()
    x = g.input(4, 6)
    mixed = g("softmax", g("relu", x), axis=0)
    modules = check(g.module(g("add", g("tanh", mixed), x)), split_batch, 2)
    assert names_of(modules[0]) == ["all_gather", "all_gather"]
    (softmax,) = (op for op in modules[0].main.body.ops if op.name == "graph.softmax")
    assert softmax.operands[0].tensor.shape == (4, 6)


def test_other_axes_and_inputs_without_a_batch():
    g = Graph()
    x, mask, state = g.input(5, 4, 3), g.input(5, 1, 3), g.input(4, 3)
    y = g("add", g("multiply", x, mask), state)
    modules = check(g.module(g("sum", y, axis=(0,))), split_batch, 2, axis=1)
    assert names_of(modules[0]) == ["all_gather"]
    (total,) = (op for op in modules[0].main.body.ops if op.name == "graph.sum")
    assert total.operands[0].tensor.shape == (5, 2, 3)


def test_one_device_keeps_the_module():
    module = mlp()
    assert split_batch(devices=1)(module) is module


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 2, "rank": 2}, "rank in"),
        ({"devices": 2, "speeds": "1,2,3"}, "'speeds' expects 2 numbers, got 3"),
        ({"devices": 2, "speeds": "fast,slow"}, "expects numbers such as 1,2,1, got 'fast,slow'"),
        ({"devices": 2, "speeds": "0,0"}, "one speed above 0"),
        ({"devices": 2, "speeds": "1,-1"}, "at least 0"),
        ({"devices": 2, "axis": 7}, "dimension 7"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        split_batch(**options)(mlp())


def test_a_distributed_module_is_refused():
    module = split_batch(devices=2)(mlp())
    with pytest.raises(UnsupportedError, match="not distributed yet"):
        split_batch(devices=2)(module)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 12), st.lists(st.sampled_from([0, 1, 2, 3.5]), min_size=2, max_size=3).filter(any))
def test_no_other_share_is_done_earlier(units, speeds):
    def slowest(counts):
        return max((n / s if s else np.inf) if n else 0 for n, s in zip(counts, speeds, strict=True))

    parts = apportioned(units, speeds)
    assert [a for a, _ in parts][1:] == [b for _, b in parts][:-1]
    assert (parts[0][0], parts[-1][1]) == (0, units)
    others = [c for c in np.ndindex(*(units + 1,) * len(speeds)) if sum(c) == units]
    assert slowest([b - a for a, b in parts]) <= min(map(slowest, others)) + 1e-12
