"""Gradients through communication: those of all ranks sum to the gradient of the sum of their losses."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Builder, Func, Level, Module, TensorType, Value
from tilewright.ir.graph_code import GraphWriter
from tilewright.ir.interpreter.lockstep import interpret_ranks

RANKS = (0, 1, 2)
EXTENTS = (3, 1, 2)


def rank_module(rank, name, rows, attrs):
    """Weighted sum of what the op gives on one rank for its rows of x."""
    start, whole = sum(rows[:rank]), sum(rows)
    x = Value(TensorType("f32", (whole, 2)), "x")
    w = GraphWriter()
    part = w.op("strided_slice", w.tensor(x), begin=(start, 0), size=(rows[rank], 2), strides=(1, 1))
    y = w.op(name, part, rank=rank, ranks=RANKS, **attrs)
    weights = w.constant(np.random.default_rng(rank).standard_normal(y.shape).astype(np.float32), "weights")
    loss = (y * y * weights).sum()
    w.builder.emit("graph.return", (loss.value,), types=())
    func = Func(Level.GRAPH, "main", w.builder.block((x,)), (loss.value.type,))
    return Module("m", (func,), constants=w.constants)


def check(name, rows, **attrs):
    modules = [rank_module(r, name, rows, attrs) for r in RANKS]
    rng = np.random.default_rng(9)
    x, v = rng.standard_normal((2, sum(rows), 2))
    parts = interpret_ranks([tw.grad(m, "x", value=False) for m in modules], x, precision="fp64")
    own = sum(float((g * v).sum()) for (g,) in parts)

    def loss(at):
        return sum(float(r[0]) for r in interpret_ranks(modules, at, precision="fp64"))

    h = 6e-6
    numeric = (loss(x + h * v) - loss(x - h * v)) / (2 * h)
    assert abs(own) > 0.1
    assert own == pytest.approx(numeric, rel=1e-7)


def test_all_gather():
    check("all_gather", EXTENTS, axis=0, extents=EXTENTS)


def test_reduce_scatter():
    check("reduce_scatter", (6, 6, 6), axis=0, extents=EXTENTS)


@pytest.mark.parametrize("reduction", ["sum", "max"])
def test_all_reduce(reduction):
    check("all_reduce", (4, 4, 4), reduction=reduction)


@pytest.mark.parametrize(
    ("owned", "needed"),
    [
        (((0, 3), (3, 4), (4, 6)), ((0, 4), (2, 5), (3, 6))),
        (((0, 3), (2, 6), (5, 6)), ((0, 5), (1, 6), (0, 6))),
        (((0, 3), (3, 4), (4, 6)), ((0, 3), (3, 4), (4, 6))),
        (((0, 3), (3, 4), (4, 6)), ((2, 3), (0, 0), (0, 2))),
    ],
    ids=["neighbours", "overlapping", "own rows", "elsewhere"],
)
def test_halo_exchange(owned, needed):
    check("halo_exchange", [end - start for start, end in owned], axis=0, owned=owned, needed=needed)


def test_a_message_has_no_way_back():
    x = Value(TensorType("f32", (2,)), "x")
    b = Builder("net:send")
    b.emit("graph.send", [x], {"to": 1})
    y = b.value("graph.sum", x, axis=(0,), keepdims=False)
    b.emit("graph.return", (y,), types=())
    module = Module("m", (Func(Level.GRAPH, "main", b.block((x,)), (y.type,)),))
    with pytest.raises(tw.UnsupportedError, match=r"net:send: graph.send is not differentiable"):
        tw.grad(module, "x")
