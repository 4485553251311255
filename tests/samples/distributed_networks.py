"""Small networks at the graph level for tests of distribution, and what all of those tests check."""

import numpy as np

import tilewright as tw
from tilewright.ir import equal, parse, show
from tilewright.ir.builder import Builder
from tilewright.ir.interpreter.lockstep import interpret_ranks
from tilewright.ir.nodes import Func, Level, Module, Value
from tilewright.ir.types import TensorType
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.pipelines import GRAPH

COMMUNICATION = ("send", "recv", "halo_exchange", "all_gather", "all_reduce", "reduce_scatter")


class Graph:
    """`g("relu", x)` appends an op; weights are random constants."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)
        self.b, self.params, self.arrays = Builder(), [], {}

    def input(self, *shape, dtype="f32"):
        self.params.append(Value(TensorType(dtype, shape), f"x{len(self.params)}"))
        return self.params[-1]

    def weight(self, *shape):
        name = f"w{len(self.arrays)}"
        scale = 1 / np.sqrt(np.prod(shape[1:])) if len(shape) > 1 else 1
        self.arrays[name] = (self.rng.normal(size=shape) * scale).astype(np.float32)
        return self.b.emit("graph.constant", (), {"name": name}, types=[TensorType("f32", shape)])[0]

    def __call__(self, name, *operands, **attrs):
        results = self.b.emit(f"graph.{name}", operands, attrs)
        return results if len(results) > 1 else results[0]

    def linear(self, x, units):
        y = self("dense", x, self.weight(units, x.tensor.shape[-1]))
        return self("bias_add", y, self.weight(units), axis=-1)

    def conv(self, x, filters, size, stride=1, groups=1):
        w = self.weight(filters, x.tensor.shape[1] // groups, size, size)
        y = self("conv2d", x, w, padding=(size // 2,) * 4, strides=(stride,) * 2, groups=groups)
        gamma, beta, mean = (self.weight(filters) for _ in range(3))
        var = self.weight(filters)
        self.arrays[f"w{len(self.arrays) - 1}"] = self.rng.uniform(0.5, 1.5, filters).astype(np.float32)
        return self("relu", self("batch_norm", y, gamma, beta, mean, var))

    def module(self, *results):
        self.b.emit("graph.return", results)
        func = Func(Level.GRAPH, "main", self.b.block(tuple(self.params)), tuple(r.type for r in results))
        return Module("net", (func,), constants=tw.ir.Constants(self.arrays))


def mlp(batch=6, width=32):
    g = Graph()
    x = g.input(batch, 20)
    h = g("relu", g.linear(x, width))
    h = g("tanh", g.linear(h, 24))
    return g.module(g("softmax", g.linear(h, 10)), h)


def cnn(batch=3):
    """Shortcuts, one across several layers, a depthwise convolution, a dense layer behind a flattening."""
    g = Graph()
    x = g.input(batch, 3, 8, 8)
    a = g.conv(x, 8, 3)
    b = g("add", g.conv(g.conv(a, 8, 3), 8, 3), a)
    c = g("add", g.conv(g.conv(b, 16, 3, stride=2), 16, 3), g.conv(b, 16, 1, stride=2))
    d = g.conv(c, 16, 3, groups=16)
    e = g("concatenate", d, g("max_pool2d", a, pool_size=(2, 2), strides=(2, 2)), axis=1)
    f = g("batch_flatten", g("avg_pool2d", e, pool_size=(2, 2), strides=(2, 2)))
    return g.module(g.linear(f, 10))


def attention(g, x, heads, fused):
    batch, length, width = x.tensor.shape
    depth = width // heads

    def split(y):
        y = g("transpose", g("reshape", y, newshape=(batch, length, heads, depth)), axes=(0, 2, 1, 3))
        return g("reshape", y, newshape=(batch * heads, length, depth))

    if fused:
        q, k, v = g("split", g.linear(x, 3 * width), indices=(width, 2 * width), axis=2)
    else:
        q, k, v = (g.linear(x, width) for _ in range(3))
    scores = g("batch_matmul", split(q), split(k), transpose_b=True)
    scores = g("multiply", scores, g.weight())
    y = g("batch_matmul", g("softmax", scores), split(v))
    y = g("transpose", g("reshape", y, newshape=(batch, heads, length, depth)), axes=(0, 2, 1, 3))
    return g.linear(g("reshape", y, newshape=(batch, length, width)), width)


def transformer(batch=2, length=5, heads=6, depth=4, vocabulary=50, layers=1, fused=False):
    """Embedding, blocks of attention and of two dense layers with residual sums, logits of the last place."""
    g = Graph()
    width = heads * depth
    ids = g.input(batch, length, dtype="i32")
    x = g("add", g("take", g.weight(vocabulary, width), ids, axis=0), g.weight(length, width))
    for _ in range(layers):
        normal = g("layer_norm", x, g.weight(width), g.weight(width))
        x = g("add", x, attention(g, normal, heads, fused))
        h = g("sigmoid", g.linear(g("layer_norm", x, g.weight(width), g.weight(width)), 4 * width))
        x = g("add", x, g.linear(h, width))
    last = g("strided_slice", x, begin=(0, length - 1, 0), size=(batch, 1, width), strides=(1, 1, 1))
    return g.module(g.linear(g("squeeze", last, axis=(1,)), vocabulary))


def inputs_of(module, seed=0):
    rng = np.random.default_rng(seed)
    return [
        rng.integers(0, 50, t.shape).astype(t.dtype) if "int" in t.dtype else rng.standard_normal(t.shape)
        for t in module.input_types
    ]


def communications(module):
    """Communication ops by name and attributes, in order."""
    names = {f"graph.{n}" for n in COMMUNICATION}
    return [(op.name.removeprefix("graph."), op.attrs) for op in module.main.body.ops if op.name in names]


def names_of(module):
    """Names of the communication ops of a module, in order."""
    return [name for name, _ in communications(module)]


def ranks_of(module, configured, devices, **options):
    """Every rank's module."""
    return [
        run_pipeline(
            module,
            Pipeline((configured(devices=devices, rank=r, **options),)),
            PassContext(verify_each=True, reproducer_folder=None),
        )
        for r in range(devices)
    ]


def check(module, configured, devices, **options):
    """All ranks give what the module gives, before and after the default passes, which keep communication.

    Returns the ranks' modules.
    """
    arrays = inputs_of(module)
    wanted = tw.interpret(module, *arrays, precision="fp64")
    modules = ranks_of(module, configured, devices, **options)
    later = [run_pipeline(m, GRAPH, PassContext(reproducer_folder=None)) for m in modules]
    for tolerance, ranks in ((1e-11, modules), (1e-6, later)):
        for m, before in zip(ranks, modules, strict=True):
            assert equal(parse(show(m), constants=m.constants), m)
            assert communications(m) == communications(before)
            assert [p.type for p in m.main.params] == [p.type for p in module.main.params]
        for got in interpret_ranks(ranks, *arrays, precision="fp64"):
            for g, w in zip(got, wanted, strict=True):
                np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)
    return modules
