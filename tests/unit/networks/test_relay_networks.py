"""Networks as importers of TVM write them: compiled code agrees with the reference in double precision."""

import numpy as np
import pytest
from relay_builder import Net


def attention(n, x, tokens, width, heads, causal):
    """Self-attention of [tokens, width] with one product for queries, keys and values."""
    part = width // heads
    qkv = n(f"split({{}}, indices_or_sections=[{width}, {2 * width}], axis=1)", n.linear(x, width, 3 * width))
    q, k, v = (
        n(f"transpose(reshape({qkv}.{i}, newshape=[1, {tokens}, {heads}, {part}]), axes=[0, 2, 1, 3])")
        for i in range(3)
    )
    flat = [n(f"reshape({{}}, newshape=[-1, {tokens}, {part}])", t) for t in (q, k)]
    scores = n("nn.batch_matmul({}, {}, transpose_b=True)", *flat)
    scores = n(f"divide(reshape({{}}, newshape=[1, {heads}, {tokens}, {tokens}]), {part**0.5}f)", scores)
    if causal:
        ones = 'ones(shape=[1, 1, 16, 16], dtype="float32")'
        mask = n(f'cast(trilu({ones}, 0, upper=False), dtype="bool")')
        mask = n(
            f"strided_slice({{}}, begin=[0, 0], end=[{tokens}, {tokens}], strides=[1, 1], axes=[2, 3])", mask
        )
        scores = n("where({}, {}, -1e9f)", mask, scores)
    shares = n(f"reshape(nn.softmax({{}}, axis=-1), newshape=[-1, {tokens}, {tokens}])", scores)
    values = n(f"transpose(reshape({{}}, newshape=[-1, {tokens}, {part}]), axes=[0, 2, 1])", v)
    mixed = n("nn.batch_matmul({}, {}, transpose_b=True)", shares, values)
    mixed = n(f"transpose(reshape({{}}, newshape=[1, {heads}, {tokens}, {part}]), axes=[0, 2, 1, 3])", mixed)
    return n.linear(n(f"reshape({{}}, newshape=[{tokens}, {width}])", mixed), width, width)


def gelu(n, x, tanh):
    if not tanh:
        return n("multiply(multiply({0}, 0.5f), add(1f, erf(divide({0}, 1.41421f))))", x)
    inner = n("multiply(0.797885f, add({0}, multiply(0.044715f, power({0}, 3f))))", x)
    return n("multiply(multiply(0.5f, {}), add(1f, tanh({})))", x, inner)


def transformer_block(n, x, tokens, width, heads, causal=False, tanh=False):
    x = n("add({}, {})", x, attention(n, n.norm(x, width), tokens, width, heads, causal))
    hidden = gelu(n, n.linear(n.norm(x, width), width, 4 * width), tanh)
    return n("add({}, {})", x, n.linear(hidden, 4 * width, width))


def test_gpt2():
    n, tokens, width = Net(), 6, 16
    ids = n.input(1, tokens, dtype="int64", high=50)
    table = n.weight(50, width)
    negative = n("where(less({0}, 0i64), add({0}, 50i64), {0})", ids)
    words = n("take({}, {}, axis=0)", table, negative)
    places = n(f'take({{}}, arange(0, {tokens}, 1, start=0, stop={tokens}, step=1, dtype="int32"), axis=0)',
               n.weight(16, width))  # fmt: skip
    x = n(f"reshape(add({{}}, {{}}), newshape=[-1, {width}])", words, places)
    for _ in range(2):
        x = transformer_block(n, x, tokens, width, 2, causal=True, tanh=True)
    logits = n("nn.dense({}, {}, units=50)", n.norm(x, width), table)
    (out,) = n.check(n("reshape({}, newshape=[1, -1, 50])", logits))
    assert out.shape == (1, tokens, 50)


def test_vision_transformer():
    n, width = Net(1), 16
    x = n.input(1, 3, 16, 16)
    patches = n("nn.conv2d({}, {}, strides=[8, 8], padding=[0, 0, 0, 0], channels=16, kernel_size=[8, 8])",
                x, n.weight(width, 3, 8, 8))  # fmt: skip
    patches = n("nn.bias_add({}, {})", patches, n.weight(width))
    tokens = n(f"transpose(reshape({{}}, newshape=[0, {width}, -1]), axes=[0, 2, 1])", patches)
    first = n("broadcast_to({}, shape=[1, 1, 16])", n.weight(1, 1, width))
    x = n("add(concatenate(({}, {}), axis=1), {})", first, tokens, n.weight(1, 5, width))
    x = transformer_block(n, n(f"reshape({{}}, newshape=[-1, {width}])", x), 5, width, 4)
    x = n("reshape({}, newshape=[1, 5, 16])", n.norm(x, width, "1e-06f"))
    head = n("squeeze(strided_slice({}, begin=[0, 0, 0], end=[1, 1, 16], strides=[1]), axis=[1])", x)
    n.check(n.linear(head, width, 10))


def test_convnext():
    n, c = Net(2), 8
    x = n("nn.conv2d({}, {}, strides=[4, 4], channels=8, kernel_size=[4, 4])", n.input(1, 3, 32, 32),
          n.weight(c, 3, 4, 4))  # fmt: skip
    skip = x
    x = n("nn.conv2d({}, {}, padding=[3, 3, 3, 3], groups=8, channels=8, kernel_size=[7, 7])", x,
          n.weight(c, 1, 7, 7))  # fmt: skip
    x = n.norm(n("transpose({}, axes=[0, 2, 3, 1])", n("nn.bias_add({}, {})", x, n.weight(c))), c, "1e-06f")
    x = gelu(n, n.linear(n("reshape({}, newshape=[-1, 8])", x), c, 4 * c), False)
    x = n(
        "multiply(reshape({}, newshape=[1, 8, 8, 8]), {})", n.linear(x, 4 * c, c), n.weight(c, positive=True)
    )
    x = n("add({}, transpose({}, axes=[0, 3, 1, 2]))", skip, x)
    n.check(n("mean({}, axis=[-1, -2], keepdims=True)", x))


def test_shufflenet():
    n = Net(3)
    x = n("nn.relu({})", n.conv(n.input(1, 3, 16, 16), 3, 16, 3, stride=2))
    half = n("split({}, indices_or_sections=2, axis=1)", x)
    y = n("nn.relu({})", n.conv(f"{half}.1", 8, 8, 1))
    y = n("nn.relu({})", n.conv(n.conv(y, 8, 8, 3, groups=8), 8, 8, 1))
    x = n("concatenate(({}.0, {}), axis=1)", half, y)
    x = n("reshape({}, newshape=[1, 2, 8, 8, 8])", x)
    x = n("reshape(transpose({}, axes=[0, 2, 1, 3, 4]), newshape=[1, 16, 8, 8])", x)
    left = n("strided_slice({}, begin=[0, 0, 0, 0], end=[1, 8, 8, 8], strides=[1, 1, 1, 1])", x)
    right = n("strided_slice({}, begin=[8], end=[16], strides=[1], axes=[1])", x)
    right = n("nn.relu({})", n.conv(right, 8, 8, 1, groups=2))
    n.check(n("nn.global_avg_pool2d(concatenate(({}, {}), axis=1))", left, right))


def squeeze_excite(n, x, channels, gate="sigmoid({})"):
    pooled = n("nn.adaptive_avg_pool2d({}, output_size=[1, 1])", x)
    down = n("nn.conv2d({}, {}, padding=[0, 0, 0, 0], channels=4, kernel_size=[1, 1])", pooled,
             n.weight(4, channels, 1, 1))  # fmt: skip
    down = n("nn.relu(nn.bias_add({}, {}))", down, n.weight(4))
    up = n(f"nn.conv2d({{}}, {{}}, padding=[0, 0, 0, 0], channels={channels}, kernel_size=[1, 1])", down,
           n.weight(channels, 4, 1, 1))  # fmt: skip
    return n("multiply({}, {})", n(gate, n("nn.bias_add({}, {})", up, n.weight(channels))), x)


def test_regnet():
    n = Net(4)
    x = n("nn.relu({})", n.conv(n.input(1, 3, 16, 16), 3, 16, 3, stride=2))
    y = n("nn.relu({})", n.conv(x, 16, 16, 1))
    y = n("nn.relu({})", n.conv(y, 16, 16, 3, stride=2, groups=4))
    y = n.conv(squeeze_excite(n, y, 16), 16, 16, 1)
    x = n("nn.relu(add({}, {}))", n.conv(x, 16, 16, 1, stride=2), y)
    x = n("nn.batch_flatten(nn.global_avg_pool2d({}))", x)
    n.check(n("nn.softmax({})", n.linear(x, 16, 5)), compiled=False)


def test_mobilenet_v3():
    """Hard sigmoid and hard swish as importers write them."""
    n = Net(5)
    swish = "multiply({0}, divide(clip(add({0}, 3f), a_min=0f, a_max=6f), 6f))"
    x = n(swish, n.conv(n.input(1, 3, 16, 16), 3, 8, 3, stride=2))
    y = n(swish, n.conv(x, 8, 16, 1))
    y = n.conv(y, 16, 16, 5, groups=16)
    y = squeeze_excite(n, y, 16, "clip(add(multiply({}, 0.166667f), 0.5f), a_min=0f, a_max=1f)")
    n.check(n("add({}, {})", x, n.conv(n(swish, y), 16, 8, 1)), compiled=False)


@pytest.mark.parametrize("padding", ["same", "explicit"])
def test_residual_block_nhwc(padding):
    """TensorFlow and TFLite: NHWC data, HWIO kernels, HWOI depthwise ones, padding apart or uneven."""
    n = Net(6)
    x = n.input(1, 15, 15, 3)
    layout = 'data_layout="NHWC", kernel_layout="HWIO"'
    if padding == "same":
        x = n("nn.pad({}, 0, pad_width=[[0, 0], [1, 1], [1, 1], [0, 0]])", x)
    pad = "[0, 0, 0, 0]" if padding == "same" else "[1, 1, 1, 1]"
    x = n(f"nn.conv2d({{}}, {{}}, strides=[2, 2], padding={pad}, channels=8, kernel_size=[3, 3], {layout})",
          x, n.weight(3, 3, 3, 8, scale=0.2))  # fmt: skip
    x = n("clip(nn.bias_add({}, {}, axis=3), a_min=0f, a_max=6f)", x, n.weight(8))
    y = n("nn.conv2d({}, {}, padding=[1, 1, 1, 1], groups=8, channels=8, kernel_size=[3, 3], "
          'data_layout="NHWC", kernel_layout="HWOI")', x, n.weight(3, 3, 8, 1, scale=0.3))  # fmt: skip
    vectors = [n.weight(8, positive=True) for _ in range(4)]
    y = n("nn.relu(nn.batch_norm({}, {}, {}, {}, {}, axis=3).0)", y, *vectors)
    y = n(
        f"nn.conv2d({{}}, {{}}, channels=8, kernel_size=[1, 1], {layout})", y, n.weight(1, 1, 8, 8, scale=0.3)
    )
    x = n("add({}, {})", x, y)
    x = n('nn.avg_pool2d({}, pool_size=[3, 3], strides=[2, 2], padding=[0, 0, 1, 1], layout="NHWC")', x)
    x = n('nn.global_avg_pool2d({}, layout="NHWC")', x)
    n.check(
        n("nn.softmax({})", n.linear(n("reshape({}, newshape=[-1, 8])", x), 8, 5)), compiled=padding == "same"
    )


def test_unet():
    n = Net(7)
    down = n("nn.relu({})", n.conv(n.input(1, 2, 16, 16), 2, 8, 3))
    low = n("nn.max_pool2d({}, pool_size=[2, 2], strides=[2, 2], padding=[0, 0, 0, 0])", down)
    low = n("nn.leaky_relu({}, alpha=0.1f)", n.conv(low, 8, 16, 3))
    up = n("nn.conv2d_transpose({}, {}, channels=8, kernel_size=[2, 2], strides=[2, 2], padding=[0, 0])",
           low, n.weight(16, 8, 2, 2))  # fmt: skip
    other = n('image.resize2d({}, size=[16, 16], roi=[0f, 0f, 0f, 0f], rounding_method="", method="linear", '
              'coordinate_transformation_mode="align_corners", cubic_alpha=-0.75f)', low)  # fmt: skip
    near = n("nn.upsampling({}, scale_h=2f, scale_w=2f)", low)
    x = n("concatenate(({}, {}, {}, {}), axis=1)", down, up, other, near)
    n.check(n("sigmoid({})", n.conv(n("nn.relu({})", n.conv(x, 48, 8, 3)), 8, 1, 1)))


def test_detector_with_anchors():
    """Heads of SSD: per scale a transposed flattened convolution, joined; boxes decoded and suppressed."""
    n, classes = Net(8), 3
    x = n("nn.relu({})", n.conv(n.input(1, 3, 16, 16), 3, 8, 3, stride=2))
    scales = [x, n("nn.relu({})", n.conv(x, 8, 8, 3, stride=2))]
    scores, places, anchors = [], [], []
    for f in scales:
        for out, count in ((scores, 3 * classes), (places, 12)):
            y = n(f"nn.conv2d({{}}, {{}}, padding=[1, 1, 1, 1], channels={count}, kernel_size=[3, 3])", f,
                  n.weight(count, 8, 3, 3))  # fmt: skip
            out.append(n("nn.batch_flatten(transpose({}, axes=[0, 2, 3, 1]))", y))
        anchors.append(
            n(
                "vision.multibox_prior({}, sizes=[0.3f, 0.5f], ratios=[1f, 2f], steps=[-1f, -1f], "
                "offsets=[0.5f, 0.5f])",
                f,
            )
        )
    joined = [n(f"concatenate(({', '.join(part)}), axis=1)") for part in (scores, places, anchors)]
    scores = n(f"transpose(reshape({{}}, newshape=[0, -1, {classes}]), axes=[0, 2, 1])", joined[0])
    shares = n("nn.softmax({}, axis=1)", scores)
    decoded = n("vision.multibox_transform_loc({}, {}, {}, threshold=0.05f, "
                "variances=[0.1f, 0.1f, 0.2f, 0.2f])", shares, joined[1], joined[2])  # fmt: skip
    kept = n(f"vision.non_max_suppression({decoded}.0, {decoded}.1, {decoded}.1, -1, 0.5f, "
             "top_k=20, return_indices=False, invalid_to_bottom=False)")  # fmt: skip
    n.check(n(f"({shares}, {kept})"), compiled=False)


def test_yolo_head():
    n = Net(9)
    x = n("nn.leaky_relu({}, alpha=0.1f)", n.conv(n.input(1, 3, 16, 16), 3, 8, 3, stride=2))
    deep = n("nn.leaky_relu({}, alpha=0.1f)", n.conv(x, 8, 16, 3, stride=2))
    route = n("concatenate(({}, {}), axis=1)", n("vision.yolo_reorg({}, stride=2)", x), deep)
    spp = [route] + [
        n(f"nn.max_pool2d({{}}, pool_size=[{k}, {k}], strides=[1, 1], padding=[{k // 2}, {k // 2}])",
          route)
        for k in (3, 5)
    ]  # fmt: skip
    x = n.conv(n(f"concatenate(({', '.join(spp)}), axis=1)"), 144, 21, 1)
    x = n("transpose(reshape({}, newshape=[1, 3, 7, 4, 4]), axes=[0, 1, 3, 4, 2])", x)
    parts = n("split(sigmoid({}), indices_or_sections=[2, 4], axis=-1)", x)
    grid = n('meshgrid((arange(4, start=0, stop=4, step=1, dtype="float32"), '
             'arange(4, start=0, stop=4, step=1, dtype="float32")), indexing="ij")')  # fmt: skip
    cells = n(f"reshape(stack(({grid}.1, {grid}.0), axis=-1), newshape=[1, 1, 4, 4, 2])")
    centre = n(f"multiply(add(subtract(multiply({parts}.0, 2f), 0.5f), {cells}), 8f)")
    size = n(f"multiply(power(multiply({parts}.1, 2f), 2f), 4f)")
    joined = n(f"concatenate(({centre}, {size}, {parts}.2), axis=-1)")
    n.check(n("reshape({}, newshape=[1, -1, 7])", joined))


def test_shifted_windows():
    """Swin: windows of a map rolled by slices and concatenation, attention with a bias by position."""
    n, c = Net(10), 8
    x = n("reshape({}, newshape=[1, 8, 8, 8])", n.norm(n.input(1, 64, c), c))
    for axis in (1, 2):
        head = n(f"strided_slice({{}}, begin=[2], end=[8], strides=[1], axes=[{axis}])", x)
        tail = n(f"strided_slice({{}}, begin=[0], end=[2], strides=[1], axes=[{axis}])", x)
        x = n(f"concatenate(({head}, {tail}), axis={axis})")
    x = n("transpose(reshape({}, newshape=[1, 2, 4, 2, 4, 8]), axes=[0, 1, 3, 2, 4, 5])", x)
    qkv = n.linear(n("reshape({}, newshape=[-1, 8])", x), c, 3 * c)
    qkv = n("transpose(reshape({}, newshape=[4, 16, 3, 2, 4]), axes=[2, 0, 3, 1, 4])", qkv)
    q, k, v = (n(f"reshape(take({{}}, {i}, axis=0), newshape=[8, 16, 4])", qkv) for i in range(3))
    scores = n("reshape(nn.batch_matmul({}, {}, transpose_b=True), newshape=[4, 2, 16, 16])", q, k)
    places = n.weight(49, 2)
    index = n('cast(mod(reshape(arange(256, start=0, stop=256, step=1, dtype="int32"), newshape=[-1]), 49), '
              'dtype="int64")')  # fmt: skip
    bias = n("reshape(take({}, {}, axis=0), newshape=[16, 16, 2])", places, index)
    bias = n("expand_dims(transpose({}, axes=[2, 0, 1]), axis=0)", bias)
    shares = n("reshape(nn.softmax(add({}, {})), newshape=[8, 16, 16])", scores, bias)
    mixed = n("nn.batch_matmul({}, {})", shares, v)
    x = n(
        "reshape(transpose(reshape({}, newshape=[4, 2, 16, 4]), axes=[0, 2, 1, 3]), newshape=[-1, 8])", mixed
    )
    x = n("reshape({}, newshape=[1, 2, 2, 4, 4, 8])", n.linear(x, c, c))
    x = n("reshape(transpose({}, axes=[0, 1, 3, 2, 4, 5]), newshape=[1, 64, 8])", x)
    merged = n("reshape({}, newshape=[1, 8, 8, 8])", x)
    quarters = [
        n(f"strided_slice({{}}, begin=[0, {a}, {b}, 0], end=[1, 8, 8, 8], strides=[1, 2, 2, 1])", merged)
        for b in (0, 1)
        for a in (0, 1)
    ]
    n.check(
        n(f"reshape(concatenate(({', '.join(quarters)}), axis=-1), newshape=[1, -1, 32])"), compiled=False
    )


def test_quantised_classifier():
    """A TFLite network: quantised convolution, depthwise convolution, residual sum, pool and dense layer."""
    n = Net(11)
    image = n('qnn.quantize({}, 0.0078125f, 128, out_dtype="uint8")', n.input(1, 8, 8, 3))
    n.arrays["k0"] = n.rng.integers(0, 256, (3, 3, 3, 4)).astype(np.uint8)
    n.arrays["k1"] = n.rng.integers(0, 256, (3, 3, 4, 1)).astype(np.uint8)
    n.arrays["k2"] = n.rng.integers(0, 256, (5, 4)).astype(np.uint8)
    n.arrays["b0"] = n.rng.integers(-500, 500, 4).astype(np.int32)
    for name in ("k0", "k1", "k2", "b0"):
        n._declare(name, n.arrays[name])
    x = n('qnn.conv2d({}, %k0, 128, 120, 0.0078125f, 0.02f, strides=[2, 2], padding=[0, 0, 1, 1], '
          'channels=4, kernel_size=[3, 3], data_layout="NHWC", kernel_layout="HWIO", out_dtype="int32")',
          image)  # fmt: skip
    x = n("nn.bias_add({}, %b0, axis=3)", x)
    x = n('qnn.requantize({}, 0.00015625f, 0, 0.0235f, 0, axis=3, out_dtype="uint8")', x)
    y = n('qnn.conv2d({}, %k1, 0, 110, 0.0235f, 0.01f, padding=[1, 1, 1, 1], groups=4, channels=4, '
          'kernel_size=[3, 3], data_layout="NHWC", kernel_layout="HWOI", out_dtype="int32")', x)  # fmt: skip
    y = n('qnn.requantize({}, 0.000235f, 0, 0.03f, 100, axis=3, out_dtype="uint8")', y)
    x = n("qnn.add({}, {}, 0.0235f, 0, 0.03f, 100, 0.04f, 90)", x, y)
    x = n('cast(nn.avg_pool2d(cast({}, dtype="int32"), pool_size=[4, 4], strides=[4, 4], layout="NHWC"), '
          'dtype="uint8")', x)  # fmt: skip
    x = n("reshape({}, newshape=[-1, 4])", x)
    x = n('qnn.dense({}, %k2, 90, 105, 0.04f, 0.015f, units=5, out_dtype="int32")', x)
    x = n('qnn.requantize({}, 0.0006f, 0, 0.05f, 128, axis=1, out_dtype="uint8")', x)
    n.check(n("nn.softmax(qnn.dequantize({}, 0.05f, 128))", x))


def test_text_as_the_onnx_importer_writes_it():
    """Matrix products of higher rank by reshapes, normalisation by parts, shapes computed by operators."""
    n = Net(12)
    x = n.input(2, 3, 4, 8)
    w = n.weight(8, 8)
    flat = n("reshape({}, newshape=[-1, 8])", x)
    y = n("reshape(nn.dense({}, transpose({}, axes=[1, 0]), units=8), newshape=[2, 3, 4, 8])", flat, w)
    mean = n("mean({}, axis=[-1], keepdims=True)", y)
    apart = n("subtract({}, {})", y, mean)
    spread = n("mean(power({}, 2f), axis=[-1], keepdims=True)", apart)
    y = n("divide({}, sqrt(add({}, 1e-05f)))", apart, spread)
    shape = n('shape_of({}, dtype="int64")', y)
    size = n("take({}, 1i64, axis=0)", shape)
    wanted = n(
        'concatenate((expand_dims({}, axis=0), cast(expand_dims(-1, axis=0), dtype="int64")), axis=0)', size
    )
    y = n("dyn.reshape({}, {}, newshape=[])", y, wanted)
    index = n('broadcast_to(arange(5, start=0, stop=5, step=1, dtype="int64"), shape=[3, 5])')
    picked = n("gather({}, {}, axis=1)", y, index)
    n.check(n('topk({}, k=2, axis=-1, ret_type="both", is_ascend=False).0', picked))
