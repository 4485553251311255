"""Graphs in which tensors have no elements: results are empty, or what folds of nothing give."""

from functools import cache

import numpy as np
import pytest
from graph_op_agreement import agree, lowered, module_of

import tilewright as tw
from tilewright.ir import Builder, Func, InputError, Level, Module, TensorType, Value
from tilewright.tools.fuzz.generate import DRAWERS, draw
from tilewright.tools.fuzz.program import RandomGraph


def f32(*shape):
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def no_places():
    return np.zeros((0,), np.int32)


CASES = {
    "dense": ("dense", [f32(3, 0), f32(4, 0)], {}),
    "matmul": ("matmul", [f32(3, 0), f32(0, 4)], {}),
    "batch-matmul": ("batch_matmul", [f32(2, 3, 0), f32(2, 0, 4)], {}),
    "matmul-without-rows": ("matmul", [f32(0, 3), f32(3, 4)], {}),
    "conv-without-channels": ("conv2d", [f32(1, 0, 5, 5), f32(3, 0, 3, 3)], {"padding": (1, 1, 1, 1)}),
    "conv-of-padding": ("conv2d", [f32(1, 4, 0, 5), f32(3, 4, 3, 3)], {"padding": (2, 1, 2, 1)}),
    "einsum-inner": ("einsum", [f32(2, 0), f32(0, 3), f32(3, 4)], {"equation": "ab,bc,cd->ad"}),
    "einsum-between": ("einsum", [f32(2, 5), f32(5, 0), f32(0, 4)], {"equation": "ab,bc,cd->ad"}),
    "deformable": ("deformable_conv2d", [f32(1, 0, 5, 5), f32(1, 8, 4, 4), f32(2, 0, 2, 2)], {}),
    "sum": ("sum", [f32(2, 0, 3)], {"axis": (1,)}),
    "all": ("all", [np.zeros((2, 0), bool)], {"axis": (1,)}),
    "concatenate": ("concatenate", [f32(2, 0), f32(2, 3), f32(2, 0)], {"axis": 1}),
    "pad": ("pad", [f32(0, 3)], {"pad_before": (1, 0), "pad_after": (1, 2), "pad_value": 7.0}),
    "scatter": ("scatter_elements", [f32(5), no_places(), f32(0)], {"axis": 0, "reduction": "add"}),
    "gather": ("take", [f32(5, 3), no_places()], {"axis": 0, "mode": "clip"}),
    "search": ("searchsorted", [f32(0), f32(3)], {"right": False}),
    "topk": ("topk", [f32(3, 4)], {"k": 0, "axis": 1, "is_ascend": True, "dtype": "i32"}),
    "softmax": ("softmax", [f32(2, 0)], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_compiled(name):
    op, arrays, attrs = CASES[name]
    agree(op, *arrays, compiled=True, **attrs)


def test_epilogues_of_empty_contractions():
    a, b, bias = f32(3, 0), f32(4, 0), f32(4)
    module = module_of("dense", [a, b])
    assert not any(op.name == "tensor.contract" for op in lowered(module).main.body.ops)
    wanted = np.broadcast_to(bias, (3, 4))
    with tw.compile(_biased(), target="opencl") as exe:
        np.testing.assert_array_equal(exe(a, b, bias)[0], wanted)


def _biased():
    types = [TensorType("f32", s) for s in ((3, 0), (4, 0), (4,))]
    params = tuple(Value(t, n) for t, n in zip(types, "abc", strict=True))
    b = Builder("test:op")
    product = b.value("graph.dense", *params[:2])
    b.do("graph.return", b.value("graph.add", product, params[2]))
    main = Func(Level.GRAPH, "main", b.block(params), (TensorType("f32", (3, 4)),))
    return Module("m", (main,))


@cache
def drawn(name):
    """An op with its operands, as the fuzzer draws it."""
    for seed in range(20):
        p = RandomGraph(seed)
        if draw(p, name):
            op = [o for o in p.builder.ops if o.name != "graph.constant"][-1]
            arrays = {e.value: e.native for e in p.entries}
            return op, [arrays[v] for v in op.operands]
    raise AssertionError(f"nothing drawn for {name}")


def emptied(arrays):
    """The arrays with one extent set to 0: wherever it stands, or in one place."""
    for extent in sorted({n for a in arrays for n in a.shape}):
        yield [np.zeros([0 if n == extent else n for n in a.shape], a.dtype) for a in arrays]
    for k, a in enumerate(arrays):
        for d in range(a.ndim):
            shape = [0 if e == d else n for e, n in enumerate(a.shape)]
            yield [*arrays[:k], np.zeros(shape, a.dtype), *arrays[k + 1 :]]


@pytest.mark.parametrize("name", sorted(n for n in DRAWERS if n not in ("arange", "conv2d algorithms")))
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:.*divide", "ignore:invalid value")
def test_every_op(name):
    op, drawn_arrays = drawn(name)
    for arrays in emptied(drawn_arrays):
        try:
            module = module_of(op.name.removeprefix("graph."), arrays, **dict(op.attrs))
        except InputError:
            continue  # the op is not defined for this shape
        wanted = tw.interpret(module, *arrays)
        for got, w in zip(tw.interpret(lowered(module), *arrays), wanted, strict=True):
            assert (got.shape, got.dtype) == (w.shape, w.dtype)
            np.testing.assert_allclose(got.astype(np.float64), w.astype(np.float64), rtol=1e-4, atol=1e-4)
