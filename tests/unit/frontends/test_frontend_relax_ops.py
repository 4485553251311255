"""Every Relax operator that is imported, against TVM's own compiler on the same inputs."""

import numpy as np
import pytest

tvm = pytest.importorskip("tvm")

import tilewright as tw  # noqa: E402
from tilewright.frontends.relax.load import RULES  # noqa: E402

relax = tvm.relax
op = relax.op
#: what 0.25 calls a type
TENSOR = getattr(relax, "TensorStructInfo", relax.TensorType)


def f(*shape, dtype="float32"):
    """A float operand."""
    return ("f", shape, dtype)


def u(*shape, dtype="float32"):
    """A float operand in (0.1, 0.9)."""
    return ("u", shape, dtype)


def i(*shape, high=5, low=0, dtype="int64"):
    """An integer operand in [low, high)."""
    return ("i", shape, dtype, low, high)


def b(*shape):
    """A bool operand."""
    return ("b", shape, "bool")


def prim(value):
    kind = "float32" if isinstance(value, float) else "int64"
    return (tvm.tirx.FloatImm if isinstance(value, float) else tvm.tirx.IntImm)(kind, value)


UNARY = "abs asinh atan ceil cos cosh erf exp floor isfinite isinf isnan negative round sigmoid sign sin sinh"
UNARY += " square tan tanh trunc"
UNIT = "acos asin atanh log rsqrt sqrt"
BINARY = (
    "add subtract multiply divide maximum minimum atan2 equal not_equal less less_equal greater greater_equal"
)
WHOLE = "bitwise_and bitwise_or bitwise_xor floor_divide floor_mod mod left_shift right_shift"
TRUTH = "logical_and logical_or logical_xor"

CASES = {
    **{n: (lambda x, n=n: getattr(op, n)(x), f(2, 3)) for n in UNARY.split()},
    **{n: (lambda x, n=n: getattr(op, n)(x), u(2, 3)) for n in UNIT.split()},
    **{n: (lambda x, y, n=n: getattr(op, n)(x, y), f(2, 3), f(3)) for n in BINARY.split()},
    **{n: (lambda x, y, n=n: getattr(op, n)(x, y), i(2, 3, high=60), i(3, low=1)) for n in WHOLE.split()},
    **{n: (lambda x, y, n=n: getattr(op, n)(x, y), b(2, 3), b(3)) for n in TRUTH.split()},
    "acosh": (lambda x: op.acosh(op.add(x, relax.const(1.0))), u(4)),
    "power": (lambda x: op.power(x, prim(3.0)), u(4)),
    "add-number": (lambda x: op.add(x, prim(2.0)), f(4)),
    "bitwise_not": (op.bitwise_not, i(4)),
    "logical_not": (op.logical_not, b(4)),
    "log_add_exp": (op.log_add_exp, f(4), f(4)),
    "clip": (lambda x: op.clip(x, -0.5, 0.5), f(2, 3)),
    "astype": (lambda x: op.astype(x, "int32"), f(2, 3)),
    "astype-half": (lambda x: op.astype(op.astype(x, "float16"), "float32"), f(2, 3)),
    "where": (op.where, b(3), f(2, 3), f(1)),
    "nn.relu": (op.nn.relu, f(2, 3)),
    "nn.relu6": (lambda x: op.nn.relu6(op.multiply(x, relax.const(9.0))), f(2, 3)),
    "nn.leakyrelu": (lambda x: op.nn.leakyrelu(x, 0.2), f(2, 3)),
    "nn.prelu": (lambda x, a: op.nn.prelu(x, a, 1), f(2, 3, 4), f(3)),
    "nn.gelu": (op.nn.gelu, f(2, 3)),
    "nn.gelu_tanh": (op.nn.gelu_tanh, f(2, 3)),
    "nn.selu": (op.nn.selu, f(2, 3)),
    "nn.silu": (op.nn.silu, f(2, 3)),
    "nn.softplus": (lambda x: op.nn.softplus(x, 2.0, 1.0), f(20)),
    "quantize": (lambda x, s: op.quantize(x, s, relax.const(np.int8([1, 2, 3])), 1, "int8"), f(2, 3), u(3)),
    "dequantize": (
        lambda x, s: op.dequantize(x, s, relax.const(np.int8([1, 2, 3])), 1), i(2, 3, dtype="int8"), u(3)
    ),
    "reshape": (lambda x: op.reshape(x, (3, -1)), f(2, 6)),
    "flatten": (op.flatten, f(2, 6)),
    "broadcast_to": (lambda x: op.broadcast_to(x, (4, 2, 3)), f(2, 1)),
    "permute_dims": (lambda x: op.permute_dims(x, [2, 0, 1]), f(2, 3, 4)),
    "permute_dims-all": (op.permute_dims, f(2, 3, 4)),
    "expand_dims": (lambda x: op.expand_dims(x, [0, -1]), f(2, 3)),
    "squeeze": (lambda x: op.squeeze(x, [-1]), f(1, 2, 1)),
    "squeeze-all": (op.squeeze, f(1, 2, 1)),
    "concat": (lambda x, y: op.concat([x, y], 1), f(2, 3), f(2, 4)),
    "stack": (lambda x, y: op.stack([x, y], -1), f(2, 3), f(2, 3)),
    "split": (lambda x: op.split(x, [1, 4], 1), f(2, 6)),
    "split-sections": (lambda x: op.split(x, 3, -1), f(2, 6)),
    "strided_slice": (lambda x: op.strided_slice(x, [1, 2], [1, -1], [10, -4], [2, -1]), f(2, 5, 6)),
    "dynamic_strided_slice": (
        lambda x: op.dynamic_strided_slice(
            x, *(relax.const(v, "int64") for v in ([0, 1], [2, 4], [1, 2]))
        ), f(3, 5)
    ),
    "repeat": (lambda x: op.repeat(x, 2, 1), f(2, 3)),
    "repeat-flat": (lambda x: op.repeat(x, 2), f(2, 3)),
    "tile": (lambda x: op.tile(x, (2, 1, 3)), f(2, 3)),
    "flip": (lambda x: op.flip(x, -1), f(2, 3)),
    "meshgrid": (lambda x, y: op.meshgrid([x, y], "ij"), f(2), f(3)),
    "collapse_sum_to": (lambda x: op.collapse_sum_to(x, (3, 1)), f(2, 3, 4)),
    "collapse_sum_like": (op.collapse_sum_like, f(2, 3, 4), f(1, 4)),
    **{
        f"nn.pad-{mode}": (
            lambda x, mode=mode: op.nn.pad(x, [0, 0, 0, 0, 1, 2, 0, 1], mode, 0.5), f(1, 2, 4, 5)
        )
        for mode in ("constant", "reflect", "replicate", "circular")
    },
    "zeros": (lambda x: op.add(x, op.zeros((2, 3), "float32")), f(3)),
    "ones": (lambda x: op.add(x, op.ones((2, 3), "float32")), f(3)),
    "zeros_like": (op.zeros_like, f(2, 3)),
    "ones_like": (op.ones_like, f(2, 3)),
    "full": (lambda x: op.full((2, 3), x), f()),
    "full-known": (lambda x: op.add(x, op.full((2, 3), relax.const(2.0))), f(3)),
    "full_like": (op.full_like, f(2, 3), f()),
    "eye": (lambda x: op.add(x, op.eye(3, 4, 1, "float32")), f(4)),
    "eye_like": (lambda x: op.eye_like(x, -1), f(3, 4)),
    "arange": (lambda x: op.add(x, op.arange(1, 8, 2, "float32")), f(4)),
    "hamming_window": (lambda x: op.add(x, op.hamming_window(6, False, 0.54, 0.46, "float32")), f(6)),
    "tril": (lambda x: op.tril(x, 1), f(2, 3, 4)),
    "triu": (lambda x: op.triu(x, -1), f(3, 4)),
    "take": (lambda x, n: op.take(x, n, 1), f(2, 5), i(3)),
    "take-clip": (lambda x, n: op.take(x, n, 0, "clip"), f(5, 2), i(2, 2, high=9)),
    "gather_elements": (lambda x, n: op.gather_elements(x, n, 1), f(2, 5), i(2, 3)),
    "gather_nd": (op.gather_nd, f(5, 5, 2), i(3, 2)),
    "gather_nd-batch": (lambda x, n: op.gather_nd(x, n, 1), f(3, 5, 2), i(3, 4, 1)),
    "index_tensor": (lambda x, n, m: op.index_tensor(x, [n, m]), f(5, 5, 2), i(3, 1), i(4)),
    "index_put": (lambda x, n, m, v: op.index_put(x, [n, m], v), f(6, 5), i(1, high=6), i(1), f(1)),
    "index_put-add": (lambda x, n, v: op.index_put(x, [n], v, True), f(5), i(9), f(9)),
    "scatter_elements": (lambda x, n, v: op.scatter_elements(x, n, v, 0, "add"), f(5, 3), i(2, 3), f(2, 3)),
    "scatter_nd": (lambda x, n, v: op.scatter_nd(x, n, v, "add"), f(5, 3), i(4, 1), f(4, 3)),
    "slice_scatter": (lambda x, v: op.slice_scatter(x, v, 1, 4, 2, 1), f(2, 5), f(2, 2)),
    "one_hot": (lambda n: op.one_hot(n, prim(2.0), prim(-1.0), 5), i(2, 3)),
    "bucketize": (lambda x: op.bucketize(x, relax.const(np.float32([-1, 0, 1])), right=True), f(2, 3)),
    **{
        n: (lambda x, n=n: getattr(op, n)(x, [1, -1]), f(2, 3, 4))
        for n in ("sum", "mean", "max", "min", "prod", "variance", "std")
    },
    "sum-all": (op.sum, f(2, 3)),
    "mean-kept": (lambda x: op.mean(x, [0], True), f(2, 3)),
    "argmax": (lambda x: op.argmax(x, 1), f(2, 5)),
    "argmin": (op.argmin, f(2, 5)),
    "median": (lambda x: op.median(x, [1]), f(2, 4)),
    "median-all": (op.median, f(2, 4)),
    "cumsum": (lambda x: op.cumsum(x, 1), f(2, 4)),
    "cumprod": (lambda x: op.cumprod(x, exclusive=True), f(2, 4)),
    "sort": (lambda x: op.sort(x, -1, True), f(2, 5)),
    "argsort": (lambda x: op.argsort(x, -1, False, "int64"), f(2, 5)),
    "topk": (lambda x: op.topk(x, 2, -1, "both", True, "int64"), f(2, 5)),
    "topk-values": (lambda x: op.topk(x, 2, 0, "values", False), f(5, 2)),
    "nn.conv1d": (lambda x, w: op.nn.conv1d(x, w, 2, 1), f(1, 4, 9), f(3, 4, 3)),
    "nn.conv2d": (lambda x, w: op.nn.conv2d(x, w, 2, (1, 0, 2, 1), 1, 2), f(1, 4, 7, 8), f(6, 2, 3, 3)),
    "nn.conv2d-nhwc": (
        lambda x, w: op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"),
        f(1, 5, 6, 4), f(3, 3, 4, 2),
    ),
    "nn.conv3d": (lambda x, w: op.nn.conv3d(x, w, 1, 1), f(1, 2, 4, 4, 4), f(3, 2, 3, 3, 3)),
    "nn.conv1d_transpose": (lambda x, w: op.nn.conv1d_transpose(x, w, 2, 1, 1), f(1, 3, 5), f(3, 4, 3)),
    "nn.conv2d_transpose": (lambda x, w: op.nn.conv2d_transpose(x, w, 2, 1), f(1, 3, 4, 4), f(3, 2, 3, 3)),
    "nn.max_pool1d": (lambda x: op.nn.max_pool1d(x, 3, 2, 1), f(1, 2, 8)),
    "nn.max_pool2d": (lambda x: op.nn.max_pool2d(x, (3, 2), 2, 1, ceil_mode=True), f(1, 2, 8, 7)),
    "nn.avg_pool2d": (lambda x: op.nn.avg_pool2d(x, 3, 2, 1, count_include_pad=True), f(1, 2, 8, 7)),
    "nn.avg_pool3d": (lambda x: op.nn.avg_pool3d(x, 2, 2), f(1, 2, 4, 4, 4)),
    "nn.adaptive_avg_pool1d": (lambda x: op.nn.adaptive_avg_pool1d(x, 3), f(1, 2, 7)),
    "nn.adaptive_avg_pool2d": (lambda x: op.nn.adaptive_avg_pool2d(x, (3, 2)), f(1, 2, 7, 5)),
    "nn.batch_flatten": (op.nn.batch_flatten, f(2, 3, 4)),
    "nn.softmax": (lambda x: op.nn.softmax(x, 1), f(2, 3, 4)),
    "nn.log_softmax": (op.nn.log_softmax, f(2, 3)),
    "nn.batch_norm": (
        lambda x, g, h, m, v: op.nn.batch_norm(x, g, h, m, v, 1, training=False),
        f(2, 3, 4), f(3), f(3), f(3), u(3),
    ),
    "nn.batch_norm-training": (
        lambda x, g, h, m, v: op.nn.batch_norm(x, g, h, m, v, 1, momentum=0.3),
        f(2, 3, 4), f(3), f(3), f(3), u(3),
    ),
    "nn.layer_norm": (lambda x, g, h: op.nn.layer_norm(x, g, h, [-1]), f(2, 3, 4), f(4), f(4)),
    "nn.layer_norm-two": (lambda x, g, h: op.nn.layer_norm(x, g, h, [1, 2]), f(2, 3, 4), f(3, 4), f(3, 4)),
    "nn.group_norm": (lambda x, g, h: op.nn.group_norm(x, g, h, 2, 1, [2, 3]), f(2, 4, 3, 3), f(4), f(4)),
    "nn.instance_norm": (lambda x, g, h: op.nn.instance_norm(x, g, h, 1, [2, 3]), f(2, 4, 3, 3), f(4), f(4)),
    "nn.rms_norm": (lambda x, w: op.nn.rms_norm(x, w, [-1]), f(2, 3, 4), f(4)),
    "nn.cross_entropy_with_logits": (op.nn.cross_entropy_with_logits, f(3, 4), f(3, 4)),
    "nn.nll_loss": (op.nn.nll_loss, f(3, 4), i(3, high=4)),
    "nn.attention": (
        lambda q, k, v: op.nn.attention(q, k, v, None, prim(0.5), "TopLeft"),
        f(1, 4, 2, 8), f(1, 6, 2, 8), f(1, 6, 2, 5),
    ),
    "nn.attention_bias": (op.nn.attention, f(1, 4, 2, 8), f(1, 6, 2, 8), f(1, 6, 2, 8), f(1, 1, 4, 6)),
    "image.resize2d": (lambda x: op.image.resize2d(x, (6, 7), layout="NCHW"), f(1, 2, 4, 4)),
    "image.resize2d-nearest": (
        lambda x: op.image.resize2d(
            x, (6, 7), layout="NCHW", method="nearest_neighbor", coordinate_transformation_mode="asymmetric",
            rounding_method="floor",
        ), f(1, 2, 4, 4)
    ),
    "matmul": (op.matmul, f(2, 1, 3, 4), f(5, 4, 2)),
    "matmul-vectors": (op.matmul, f(4), f(4)),
    "matmul-row": (op.matmul, f(4), f(2, 4, 3)),
    "matmul-column": (op.matmul, f(2, 3, 4), f(4)),
    "outer": (op.outer, f(3), f(4)),
    "einsum": (lambda x, y: op.einsum([x, y], "bij,bjk->bik"), f(2, 3, 4), f(2, 4, 5)),
    "einsum-three": (lambda x, y, z: op.einsum([x, y, z], "ij,jk,kl->il"), f(2, 3), f(3, 4), f(4, 2)),
}  # fmt: skip


def made(spec, rng):
    kind, shape, dtype, *bounds = spec
    if kind == "i":
        return rng.integers(*bounds, shape).astype(dtype)
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    return (rng.uniform(0.1, 0.9, shape) if kind == "u" else rng.standard_normal(shape)).astype(dtype)


def network(names):
    """One function per case."""
    builder = relax.BlockBuilder()
    for name in names:
        build, *specs = CASES[name]
        variables = [relax.Var(f"x{n}", TENSOR(s[1], s[2])) for n, s in enumerate(specs)]
        with builder.function(name.replace(".", "_").replace("-", "_"), variables):
            with builder.dataflow():
                out = builder.emit_output(builder.emit(build(*variables)))
            builder.emit_func_output(out)
    return builder.get()


@pytest.fixture(scope="module")
def compiled():
    """TVM's executable of all cases."""
    return relax.VirtualMachine(relax.build(network(CASES), "llvm"), tvm.cpu())


def arrays(result):
    if hasattr(result, "numpy"):
        return [result.numpy()]
    return [a for part in result for a in arrays(part)]


@pytest.mark.parametrize("name", CASES)
def test_operator_agrees_with_tvm(name, compiled):
    rng = np.random.default_rng(len(name))
    inputs = [made(spec, rng) for spec in CASES[name][1:]]
    function = name.replace(".", "_").replace("-", "_")
    wanted = arrays(compiled[function](*(tvm.runtime.tensor(a) for a in inputs)))
    got = tw.interpret(
        tw.frontends.relax.from_module(network([name]), function=function), *inputs, precision="native"
    )
    assert [(g.shape, g.dtype) for g in got] == [(w.shape, w.dtype) for w in wanted]
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=2e-5, atol=2e-5)


def imported(build, *specs):
    """The results of one call on seeded inputs, and the inputs."""
    rng = np.random.default_rng(1)
    inputs = [made(spec, rng) for spec in specs]
    variables = [relax.Var(f"x{n}", TENSOR(s[1], s[2])) for n, s in enumerate(specs)]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        builder.emit_func_output(builder.emit(build(*variables)))
    return tw.interpret(tw.frontends.relax.from_module(builder.get()), *inputs), inputs


def test_operators_that_tvm_does_not_compile_follow_their_definition():
    (got,), (x,) = imported(lambda x: op.nn.pixel_shuffle(x, 2), f(1, 8, 2, 3))
    np.testing.assert_array_equal(
        got, x.reshape(1, 2, 2, 2, 2, 3).transpose(0, 1, 4, 2, 5, 3).reshape(1, 2, 4, 6)
    )
    (got,), (a, b, c) = imported(op.ewise_fma, f(4), f(4), f(4))
    np.testing.assert_allclose(got, a * b + c, rtol=1e-6)
    (got,), (x,) = imported(lambda x: op.hint_on_device(x, tvm.cpu()), f(3))
    np.testing.assert_array_equal(got, x)
    (got,), (x,) = imported(lambda x: op.reshape(x, op.shape_of(op.flatten(x))), f(2, 3))
    np.testing.assert_array_equal(got, x.reshape(-1))
    (got,), (x, n) = imported(lambda x, n: op.reverse_sequence(x, n, 1, 0), f(3, 4), i(3, low=1))
    wanted = [np.concatenate([row[:k][::-1], row[k:]]) for row, k in zip(x, n, strict=True)]
    np.testing.assert_array_equal(got, np.stack(wanted))
    (got,), (x, n) = imported(lambda x, n: op.index_tensor(x, [n]), f(5, 2), i(4, low=-5))
    np.testing.assert_array_equal(got, x[n])


def test_every_rule_names_an_operator_of_tvm():
    assert {f"relax.{name}" for name in RULES} - {"relax.nn.relu6"} <= set(tvm.ir.Op.list_op_names())
