"""split-space on networks: every structure, split in every direction, equals the unpartitioned one."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.builder import Builder
from tilewright.ir.interpreter.lockstep import interpret_ranks
from tilewright.ir.nodes import Func, Level, Module, Value
from tilewright.ir.types import TensorType
from tilewright.passes.graph.distribute.space.options import SpaceOptions
from tilewright.passes.graph.distribute.split_space import split_modules


class Net:
    """A network under construction: its value so far is passed along, weights are made up."""

    def __init__(self, *shape):
        self.b, self.rng, self.arrays = Builder("test:net"), np.random.default_rng(0), {}
        self.x = Value(TensorType("f32", shape), "x")

    def weight(self, *shape):
        name = f"w{len(self.arrays)}"
        self.arrays[name] = (self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        return self.b.emit("graph.constant", (), {"name": name}, types=[TensorType("f32", shape)])[0]

    def op(self, name, *operands, **attrs):
        return self.b.value(f"graph.{name}", *operands, **attrs)

    def conv(self, x, filters, kernel=3, stride=1, groups=1, act=True):
        pad = (kernel - 1) // 2
        w = self.weight(filters, x.tensor.shape[1] // groups, kernel, kernel)
        y = self.op("conv2d", x, w, strides=(stride,) * 2, padding=(pad,) * 4, groups=groups)
        y = self.op("bias_add", y, self.weight(filters))
        return self.op("relu", y) if act else y

    def dense(self, x, units):
        y = self.op("dense", x, self.weight(units, x.tensor.shape[-1]))
        return self.op("bias_add", y, self.weight(units), axis=-1)

    def module(self, *results):
        self.b.emit("graph.return", results)
        func = Func(Level.GRAPH, "main", self.b.block((self.x,)), tuple(r.type for r in results))
        return Module("net", (func,), constants=tw.ir.Constants(self.arrays))


def residual():
    n = Net(2, 3, 14, 10)
    a = n.op("max_pool2d", n.conv(n.x, 4, 7, 2), pool_size=(3, 3), strides=(2, 2), padding=(1, 1, 1, 1))
    b = n.op("add", n.conv(n.conv(a, 4), 4, act=False), a)
    c = n.op("add", n.conv(n.conv(b, 6, 3, 2), 6, act=False), n.conv(b, 6, 1, 2, act=False))
    return n.module(n.dense(n.op("batch_flatten", n.op("global_avg_pool2d", n.op("relu", c))), 5))


def inception():
    n = Net(1, 4, 9, 8)
    pooled = n.op("avg_pool2d", n.x, pool_size=(3, 3), padding=(1, 1, 1, 1))
    parts = [n.conv(n.x, 3, 1), n.conv(n.conv(n.x, 2, 1), 4), n.conv(n.x, 2, 5), n.conv(pooled, 2, 1)]
    return n.module(n.conv(n.op("concatenate", *parts, axis=1), 4, 3, 2))


def mobile():
    n = Net(1, 3, 12, 12)
    x = n.conv(n.x, 4, 3, 2)
    y = n.conv(n.conv(x, 8, 1), 8, 3, 1, groups=8)
    gate = n.op("sigmoid", n.conv(n.conv(n.op("global_avg_pool2d", y), 2, 1), 8, 1, act=False))
    x = n.op("add", n.conv(n.op("multiply", y, gate), 4, 1, act=False), x)
    return n.module(n.op("softmax", n.op("mean", x, axis=(2, 3))))


def head():
    n = Net(1, 3, 8, 8)
    x = n.op("max_pool2d", n.conv(n.conv(n.x, 4), 4), pool_size=(2, 2), strides=(2, 2))
    x = n.op("dropout", n.op("batch_flatten", x))
    return n.module(n.op("softmax", n.dense(n.op("relu", n.dense(n.op("relu", n.dense(x, 9)), 8)), 5)))


def unet():
    n = Net(1, 2, 12, 8)
    top = n.conv(n.x, 3)
    low = n.conv(n.op("max_pool2d", top, pool_size=(2, 2), strides=(2, 2)), 4)
    up = n.op("resize2d", low, size=(12, 8))
    wide = n.op("conv2d_transpose", low, n.weight(4, 3, 2, 2), strides=(2, 2), kernel_layout="IOHW")
    joined = n.op("concatenate", top, up, wide, axis=1)
    return n.module(n.conv(joined, 2), n.op("mean", joined, axis=(1,)))


def transformer():
    samples, length, width, heads = 2, 6, 8, 2
    n = Net(samples, length, width)
    flat = n.op("reshape", n.x, newshape=(samples * length, width))

    def split_heads(t):
        t = n.op("reshape", t, newshape=(samples, length, heads, width // heads))
        t = n.op("transpose", t, axes=(0, 2, 1, 3))
        return n.op("reshape", t, newshape=(samples * heads, length, width // heads))

    q, k, v = (split_heads(n.dense(flat, width)) for _ in range(3))
    weights = n.op("softmax", n.op("batch_matmul", q, k, transpose_b=True))
    y = n.op("reshape", n.op("batch_matmul", weights, v), newshape=(samples, heads, length, width // heads))
    y = n.op("transpose", y, axes=(0, 2, 1, 3))
    y = n.op("add", n.dense(n.op("reshape", y, newshape=(samples * length, width)), width), flat)
    y = n.op("layer_norm", y, n.weight(width), n.weight(width))
    y = n.op("add", n.dense(n.op("tanh", n.dense(y, 2 * width)), width), y)
    return n.module(n.op("reshape", y, newshape=(samples, length, width)))


NETWORKS = {f.__name__: f for f in (residual, inception, mobile, head, unet, transformer)}


def check(module, devices, **options):
    rng = np.random.default_rng(3)
    inputs = [rng.standard_normal(t.shape) for t in module.input_types]
    wanted = tw.interpret(module, *inputs, precision="fp64")
    modules = split_modules(module, devices, SpaceOptions(**options))
    for got in interpret_ranks(modules, *inputs, precision="fp64"):
        for g, w in zip(got, wanted, strict=True):
            np.testing.assert_allclose(g, w, rtol=1e-9, atol=1e-10 * float(np.abs(w).max()))
    return [op.name.removeprefix("graph.") for op in modules[0].main.body.ops]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("axis", ["h", "w", "batch", "channels", "sequence", "auto"])
def test_structures(name, axis):
    module = NETWORKS[name]()
    check(module, 3, axis=axis, gather="late")
    check(module, 4, axis=axis, speeds="1,2,1,0.5", gather="late")
    check(module, 2, axis=axis, latency_us=0.0, tflops=1e-3)


def test_a_transformer_split_by_samples_moves_nothing_inside():
    names = check(transformer(), 2, axis="batch", gather="late")
    assert [n for n in names if n in ("halo_exchange", "all_gather", "all_reduce")] == ["all_gather"]


def test_only_halos_move_between_convolutions():
    names = check(residual(), 2, axis="h", gather="late")
    assert names.count("all_reduce") == 1  # of the global pooling
    assert names.count("all_gather") == 1  # of the units of the last layer


def test_a_network_from_a_file(data_dir):
    path = str(data_dir / "relay" / "resnet20_cifar.relay")
    module = tw.frontends.relay.load(path, params="random", inputs=("data",), seed=0)
    names = check(module, 3, gather="late")
    assert (names.count("halo_exchange"), names.count("all_reduce"), names.count("all_gather")) == (18, 1, 1)
