"""Relay's qnn operators against the arithmetic they stand for, in Python's integers and NumPy."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontends.relay.load import import_module, read_source
from tilewright.ir import InputError, UnsupportedError

RNG = np.random.default_rng(3)
U8 = RNG.integers(0, 256, (2, 3, 6, 6)).astype(np.uint8)
I8 = RNG.integers(-128, 128, (2, 3, 6, 6)).astype(np.int8)


def net(body, *arrays):
    params = ", ".join(
        f"%x{i}: Tensor[({', '.join(map(str, a.shape))}), {a.dtype}]" for i, a in enumerate(arrays)
    )
    module = import_module(read_source(f'#[version = "0.0.5"]\ndef @main({params}) {{ {body} }}', "t.relay"))
    tw.verify(module)
    return module


def run(body, *arrays, compiled=False):
    """The reference's result; `compiled`: OpenCL code gives the same."""
    module = net(body, *arrays)
    (wanted,) = tw.interpret(module, *arrays)
    if compiled:
        with tw.compile(module, target="opencl") as exe:
            np.testing.assert_array_equal(exe(*arrays)[0], wanted)
    return wanted


def fixed(value, factor, rounding="UPWARD"):
    """value * factor by a factor of 31 bits, exactly."""
    fraction, exponent = np.frexp(factor)
    mantissa = int(np.floor(fraction * 2**31 + 0.5))
    product = (value << max(int(exponent), 0)) * mantissa
    places = 31 + max(-int(exponent), 0)
    half = 1 << (places - 1)
    return (product + half - (rounding == "TONEAREST" and product < 0)) >> places


def requantised(x, scale, zero, out_scale, out_zero, rounding="UPWARD"):
    factor = float(np.float32(scale)) / float(np.float32(out_scale))
    return np.array(
        [fixed(int(v) - zero, factor, rounding) + out_zero for v in x.reshape(-1)], np.int64
    ).reshape(x.shape)


@pytest.mark.parametrize("rounding", ["UPWARD", "TONEAREST"])
@pytest.mark.parametrize(("scale", "out_scale"), [(0.0123, 0.5), (1.0, 16.0), (3.0, 0.5)])
def test_requantize(rounding, scale, out_scale):
    x = np.concatenate([np.arange(-64, 64), RNG.integers(-20000, 20000, 64)]).astype(np.int32)
    wanted = requantised(x, scale, 3, out_scale, 7, rounding)
    given = f'{scale}f, 3, {out_scale}f, 7, rounding="{rounding}"'
    got = run(f'qnn.requantize(%x0, {given}, out_dtype="int8")', x, compiled=True)
    np.testing.assert_array_equal(got, np.clip(wanted, -128, 127).astype(np.int8))
    got = run(f'qnn.requantize(%x0, {given}, out_dtype="int32")', x)
    np.testing.assert_array_equal(got, wanted.astype(np.int32))


@pytest.mark.parametrize(("rounding", "down"), [("UPWARD", [9, 16, 7]), ("TONEAREST", [8, 16, 8])])
@pytest.mark.parametrize("compute", ["int64", "float32", "float64"])
def test_requantize_rounds_halves(rounding, down, compute):
    given = f'1f, 0, 16f, 0, rounding="{rounding}", compute_dtype="{compute}", out_dtype="int8"'
    x = np.arange(32, dtype=np.int32)
    np.testing.assert_array_equal(run(f"qnn.requantize(%x0, {given})", x), np.repeat([0, 1, 2], [8, 16, 8]))
    np.testing.assert_array_equal(run(f"qnn.requantize(%x0, {given})", -x), np.repeat([0, -1, -2], down))


def test_requantize_per_channel():
    body = """
      %0 = multiply(0.5f, reshape(cast((%s), dtype="float32"), newshape=[3]));
      qnn.requantize(%x0, %0, 0, 0.25f, 1, axis=1, out_dtype="uint8")
    """.replace(
        "(%s)", "concatenate((expand_dims(1, axis=0), expand_dims(2, axis=0), expand_dims(3, axis=0)))"
    )
    x = I8.astype(np.int32)
    wanted = np.stack([requantised(x[:, c], 0.5 * (c + 1), 0, 0.25, 1) for c in range(3)], axis=1)
    np.testing.assert_array_equal(run(body, x), np.clip(wanted, 0, 255))


def test_quantize_and_dequantize():
    x = np.array([-1e9, -1.25, -0.75, 0.25, 0.5, 1.0, 300.0], np.float32)
    got = run('qnn.quantize(%x0, 0.5f, 10, out_dtype="uint8")', x, compiled=True)
    np.testing.assert_array_equal(got, np.array([0, 7, 8, 11, 11, 12, 255], np.uint8))
    scales, zeros = np.array([0.1, 0.2, 0.4], np.float32), np.array([1, 2, 3], np.int32)
    got = run("qnn.dequantize(%x0, %x1, %x2, axis=1)", U8, scales, zeros)
    column = (slice(None), None, None)
    wanted = (U8.astype(np.int32) - zeros[column]) * scales[column]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)


def convolved(x, w, zero, weight_zero, pad, groups=1):
    """Convolution of integers; what is padded stands for zero."""
    x = np.pad(x.astype(np.int64) - zero, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    w = w.astype(np.int64) - weight_zero
    size = x.shape[2] - w.shape[2] + 1
    per, filters = x.shape[1] // groups, w.shape[0] // groups
    out = np.zeros((x.shape[0], w.shape[0], size, size), np.int64)
    for k in range(w.shape[0]):
        channels = x[:, (k // filters) * per : (k // filters + 1) * per]
        for i in range(size):
            for j in range(size):
                part = channels[:, :, i : i + w.shape[2], j : j + w.shape[3]]
                out[:, k, i, j] = (part * w[k]).sum((1, 2, 3))
    return out


@pytest.mark.parametrize(("zero", "weight_zero"), [(0, 0), (12, 0), (0, 7), (12, 7)])
def test_conv2d(zero, weight_zero):
    w = RNG.integers(0, 256, (4, 3, 3, 3)).astype(np.uint8)
    body = (
        f"qnn.conv2d(%x0, %x1, {zero}, {weight_zero}, 0.1f, 0.2f, padding=[1, 1, 1, 1], channels=4, "
        'kernel_size=[3, 3], out_dtype="int32")'
    )
    got = run(body, U8, w, compiled=True)
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, convolved(U8, w, zero, weight_zero, 1))


def test_depthwise_and_per_channel_zero_points():
    w = RNG.integers(-128, 128, (3, 1, 3, 3)).astype(np.int8)
    given = 'groups=3, channels=3, kernel_size=[3, 3], out_dtype="int32"'
    zeros = np.array([1, -2, 3], np.int32)
    got = run(f"qnn.conv2d(%x0, %x1, 5, %x2, 0.1f, 0.2f, {given})", U8, w, zeros)
    np.testing.assert_array_equal(got, convolved(U8, w, 5, zeros[:, None, None, None], 0, groups=3))
    hwoi = w.transpose(2, 3, 0, 1)
    nhwc = U8.transpose(0, 2, 3, 1)
    layout = 'data_layout="NHWC", kernel_layout="HWOI"'
    got = run(f"qnn.conv2d(%x0, %x1, 5, 1, 0.1f, 0.2f, {given}, {layout})", nhwc, hwoi)
    np.testing.assert_array_equal(got.transpose(0, 3, 1, 2), convolved(U8, w, 5, 1, 0, groups=3))


def test_products_of_matrices():
    a, b = U8.reshape(36, 6), I8.reshape(36, 6)[:5]
    wanted = (a.astype(np.int64) - 3) @ (b.astype(np.int64) + 4).T
    got = run('qnn.dense(%x0, %x1, 3, -4, 1f, 1f, units=5, out_dtype="int32")', a, b, compiled=True)
    np.testing.assert_array_equal(got, wanted)
    c, d = U8.reshape(6, 6, 6), I8.reshape(6, 6, 6)
    wanted = (c.astype(np.int64) - 3) @ (d.astype(np.int64) + 4).transpose(0, 2, 1)
    got = run('qnn.batch_matmul(%x0, %x1, 3, -4, 1f, 1f, out_dtype="int32", transpose_b=True)', c, d)
    np.testing.assert_array_equal(got, wanted)


def test_products_of_two_dtypes():
    """As TVM writes them once it has made qnn operators plain."""
    a, b = U8.reshape(36, 6), I8.reshape(36, 6)[:5]
    got = run('nn.dense(%x0, %x1, units=5, out_dtype="int32")', a, b, compiled=True)
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32).T)
    w = I8[:, :, :3, :3]
    got = run('nn.conv2d(%x0, %x1, channels=2, kernel_size=[3, 3], out_dtype="int32")', U8, w)
    np.testing.assert_array_equal(got, convolved(U8, w, 0, 0, 0))


@pytest.mark.parametrize("name", ["add", "subtract", "mul"])
def test_arithmetic(name):
    """Within a unit of the real numbers' result; sums and differences round each operand on its own."""
    a, b = U8, U8[::-1, :, :1]
    got = run(f"qnn.{name}(%x0, %x1, 0.1f, 30, 0.2f, 40, 0.7f, 90)", a, b, compiled=True)
    x, y = 0.1 * (a.astype(float) - 30), 0.2 * (b.astype(float) - 40)
    real = {"add": x + y, "subtract": x - y, "mul": x * y}[name]
    wanted = np.clip(real / 0.7 + 90, 0, 255)
    assert got.dtype == np.uint8
    assert np.abs(got - wanted).max() <= 1.01
    if name == "add":
        sums = requantised(a, 0.1, 30, 0.7, 90) + requantised(b, 0.2, 40, 0.7, 90) - 90
        np.testing.assert_array_equal(got, np.clip(sums, 0, 255))


def test_concatenate():
    got = run("qnn.concatenate((%x0, %x1), (0.5f, 0.25f), (10, 20), 0.25f, 20, axis=1)", U8, U8)
    moved = np.clip(requantised(U8, 0.5, 10, 0.25, 20), 0, 255)
    np.testing.assert_array_equal(got, np.concatenate([moved, U8], axis=1))


FUNCTIONS = {
    "tanh": np.tanh,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "log": np.log,
    "abs": np.abs,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "rsqrt": lambda x: 1 / np.sqrt(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    x = np.arange(1, 256, dtype=np.uint8)
    got = run(f"qnn.{name}(%x0, 0.02f, 0, 0.05f, 90)", x)
    wanted = np.clip(FUNCTIONS[name](0.02 * x.astype(float)) / 0.05 + 90, 0, 255)
    assert np.abs(got - wanted).max() <= 0.51


def test_leaky_relu_softmax_and_pool():
    x = np.arange(256, dtype=np.uint8)
    got = run("qnn.leaky_relu(%x0, 0.125f, 60, 0.6f, 17, alpha=0.9f)", x, compiled=True)
    real = 0.125 * (x.astype(float) - 60)
    wanted = np.clip(np.where(real < 0, 0.9 * real, real) / 0.6 + 17, 0, 255)
    assert np.abs(got - wanted).max() <= 1.6
    got = run("qnn.softmax(%x0, 0.02f, 3, 0.0078125f, -128, axis=1)", I8, compiled=True)
    e = np.exp(0.02 * I8.astype(float))
    assert np.abs((got + 128.0) / 128 - e / e.sum(1, keepdims=True)).max() < 0.04
    pool = 'pool_size=[2, 2], strides=[2, 2], layout="NCHW"'
    got = run(f"qnn.avg_pool2d(%x0, 0.02f, 0, 0.02f, 0, {pool})", U8)
    wanted = U8.astype(np.int64).reshape(2, 3, 3, 2, 3, 2).sum((3, 5)) // 4
    np.testing.assert_array_equal(got, wanted)


def test_simulated_quantisation():
    x = np.array([-1.0, 0.26, 100.0], np.float32)
    code, off = np.asarray(1, np.int32), 0
    got = run("qnn.simulated_quantize(%x0, 1, 0.5f, 2)", x)
    np.testing.assert_array_equal(got, np.array([0, 3, 127], np.float32))
    got = run("qnn.simulated_dequantize(%x0, 1, 0.5f, 2)", x)
    np.testing.assert_allclose(got, (x - 2) * 0.5)
    np.testing.assert_array_equal(run(f"qnn.simulated_quantize(add(%x0, 0f), {off}, 0.5f, 2)", x), x)
    with pytest.raises(UnsupportedError, match="depends on inputs"):
        net("qnn.simulated_quantize(%x0, %x1, 0.5f, 2)", x, code)


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ("qnn.requantize(%x0, 1f, 0, 0f, 0)", InputError, "not zero"),
        ('qnn.requantize(%x0, 1f, 0, 1f, 0, rounding="UP")', InputError, "UPWARD or TONEAREST"),
        ('qnn.requantize(%x0, 1f, 0, 1f, 0, compute_dtype="int8")', InputError, "compute_dtype"),
        ("qnn.requantize(%x0, 1e9f, 0, 0.1f, 0)", UnsupportedError, "ratio of scales"),
        ('qnn.dense(%x0, %x0, 0, 0, 1f, 1f, units=3, out_dtype="int8")', InputError, "out_dtype"),
        ("qnn.quantize(cast(%x0, dtype=\"float32\"), expand_dims(1f, axis=0), broadcast_to(1, shape=[1, 2]))",
         InputError, "one number"),
    ],
)  # fmt: skip
def test_errors(body, kind, said):
    with pytest.raises(kind, match=said):
        net(body, np.zeros((3, 4), np.int32))
