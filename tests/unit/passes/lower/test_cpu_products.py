"""Products on a CPU: padded and computed factors, tiles beyond the domain, packed weights, batches."""

import numpy as np
import pytest
from relay_builder import Net

import tilewright as tw


def checked(net, result, *, factors, tiles):
    """The compiled network agrees with the reference; how many factors it stores, what cuts its weights."""
    module = net.module(result)
    inputs = list(net.inputs.values())
    wanted = tw.interpret(module, *inputs)
    with tw.compile(module, target="opencl") as exe:
        got = exe(*inputs)
        packed = [b for b in exe.plan.buffers if "_by" in b.label or "_by" in b.name]
        assert bool(packed) == tiles, [b.name for b in exe.plan.buffers]
        assert len(exe.plan.launches) == 1 + factors, [launch.kernel for launch in exe.plan.launches]
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("batch", "channels", "filters", "extents", "kernel", "attributes"),
    [
        (1, 32, 80, (23, 29), 3, "padding=[1, 1, 1, 1]"),
        (4, 16, 70, (19, 17), 3, "strides=[2, 2], padding=[1, 1, 1, 1]"),
        (1, 256, 96, (9, 7), 3, "padding=[2, 0, 1, 3]"),  # rows that lie in the same sets of the cache
        (4, 256, 96, (15, 13), 1, "strides=[2, 2]"),
        (1, 48, 130, (13, 15), 5, "dilation=[2, 2], padding=[4, 4, 4, 4]"),
    ],
)
def test_padded_convolutions(batch, channels, filters, extents, kernel, attributes):
    net = Net()
    x = net.input(batch, channels, *extents)
    w = net.weight(filters, channels, kernel, kernel)
    size = f"channels={filters}, kernel_size=[{kernel}, {kernel}], {attributes}"
    checked(net, net(f"nn.conv2d({{}}, {{}}, {size})", x, w), factors=1, tiles=True)


@pytest.mark.parametrize(("batch", "rows", "columns", "depth"), [(1, 1, 1001, 64), (4, 33, 130, 40)])
def test_products_beyond_whole_tiles(batch, rows, columns, depth):
    net = Net()
    x = net.input(batch * rows, depth)
    checked(net, net("nn.dense({}, {})", x, net.weight(columns, depth)), factors=0, tiles=True)


def test_what_is_computed_before_a_product_is_stored_once():
    net = Net()
    x = net.input(2, 64, 14, 14)
    scale = net.weight(1, 64, 1, 1, positive=True)
    y = net("nn.relu({})", net("multiply({}, {})", x, scale))
    y = net("nn.conv2d({}, {}, channels=128, kernel_size=[1, 1])", y, net.weight(128, 64, 1, 1))
    checked(net, y, factors=1, tiles=True)
