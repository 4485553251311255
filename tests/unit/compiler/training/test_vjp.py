"""`tw.vjp`: results and gradients of a network as one module, its state, 16-bit storage, and refusals."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import InputError

zoo = tw.frontends.zoo


def layer(**options):
    sizes = {"batch": 2, "sequence": 4, "width": 8, "heads": 2, "hidden": 12}
    return zoo.encoder_layer(**{**sizes, **options})


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 4, 8)).astype(np.float32) for _ in range(2)]


def test_gradients_are_those_of_central_differences_with_dropout(data):
    module = tw.vjp(layer(dropout=0.3))
    tw.verify(module)
    x, cotangent = (a.astype(np.float64) for a in data)

    def dot(x, state=None):
        (y, *_), _ = tw.interpret_step(module, [x, cotangent], state, precision="fp64")
        return float((y * cotangent).sum())

    (_, dx, *others), state = tw.interpret_step(module, [x, cotangent], precision="fp64")
    rng, h = np.random.default_rng(1), 1e-6
    direction = rng.standard_normal(x.shape)
    slope = (dot(x + h * direction) - dot(x - h * direction)) / (2 * h)
    assert float((dx * direction).sum()) == pytest.approx(slope, rel=1e-6)
    first = {**state, "step": np.uint32(0)}
    named = dict(zip(layer().parameters, others, strict=True))
    for name in ("mlp.up.bias", "attention.value.kernel", "attention.norm.gamma"):
        direction = rng.standard_normal(state[name].shape)
        sides = [dot(x, {**first, name: state[name] + s * h * direction}) for s in (1, -1)]
        assert float((named[name] * direction).sum()) == pytest.approx(
            (sides[0] - sides[1]) / (2 * h), rel=1e-5, abs=1e-7
        )


def test_runs_leave_parameters_and_count(data):
    module = tw.vjp(layer())
    (first, *_), state = tw.interpret_step(module, data)
    (second, *_), state = tw.interpret_step(module, data, state)
    assert state["step"] == 2
    assert not np.array_equal(first, second)  # other bits
    assert all(np.array_equal(state[n], a) for n, a in layer().constants.items() if n in layer().parameters)


def test_sixteen_bits_are_stored_everywhere_and_computed_with_float32_inside(data):
    module = tw.vjp(layer(), storage="f16")
    tw.verify(module)
    assert {t.dtype for t in module.main.result_types} <= {"f16", "u32"}
    assert {p.tensor.dtype for p in module.main.params} == {"f16", "u32"}
    narrow = [a.astype(np.float16) for a in data]
    wide, _ = tw.interpret_step(tw.vjp(layer()), data, precision="fp64")
    got, *gradients = tw.compile(module, "reference").step(*narrow)
    for a, b in zip((got, *gradients[:3]), wide[:4], strict=True):
        assert np.asarray(a).dtype == np.float16
        assert np.linalg.norm(np.asarray(a) - b) < 1e-2 * np.linalg.norm(b)


def test_several_results_have_a_cotangent_each():
    text = """module @m {
      graph.func @main(%x: f32[3], %n: i32[3]) -> f32[3], i32[3], f32[] {
        %0 = graph.multiply(%x, %x) : f32[3]
        %1 = graph.sum(%x, axis = [0], keepdims = false) : f32[]
        graph.return(%0, %n, %1)
      }
    }"""
    module = tw.vjp(tw.parse(text))
    assert module.input_names == ("x", "n", "cotangent0", "cotangent1")
    assert module.main.get("loss") == (0, 2)
    x, n, g = np.float32([1, 2, 3]), np.int32([0, 1, 2]), np.float32([1, 0, 2])
    *_, dx = tw.interpret(module, x, n, g, np.float32(10))
    np.testing.assert_array_equal(dx, [12, 10, 22])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"wrt": "y"}, "expected names of inputs of floats or parameters, got 'y'"),
        ({"storage": "f8"}, "expected storage f16 or bf16, got 'f8'"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(InputError, match=message):
        tw.vjp(layer(), **options)
