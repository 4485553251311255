"""The interpreter of the tensor level against a point-by-point evaluation in plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir import (
    Builder,
    Func,
    InputError,
    Level,
    Module,
    Op,
    Sym,
    TensorType,
    Value,
    interpret,
    parse,
    verify,
)
from tilewright.ir.builder import scalar_body, structured
from tilewright.ir.constants import Constants
from tilewright.ir.expr import Expr, evaluate
from tilewright.ir.nodes import Block
from tilewright.ir.opdef import op_def
from tilewright.ir.simplify import interval
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.ir.types import numpy_dtype


def module_of(params: Sequence[Value], b: Builder, results: Sequence[Value]) -> Module:
    b.do("tensor.return", *results)
    types = tuple(v.type for v in results)
    return Module("m", (Func(Level.TENSOR, "main", b.block(params), types),))


def brute(op: Op, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Semantics of a structured op, one point at a time."""
    par, red = dims(op, "par"), dims(op, "red")
    outs = [np.zeros(tuple(par.values()), numpy_dtype(r.tensor.dtype)) for r in op.results]
    for p in itertools.product(*map(range, par.values())):
        held = list(op.get("init") or ()) if op.name != "tensor.map" else []
        held = [np.asarray(h).astype(o.dtype) for h, o in zip(held, outs, strict=False)]
        for r in itertools.product(*map(range, red.values())):
            env = dict(zip([*par, *red], [*p, *r], strict=True))
            elements = [
                element(x, [int(evaluate(e, env)) for e in at], fill)
                for x, at, fill in zip(arrays, reads(op), fills(op), strict=True)
            ]
            held = body(op.body, [*elements, *held], env)
        for o, h in zip(outs, held, strict=True):
            o[p] = h
    return outs


def element(x: np.ndarray, at: Sequence[int], fill: object) -> np.ndarray:
    if all(0 <= i < n for i, n in zip(at, x.shape, strict=True)):
        return np.asarray(x[tuple(at)])
    assert fill is not None
    return np.asarray(fill).astype(x.dtype)


def body(block: Block | None, arrays: Sequence[np.ndarray], env: dict[str, int]) -> list[np.ndarray]:
    assert block is not None
    known = dict(zip(block.params, arrays, strict=True))
    for op in block.ops[:-1]:
        if op.name == "scalar.index":
            known[op.result] = np.asarray(evaluate(op["at"], env)).astype(numpy_dtype(op["dtype"]))
        else:
            (known[op.result],) = op_def(op.name).evaluate([known[v] for v in op.operands], dict(op.attrs))
    return [known[v] for v in block.ops[-1].operands]


NAMES = ("n", "m", "k", "r")


@st.composite
def index_exprs(draw: st.DrawFn, names: Sequence[str]) -> Expr:
    kind = draw(st.sampled_from(["sym", "const", "affine", "two", "div", "mod", "min"]))
    a, b = (Sym(draw(st.sampled_from(list(names)))) for _ in range(2))
    c, d = draw(st.integers(-2, 3)), draw(st.integers(1, 3))
    return {
        "sym": a,
        "const": draw(st.integers(0, 2)),
        "affine": a * c + draw(st.integers(-1, 4)),
        "two": a * d + b * c - draw(st.integers(0, 2)),
        "div": (a + b) // d,
        "mod": (a * d + b) % 3,
        "min": Expr_min(a, d),
    }[kind]


def Expr_min(a: Expr, d: int) -> Expr:  # noqa: N802
    from tilewright.ir.expr import minimum

    return minimum(a, d)


BODIES: dict[str, Callable[[Builder, Value, Value, Value], Value]] = {
    "fma": lambda b, x, y, acc: b.value("scalar.fma", x, y, acc),
    "max": lambda b, x, y, acc: b.value("scalar.max", b.value("scalar.sub", x, y), acc),
    "sum_of_index": lambda b, x, y, acc: b.value(
        "scalar.add", acc, b.value("scalar.mul", x, b.index(Sym("k") + Sym("n"), "f32"))
    ),
    "ones": lambda b, x, y, acc: b.value("scalar.add", acc, b.const(1.0, "f32")),
    "horner": lambda b, x, y, acc: b.value("scalar.add", b.value("scalar.fma", acc, x, y), x),
}  # fmt: skip


@st.composite
def reductions(draw: st.DrawFn) -> tuple[Module, list[np.ndarray]]:
    extents = {n: draw(st.integers(0 if draw(st.booleans()) else 1, 4)) for n in NAMES}
    par = {n: extents[n] for n in ("n", "m")}
    red = {n: extents[n] for n in ("k", "r")}
    ranges = {n: (0, e - 1) for n, e in extents.items()}
    params, at, fill, arrays = [], [], [], []
    seed = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    for _ in range(2):
        exprs = tuple(draw(index_exprs(NAMES)) for _ in range(draw(st.integers(0, 3))))
        shape = tuple(draw(st.integers(1, 5)) for _ in exprs)
        bounds = [interval(e, ranges) for e in exprs]
        inside = all(lo >= 0 and hi < n for (lo, hi), n in zip(bounds, shape, strict=True))
        fill.append(None if inside and draw(st.booleans()) else draw(st.sampled_from([0.0, 2.5, -7.0])))
        params.append(Value(TensorType("f32", shape), "x"))
        arrays.append(seed.integers(-4, 5, shape).astype(np.float32))
        at.append(exprs)
    kind = draw(st.sampled_from([*BODIES, "map"]))
    b, (x, y, acc) = scalar_body(["f32", "f32", "f32"])
    if kind == "map":
        out = b.value("scalar.sub", x, b.value("scalar.mul", y, b.index(Sym("m") * 2 - Sym("n"), "f32")))
        b.do("scalar.yield", out)
        at = [tuple(_without(e, {"k", "r"}) for e in exprs) for exprs in at]
        fill = [0.5, 0.5]
        block = b.block((x, y))
    else:
        b.do("scalar.yield", BODIES[kind](b, x, y, acc))
        block = b.block((x, y, acc))
    name = {"map": "tensor.map", "fma": draw(st.sampled_from(["tensor.contract", "tensor.reduce"]))}.get(
        kind, "tensor.reduce"
    )
    main = Builder()
    more = {} if kind == "map" else {"red": red, "init": (draw(st.sampled_from([0.0, -3.0])),)}
    types = [TensorType("f32", tuple(par.values()))]
    results = structured(main, name, params, par=par, reads=at, body=block, types=types, fill=fill, **more)
    return module_of(params, main, results), arrays


def _without(e: Expr, names: set[str]) -> Expr:
    from tilewright.ir.expr import substitute

    return substitute(e, dict.fromkeys(names, 1))


@settings(max_examples=250, deadline=None)
@given(reductions())
def test_structured_ops_match_point_by_point_evaluation(case: tuple[Module, list[np.ndarray]]) -> None:
    module, arrays = case
    verify(module)
    (got,) = interpret(module, *arrays)
    (want,) = brute(module.main.body.ops[0], arrays)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


CALLS = """
module @m {
  tensor.func @double(%x: f32[6]) -> f32[6] {
    %y = tensor.map(%x, par = (i: 6), reads = [[i]]) : f32[6] {
      ^(%a: f32)
      %b = scalar.add(%a, %a) : f32
      scalar.yield(%b)
    }
    tensor.return(%y)
  }
  tensor.func @main(%x: f32[2, 3]) -> f32[3, 2], f32[2] {
    %y = tensor.call(%x, callee = @double) : f32[3, 2]
    %c = tensor.constant(name = "c") : f32[2]
    tensor.return(%y, %c)
  }
}
"""


def test_calls_reinterpret_dense_buffers_and_constants_are_copied() -> None:
    constant = np.float32([1, 2])
    module = parse(CALLS, constants=Constants({"c": constant}))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    y, c = interpret(module, x)
    np.testing.assert_array_equal(y, 2 * x.reshape(3, 2))
    c[:] = 9
    assert constant.tolist() == [1, 2]
    y, c = interpret(module, x, precision="fp64")
    assert (y.dtype, c.dtype) == (np.float64, np.float64)


def test_a_constant_without_data_is_named() -> None:
    with pytest.raises(InputError, match=r"constant 'c' \(f32\[2\]\) has no data"):
        interpret(parse(CALLS), np.zeros((2, 3), np.float32))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((), "expected 1 inputs .x: float32.2, 3.., got 0"),
        ((np.zeros((3, 2), np.float32),), r"input 'x': expected float32\[2, 3\], got float32\[3, 2\]"),
        ((np.zeros((2, 3)),), r"input 'x': expected float32\[2, 3\], got float64\[2, 3\]"),
        (([[1], [2, 3]],), "input 'x': expected an array, got list"),
    ],
)
def test_wrong_inputs_are_named(inputs: tuple[object, ...], message: str) -> None:
    module = parse(CALLS, constants=Constants({"c": np.float32([1, 2])}))
    with pytest.raises(InputError, match=message):
        interpret(module, *inputs)


def test_unknown_precision_thread_functions_and_endless_calls_are_errors() -> None:
    with pytest.raises(InputError, match="precision"):
        interpret(parse(CALLS), precision="fp16")
    endless = CALLS.replace("%y = tensor.map", "%y = tensor.call(%x, callee = @double) : f32[6]\n#")
    start = endless.index("      ^(%a")
    endless = endless[:start] + endless[endless.index("    tensor.return(%y)") :]
    with pytest.raises(InputError, match="makes no calls itself"):
        interpret(parse(endless), np.zeros((2, 3), np.float32))
    thread = "module @m { thread.func @main(%x: f32[1], grid = [1, 1, 1], block = 1) { thread.return() } }"
    with pytest.raises(InputError, match="is a thread"):
        interpret(parse(thread), np.zeros(1, np.float32))


def scan(body: str, attrs: str) -> str:
    return f"""
module @m {{
  tensor.func @main(%x: f32[3, 5]) -> f32[3, 5] {{
    %y = tensor.scan(%x, par = (i: 3, j: 5), reads = [[i, j]], dim = "j"{attrs}) : f32[3, 5] {{
      ^(%a: f32, %acc: f32)
      {body}
      scalar.yield(%r)
    }}
    tensor.return(%y)
  }}
}}
"""


SUM = "%r = scalar.add(%a, %acc) : f32"
GENERAL = '%h = scalar.const(value = 0.5, dtype = "f32") : f32\n %r = scalar.fma(%acc, %h, %a) : f32'


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("body_text", [SUM, GENERAL])
def test_scan(body_text: str, reverse: bool, exclusive: bool) -> None:
    flags = f", init = 2.0, exclusive = {str(exclusive).lower()}, reverse = {str(reverse).lower()}"
    x = np.random.default_rng(0).integers(-8, 8, (3, 5)).astype(np.float32)
    (got,) = interpret(parse(scan(body_text, flags)), x)
    want = np.zeros_like(x)
    for i in range(3):
        acc = 2.0
        for j in reversed(range(5)) if reverse else range(5):
            new = acc + x[i, j] if body_text is SUM else acc * 0.5 + x[i, j]
            want[i, j] = acc if exclusive else new
            acc = new
    np.testing.assert_array_equal(got, want)


def gather(mode: str) -> str:
    return f"""
module @m {{
  tensor.func @main(%x: f32[4, 3], %i: i64[5]) -> f32[5, 3] {{
    %y = tensor.gather(%x, %i, par = (a: 5, b: 3), reads = [[a]], at = [i0, 2 - b], mode = "{mode}",
                       fill_value = 7.0) : f32[5, 3]
    tensor.return(%y)
  }}
}}
"""


def test_gather_modes() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    i = np.array([0, 3, -1, 9, 2])
    flipped = x[:, ::-1]
    (clip,), (wrap,), (fill,) = (interpret(parse(gather(m)), x, i) for m in ("clip", "wrap", "fill"))
    np.testing.assert_array_equal(clip, flipped[[0, 3, 0, 3, 2]])
    np.testing.assert_array_equal(wrap, flipped[[0, 3, 3, 1, 2]])
    np.testing.assert_array_equal(fill[[0, 1, 4]], flipped[[0, 3, 2]])
    assert (fill[2:4] == 7).all()
    with pytest.raises(InputError, match="expected mode"):
        interpret(parse(gather("nearest")), x, i)


def scatter(body_text: str) -> str:
    return f"""
module @m {{
  tensor.func @main(%x: f32[4, 2], %u: f32[3, 2], %i: i32[3]) -> f32[4, 2] {{
    %y = tensor.scatter(%x, %u, %i, par = (a: 3, b: 2), reads = [[a, b], [a]], at = [i0, b]) : f32[4, 2] {{
      ^(%old: f32, %new: f32)
      {body_text}
    }}
    tensor.return(%y)
  }}
}}
"""


@pytest.mark.parametrize(
    ("body_text", "fold"),
    [
        ("%r = scalar.add(%old, %new) : f32 scalar.yield(%r)", lambda old, new: old + new),
        ("scalar.yield(%new)", lambda old, new: new),
        ("%r = scalar.fma(%old, %old, %new) : f32 scalar.yield(%r)", lambda old, new: old * old + new),
    ],
)
def test_scatter_applies_points_in_order_and_drops_those_outside(
    body_text: str, fold: Callable[[float, float], float]
) -> None:
    x, u = np.ones((4, 2), np.float32), np.float32([[1, 2], [3, 4], [5, 6]])
    for indices in ([1, 1, 1], [3, -1, 4], [0, 2, 0]):
        i = np.int32(indices)
        (got,) = interpret(parse(scatter(body_text)), x, u, i)
        want = x.copy()
        for a, b in itertools.product(range(3), range(2)):
            if 0 <= i[a] < 4:
                want[i[a], b] = fold(want[i[a], b], u[a, b])
        np.testing.assert_array_equal(got, want)
        assert (x == 1).all()


def test_the_order_of_bytes_is_no_part_of_an_input():
    m = parse("module @m {\n  graph.func @main(%x: f32[3]) -> f32[3] {\n    %0 = graph.relu(%x) : f32[3]\n"
              "    graph.return(%0)\n  }\n}")  # fmt: skip
    x = np.array([-1, 2, 3], ">f4")
    (y,) = interpret(m, x)
    np.testing.assert_array_equal(y, [0, 2, 3])
    assert y.dtype.isnative
