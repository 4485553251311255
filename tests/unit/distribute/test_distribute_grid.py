"""split-space in rows and columns: equal results, corners that come with the second exchange, refusals."""

import pytest
from distributed_networks import Graph, check, cnn, communications

from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.passes.graph.distribute.space.options import SpaceOptions
from tilewright.passes.graph.distribute.split_space import split_modules, split_space


def chain(rows=22, columns=18):
    """Windows of several forms, with uneven padding, and elementwise ops."""
    g = Graph()
    y = g.conv(g.conv(g.input(2, 3, rows, columns), 4, 3), 4, 3)
    y = g("max_pool2d", y, pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    y = g("conv2d", y, g.weight(5, 4, 4, 3), padding=(2, 1, 1, 1), strides=(1, 2))
    y = g("avg_pool2d", g("tanh", y), pool_size=(3, 3), padding=(1, 1, 1, 1))
    return g.module(y)


def pooled():
    """Means over both axes, and a matrix product."""
    g = Graph()
    y = g("global_avg_pool2d", g.conv(g.conv(g.input(2, 3, 9, 10), 4, 3), 6, 3, stride=2))
    return g.module(g.linear(g("batch_flatten", y), 8))


@pytest.mark.parametrize("gather", ["late", "auto"])
@pytest.mark.parametrize("network", [chain, cnn, pooled])
def test_networks_on_two_by_two(network, gather):
    check(network(), split_space, 4, axis="grid", grid="2x2", gather=gather)


@pytest.mark.parametrize(
    ("devices", "options"),
    [
        (6, {"grid": "3x2"}),
        (3, {"grid": "1x3"}),
        (3, {"grid": "3x1"}),
        (6, {}),
        (4, {"grid": "2x2", "overlap": "always"}),
        (4, {"grid": "2x2", "speeds": "1,1,2,3"}),
    ],
)
def test_other_grids(devices, options):
    check(chain(), split_space, devices, axis="grid", gather="late", **options)


def test_halos_along_one_axis_then_the_other():
    """Rank 3 of 2 x 2 meets rank 1 over rows, rank 2 over columns of these and their halo, never rank 0."""
    module = split_modules(chain(), 4, SpaceOptions(axis="grid", grid="2x2", gather="late"))[3]
    found = [dict(attrs) for name, attrs in communications(module) if name == "halo_exchange"]
    assert [(a["axis"], a["ranks"], a["rank"]) for a in found[:2]] == [(2, (1, 3), 1), (3, (2, 3), 1)]
    first, second = [op for op in module.main.body.ops if op.name == "graph.halo_exchange"][:2]
    assert second.operands == first.results
    assert (first.operands[0].tensor.shape, second.operands[0].tensor.shape) == ((2, 4, 11, 9), (2, 4, 12, 9))


def test_the_grid_that_is_left_open_follows_the_image():
    """Long images are cut along their length, square ones of many devices in both directions."""

    def meets(rows, columns, devices):
        slow = SpaceOptions(axis="grid", gather="late", tflops=1e-4, link_gbs=1e-2, latency_us=0)
        module = split_modules(chain(rows, columns), devices, slow)[0]
        return {
            (a["axis"], len(a["ranks"]))
            for name, attrs in communications(module)
            for a in [dict(attrs)]
            if name == "halo_exchange" and len(a["ranks"]) > 1
        }

    assert meets(64, 8, 4) == {(2, 4)}
    assert meets(8, 64, 4) == {(3, 4)}
    assert meets(60, 60, 16) == {(2, 4), (3, 4)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grid": "2x3"}, "rows x columns of 4 devices as in 2x2, got '2x3'"),
        ({"grid": "four"}, "got 'four'"),
        ({"axis": "h", "grid": "2x2"}, "option 'grid' expects axis=grid, got axis=h"),
        ({"method": "exact"}, "option 'method' expects one axis"),
        ({"memory": "1e9"}, "option 'memory' expects one axis"),
        ({"plan": "0:h"}, "option 'plan' expects one axis"),
    ],
)
def test_what_grids_refuse(options, message):
    with pytest.raises(InputError, match=message):
        split_modules(chain(), 4, SpaceOptions(**{"axis": "grid", **options}))


def test_networks_that_no_grid_fits():
    options = SpaceOptions(axis="grid", grid="2x2", gather="late", speeds="1,1,2,3")
    with pytest.raises(UnsupportedError, match=r"row 1 differs from row 0 in communication \d+: split it"):
        split_modules(cnn(), 4, options)
    g = Graph()
    with pytest.raises(InputError, match="axis=grid expects a layer over images"):
        split_modules(g.module(g.linear(g.input(4, 8), 8)), 4, SpaceOptions(axis="grid", grid="2x2"))
