"""Relay convolutions and pools in any layout, blocked ones included."""

import numpy as np
import pytest

from tilewright.frontends.relay.load import import_module, read_source
from tilewright.ir import UnsupportedError, interpret, verify

RNG = np.random.default_rng(0)


def run(call, **arrays):
    """The call's result on named arrays."""
    shapes = {n: ", ".join(map(str, a.shape)) for n, a in arrays.items()}
    declared = ", ".join(f"%{n}: Tensor[({s}), float32]" for n, s in shapes.items())
    module = import_module(
        read_source(f'#[version = "0.0.5"]\ndef @main({declared}) {{ {call} }}', "t.relay"), params=None
    )
    verify(module)
    (out,) = interpret(module, *arrays.values())
    return out


def randoms(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def blocked(x, size, axis=1):
    """[N, C, ..] as [N, C / size, .., size]."""
    shape = (*x.shape[:axis], x.shape[axis] // size, size, *x.shape[axis + 1 :])
    return np.moveaxis(x.reshape(shape), axis + 1, -1)


X, W = randoms(1, 8, 6, 5), randoms(16, 8, 3, 3)
PLAIN = run("nn.conv2d(%x, %w, padding=[1, 1])", x=X, w=W)


def test_a_result_in_another_layout():
    out = run('nn.conv2d(%x, %w, padding=[1, 1], out_layout="NHWC")', x=X, w=W)
    np.testing.assert_array_equal(out, PLAIN.transpose(0, 2, 3, 1))
    out = run('nn.max_pool2d(%x, pool_size=[2, 2], layout="NHWC", out_layout="NCHW")', x=X)
    np.testing.assert_array_equal(
        out, run('nn.max_pool2d(%x, pool_size=[2, 2], layout="NHWC")', x=X).transpose(0, 3, 1, 2)
    )


def test_blocked_convolutions():
    kernel = blocked(blocked(W, 4, axis=1), 8, axis=0)  # O I H W -> O I H W i o
    given = 'padding=[1, 1], data_layout="NCHW4c", kernel_layout="OIHW4i8o", out_layout="NCHW8c"'
    for name in ("nn.conv2d", "nn.contrib_conv2d_NCHWc"):
        out = run(f"{name}(%x, %w, channels=16, kernel_size=[3, 3], {given})", x=blocked(X, 4), w=kernel)
        np.testing.assert_allclose(out, blocked(PLAIN, 8), rtol=1e-5, atol=1e-5)


def test_blocked_depthwise_convolutions():
    w = randoms(8, 1, 3, 3)
    kernel = blocked(w[:, :, None], 4, axis=0).transpose(0, 1, 3, 4, 2, 5)  # O I 1 H W o -> O I H W i o
    given = 'groups=8, data_layout="NCHW4c", kernel_layout="OIHW1i4o"'
    out = run(f"nn.contrib_depthwise_conv2d_NCHWc(%x, %w, {given})", x=blocked(X, 4), w=kernel)
    np.testing.assert_allclose(out, blocked(run("nn.conv2d(%x, %w, groups=8)", x=X, w=w), 4), rtol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        "nn.avg_pool2d(%x, pool_size=[2, 3]",
        "nn.global_max_pool2d(%x",
        "nn.adaptive_avg_pool2d(%x, output_size=[2]",
    ],
)
def test_blocked_pools(call):
    out = run(f'{call}, layout="NCHW4c")', x=blocked(X, 4))
    np.testing.assert_allclose(out, blocked(run(f"{call})", x=X), 4), rtol=1e-6)


@pytest.mark.parametrize(("count", "space"), [(1, "W"), (2, "HW"), (3, "DHW")])
def test_letters_of_transposed_kernels(count, space):
    """I are the channels of the data and O those of the result; that order is the default."""
    x, w = randoms(1, 3, *(4,) * count), randoms(3, 2, *(3,) * count)
    call = f"nn.conv{count}d_transpose(%x, %w, channels=2, kernel_size=[{', '.join('3' * count)}]"
    wanted = run(f"{call})", x=x, w=w)
    assert wanted.shape == (1, 2, *(6,) * count)
    for layout in (f"IO{space}", f"OI{space}", f"{space}OI"):
        axes = [f"IO{space}".index(c) for c in layout]
        out = run(f'{call}, kernel_layout="{layout}")', x=x, w=np.ascontiguousarray(w.transpose(axes)))
        np.testing.assert_allclose(out, wanted, rtol=1e-5, atol=1e-6)


def test_transformed_kernels_are_refused():
    with pytest.raises(UnsupportedError, match="transformed for TVM's Winograd"):
        run("nn.contrib_conv2d_winograd_without_weight_transform(%x, %w, tile_size=4)", x=X, w=W)


def test_a_named_type_of_results_that_is_that_of_the_factors_says_nothing():
    """A precision of 16 bits stores what such a convolution gives as narrow as its factors."""
    text = (
        '#[version = "0.0.5"]\ndef @main(%x: Tensor[(1, 8, 6, 5), float32], '
        '%w: Tensor[(16, 8, 3, 3), float32]) { nn.conv2d(%x, %w, padding=[1, 1], out_dtype="float32") }'
    )
    module = import_module(read_source(text, "t.relay"), params=None)
    (op,) = (op for op in module.main.body.ops if op.name == "graph.conv2d")
    assert op["out_dtype"] is None
