"""What derived adjoints are lowered to, adjoints of adjoints, and kernels made of them."""

import subprocess
import sys

import numpy as np
import pytest

import tilewright as tw
from tests.samples.adjoints import adjoint_module, check_adjoint
from tests.samples.gradient_draws import instances
from tests.samples.graph_op_agreement import lowered, module_of
from tilewright.ir import Builder, Func, Level, Module, Pairs, TensorType, Value

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def ops_of_adjoint(name, arrays, **attrs):
    """Names of the tensor ops that a derived adjoint is lowered to."""
    (op,) = module_of(name, arrays, **attrs).main.body.ops[:-1]
    module, *_ = adjoint_module(op)
    return [x.name.removeprefix("tensor.") for x in lowered(module).main.body.ops[:-1]]


@pytest.mark.parametrize(
    "drawer",
    [
        "tanh",
        "dense",
        "softmax",
        "max_pool2d",
        "adaptive_max_pool2d",
        "prod",
        "cumprod",
        "take",
        "scatter_nd",
        "sort",
        "reshape",
        "lrn",
    ],
)
def test_an_adjoint_of_an_adjoint(drawer):
    (instance,) = instances(drawer, 1)
    module, arrays = check_adjoint(instance.module(), instance.arrays)
    check_adjoint(module, [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays])


@pytest.mark.parametrize(
    ("name", "arrays", "attrs", "expected"),
    [
        ("dense", [normal(4, 3), normal(5, 3)], {}, ["contract", "contract"]),
        ("conv2d", [normal(2, 3, 8, 8), normal(4, 3, 3, 3)], {"strides": (2, 2)}, ["contract", "contract"]),
        ("transpose", [normal(4, 3)], {"axes": (1, 0)}, ["map"]),
        ("reshape", [normal(4, 6)], {"newshape": (3, 8)}, ["map"]),
        ("reshape", [normal(4, 3, 7, 10)], {"newshape": (6, 10, 14)}, ["map"]),
        ("resize2d", [normal(1, 2, 5, 4)], {"size": (9, 7), "method": "nearest_neighbor"}, ["reduce"]),
        (
            "pad",
            [normal(3, 5)],
            {"pad_before": (1, 2), "pad_after": (2, 0), "pad_mode": "edge"},
            ["reduce"],
        ),
        ("strided_slice", [normal(9)], {"begin": (1,), "size": (3,), "strides": (3,)}, ["map"]),
        ("concatenate", [normal(2, 3), normal(4, 3)], {"axis": 0}, ["map", "map"]),
        ("tile", [normal(2, 3)], {"reps": (2, 2)}, ["reduce"]),
        ("sum", [normal(2, 3)], {"axis": (1,), "keepdims": False}, ["map"]),
        ("copy", [normal(2, 3)], {}, []),
        ("avg_pool2d", [normal(1, 2, 6, 6)], {"pool_size": (2, 2), "strides": (2, 2)}, ["map", "map"]),
        ("cumsum", [normal(2, 3)], {"axis": 1}, ["scan"]),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_inverse_reads_need_no_scatter(name, arrays, attrs, expected):
    assert ops_of_adjoint(name, arrays, **attrs) == expected


def test_reflections_need_no_scatter():
    names = ops_of_adjoint("pad", [normal(5, 7)], pad_before=(2, 3), pad_after=(1, 2), pad_mode="reflect")
    assert set(names) == {"map"}


def test_only_what_is_asked_for_is_computed():
    (op,) = module_of("dense", [normal(4, 3), normal(5, 3)]).main.body.ops[:-1]
    module, *_ = adjoint_module(op)
    (adjoint,) = module.main.body.ops[:-1]
    assert len(adjoint.results) == 2
    text = tw.show(module).replace("wrt = [0, 1]", "wrt = [1]")
    text = text.replace("-> f32[4, 3], f32[5, 3]", "-> f32[5, 3]").replace("%0, %1 = ", "%0 = ")
    text = text.replace(": f32[4, 3], f32[5, 3]", ": f32[5, 3]").replace("return(%0, %1)", "return(%0)")
    assert len(lowered(tw.parse(text)).main.body.ops) == 2


def test_sixteen_bit_sums_are_rounded_once():
    x, g = np.ones((4096, 1), np.float16), np.full((4096, 3), 0.1, np.float16)
    (op,) = module_of("broadcast_to", [x], shape=(4096, 3)).main.body.ops[:-1]
    module, *_ = adjoint_module(op)
    (back,) = tw.interpret(lowered(module), x, g)
    np.testing.assert_array_equal(back, (g.astype(np.float32).sum(1, keepdims=True)).astype(np.float16))


def test_an_operand_that_is_given_twice_is_two():
    x = normal(3)
    b, t = Builder(), TensorType("f32", (3,))
    v, g = Value(t, "x"), Value(t, "g")
    attrs = {"of": "graph.multiply", "attrs": Pairs(), "wrt": (0, 1), "given": (0,)}
    b.emit("graph.return", b.emit("graph.adjoint", (v, v, g), attrs))
    module = Module("m", (Func(Level.GRAPH, "main", b.block((v, g)), (t, t)),))
    a, b = tw.interpret(module, x, np.ones(3, np.float32))
    np.testing.assert_array_equal(a, x)
    np.testing.assert_array_equal(b, x)


FILE = """module @m {
  graph.func @main(%x: f32[3], %g: f32[3]) -> f32[3] {
    %0 = graph.adjoint(%x, %g, of = "graph.tanh", attrs = (), wrt = [0], given = [0]) : f32[3]
    graph.return(%0)
  }
}"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"graph.tanh"', '"graph.tan_h"'), r"unknown op 'graph.tan_h'"),
        (('"graph.tanh"', '"graph.floor"'), r"expected a graph op that is differentiable, got graph.floor"),
        (('"graph.tanh"', '"scalar.tanh"'), r"expected a graph op that is differentiable, got scalar.tanh"),
        (("given = [0]", "given = [0, 1, 2]"), r"expected 3 cotangents behind the operands, got 2 tensors"),
        (("given = [0]", "given = [1]"), r"graph.tanh has 1 results, not 1"),
        (("wrt = [0]", "wrt = [2]"), r"graph.tanh has 1 operands, not 2"),
        (("wrt = [0]", "wrt = [0, 0]"), r"expected distinct positions in 'wrt'"),
        (("%g: f32[3]", "%g: f32[2]"), r"expected the cotangent of result 0 to be f32\[3\], got f32\[2\]"),
    ],
)
def test_bad_adjoints(change, message):
    with pytest.raises(tw.InputError, match=message):
        tw.verify(tw.parse(FILE.replace(*change)))


def test_the_public_interpreter_knows_adjoints_by_itself(tmp_path):
    (tmp_path / "adjoint.ir").write_text(FILE)
    code = (
        "import numpy as np, tilewright as tw; x = np.zeros(3, np.float32)\n"
        f"print(tw.interpret(tw.parse(open({str(tmp_path / 'adjoint.ir')!r}).read()), x, x + 2))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[array([2., 2., 2.], dtype=float32)]\n"


def test_empty_tensors():
    (op,) = module_of("dense", [normal(0, 3), normal(5, 3)]).main.body.ops[:-1]
    module, *_ = adjoint_module(op)
    dx, dw = tw.interpret(module, normal(0, 3), normal(5, 3), normal(0, 5))
    assert dx.shape == (0, 3)
    np.testing.assert_array_equal(dw, np.zeros((5, 3)))


def test_what_is_refused():
    x, i, u = normal(4), np.asarray([0, 1]), normal(2)
    (op,) = module_of("scatter_elements", [x, i, u], axis=0, reduction="mean").main.body.ops[:-1]
    module, *_ = adjoint_module(op)
    with pytest.raises(tw.UnsupportedError, match=r"no adjoint of graph\.scatter_elements can be derived"):
        tw.interpret(module, x, i, u, x)


#: ops whose adjoints are made of every kind of tensor op, with arrays and attributes
COMPILED = [
    ("dense", [normal(9, 7), normal(5, 7)], {}),
    ("conv2d", [normal(2, 3, 9, 8), normal(4, 3, 3, 3)], {"strides": (2, 1), "padding": (1, 1, 1, 1)}),
    ("avg_pool2d", [normal(2, 3, 9, 8)], {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}),
    ("max_pool2d", [normal(2, 3, 9, 8)], {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}),
    ("layer_norm", [normal(6, 5), normal(5), normal(5)], {}),
    ("resize2d", [normal(1, 2, 5, 4)], {"size": (9, 7)}),
    ("pad", [normal(3, 5)], {"pad_before": (1, 2), "pad_after": (2, 0), "pad_mode": "edge"}),
    ("take", [normal(7, 3), np.asarray([1, 6, 1, 0])], {"axis": 0}),
    ("cumprod", [normal(3, 5)], {"axis": 1}),
    ("scatter_nd", [normal(5, 3), np.asarray([[1, 3, 1]]), normal(3, 3)], {"mode": "update"}),
]


@pytest.mark.parametrize(("name", "arrays", "attrs"), COMPILED, ids=[name for name, _, _ in COMPILED])
def test_compiled(name, arrays, attrs):
    """Kernels of derived adjoints: they run here, and compile for a GPU."""
    (op,) = module_of(name, arrays, **attrs).main.body.ops[:-1]
    module, given, _ = adjoint_module(op)
    inputs = [*arrays, *(normal(*op.results[k].tensor.shape) for k in given)]
    exact = tw.interpret(module, *inputs, precision="fp64")
    with tw.compile(module, target="opencl", progress=False) as exe:
        for own, right in zip(exe(*inputs), exact, strict=True):
            assert np.linalg.norm(own - right) <= 1e-5 * np.linalg.norm(right)
    with tw.compile(module, target="cuda:sm_90a", progress=False) as exe:
        assert exe.plan.launches
