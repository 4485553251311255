"""Blocks of networks for the tests of layouts, and networks in a given layout."""

from hypothesis import strategies as st

from tilewright.passes import PassContext, Pipeline, run_pipeline

_TO_TENSOR = (
    "infer-shapes, fold-batch-norm, fold-constants, cse, dce, graph-to-tensor, fold-constant-tensors, "
    "forward-copies, cse, dce"
)


def in_layout(module, layout):
    """The network as tensor ops whose values have this layout."""
    text = f"{_TO_TENSOR}, choose-layouts{{layout={layout}}}, fold-constant-tensors"
    return run_pipeline(module, Pipeline.parse(text), PassContext(verify_each=True))


def resnet(net):
    """Stem, pooling, a bottleneck with a projection, the head."""
    x = net("nn.relu({})", net.conv(net.input(2, 3, 17, 17), 3, 16, 3, stride=2))
    x = net("nn.max_pool2d({}, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])", x)
    y = net("nn.relu({})", net.conv(x, 16, 8, 1))
    y = net("nn.relu({})", net.conv(y, 8, 8, 3, stride=2))
    y = net.conv(y, 8, 32, 1)
    x = net("nn.relu({})", net("add({}, {})", y, net.conv(x, 16, 32, 1, stride=2)))
    x = net("nn.batch_flatten({})", net("nn.global_avg_pool2d({})", x))
    return net("nn.softmax({}, axis=-1)", net.linear(x, 32, 10))


def mobilenet(net):
    """Depthwise and pointwise convolutions with a shortcut."""
    x = net.conv(net.input(1, 8, 9, 9), 8, 16, 1)
    y = net("clip({}, a_min=0f, a_max=6f)", net.conv(x, 16, 16, 3, groups=16))
    y = net("add({}, {})", x, net.conv(y, 16, 16, 1))
    y = net("clip({}, a_min=0f, a_max=6f)", net.conv(y, 16, 16, 5, stride=2, groups=16))
    return net.linear(net("nn.batch_flatten({})", net("nn.global_avg_pool2d({})", y)), 16, 6)


def densenet(net):
    """A dense block of three layers and a transition."""
    x = net("nn.relu({})", net.conv(net.input(1, 8, 8, 8), 8, 16, 3))
    for channels in (16, 24, 32):
        y = net("nn.relu({})", net.conv(x, channels, 8, 3))
        x = net("concatenate({}, axis=1)", net("({}, {})", x, y))
    x = net("nn.avg_pool2d({}, pool_size=[2, 2], strides=[2, 2])", net.conv(x, 40, 16, 1))
    return net("nn.batch_flatten({})", net("nn.global_avg_pool2d({})", x))


def inception(net):
    """Branches of several kernel shapes and of pooling, side by side."""
    x = net("nn.relu({})", net.conv(net.input(1, 8, 9, 9), 8, 16, 1))
    pool = net("nn.avg_pool2d({}, pool_size=[3, 3], padding=[1, 1, 1, 1], count_include_pad=False)", x)
    branches = [net.conv(x, 16, 8, 1), net.conv(net.conv(x, 16, 4, 1), 4, 8, 5), net.conv(pool, 16, 8, 1)]
    y = net("concatenate({}, axis=1)", net("({}, {}, {})", *branches))
    y = net("nn.max_pool2d({}, pool_size=[3, 3], strides=[2, 2])", net("nn.relu({})", y))
    return net("nn.batch_flatten({})", net("nn.global_avg_pool2d({})", y))


def squeeze_excite(net):
    """A depthwise convolution gated by its own mean."""
    x = net.conv(net.input(2, 8, 7, 7), 8, 16, 1)
    y = net("sigmoid({})", net.conv(x, 16, 16, 3, groups=16))
    gate = net.conv(net("nn.relu({})", net.conv(net("nn.global_avg_pool2d({})", y), 16, 4, 1)), 4, 16, 1)
    y = net.conv(net("multiply({}, {})", y, net("sigmoid({})", gate)), 16, 8, 1)
    return net("mean({}, axis=[2, 3])", y)


def shuffle(net):
    """Grouped convolution, channel shuffle, grouped convolution."""
    x = net("nn.relu({})", net.conv(net.input(1, 8, 6, 6), 8, 12, 1, groups=2))
    x = net("reshape({}, newshape=[1, 2, 6, 6, 6])", x)
    x = net("transpose({}, axes=[0, 2, 1, 3, 4])", x)
    x = net("reshape({}, newshape=[1, 12, 6, 6])", x)
    return net("mean({}, axis=[2, 3])", net.conv(x, 12, 8, 3, groups=2))


BLOCKS = {
    "resnet": resnet,
    "mobilenet": mobilenet,
    "densenet": densenet,
    "inception": inception,
    "squeeze-excite": squeeze_excite,
    "shuffle": shuffle,
}


def random_network(net, draw):
    """A few random layers; the result has any layout a network may end in."""
    batch, channels, size = (
        draw(st.integers(1, 2)),
        draw(st.sampled_from([1, 3, 4, 8])),
        draw(st.integers(4, 7)),
    )
    first = net.conv(net.input(batch, channels, size, size + 1), channels, 4, 3)
    values = [(net("nn.relu({})", first), 4)]
    for _ in range(draw(st.integers(2, 6))):
        x, channels = values[-1] if draw(st.booleans()) else draw(st.sampled_from(values))
        kind = draw(st.sampled_from(("conv", "depthwise", "relu", "pool", "concat", "add", "gate", "view")))
        values.append(_layer(net, draw, kind, x, channels, values))
    x = values[-1][0]
    end = draw(st.sampled_from(("stay", "flatten", "mean", "softmax", "transpose")))
    return {
        "stay": lambda: x,
        "flatten": lambda: net("nn.batch_flatten({})", x),
        "mean": lambda: net("mean({}, axis=[2, 3])", x),
        "softmax": lambda: net("nn.softmax({}, axis=1)", x),
        "transpose": lambda: net("transpose({}, axes=[0, 3, 1, 2])", x),
    }[end]()


def _layer(net, draw, kind, x, channels, values):
    if kind == "conv":
        outputs = draw(st.sampled_from([2, 4, 8]))
        return net.conv(x, channels, outputs, draw(st.sampled_from([1, 3]))), outputs
    if kind == "depthwise":
        return net.conv(x, channels, channels, 3, groups=channels), channels
    if kind == "pool":
        how = draw(st.sampled_from(("max", "avg")))
        return net(f"nn.{how}_pool2d({{}}, pool_size=[3, 3], padding=[1, 1, 1, 1])", x), channels
    if kind == "concat":
        y, more = draw(st.sampled_from(values))
        return net("concatenate({}, axis=1)", net("({}, {})", x, y)), channels + more
    if kind == "add":
        y, more = draw(st.sampled_from(values))
        return (net("add({}, {})", x, y), channels) if more == channels else (net("nn.relu({})", x), channels)
    if kind == "gate":
        return net("multiply({}, {})", x, net("mean({}, axis=[2, 3], keepdims=True)", x)), channels
    if kind == "view":
        y = net("transpose({}, axes=[0, 2, 1])", net("reshape({}, newshape=[0, 0, -1])", x))
        z = net("reshape_like({}, {})", net("transpose({}, axes=[0, 2, 1])", y), x)
        return net("tanh({})", z), channels
    return net("nn.relu({})", x), channels
