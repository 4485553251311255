"""Partial derivatives of scalar ops against central differences, kinks, and that every op is classed."""

import zlib
from dataclasses import replace

import numpy as np
import pytest

from tilewright.ir import op_defs, scalar_body
from tilewright.ir.interpreter.body import run_body
from tilewright.ir.opdef import define
from tilewright.ir.scalar_code import Scalar

POINTS = 1000
#: per op the range its operands are drawn from; (-2, 2) for all others
RANGES = {
    **{name: [(0.1, 3.0)] for name in ("log", "log2", "log10", "sqrt", "rsqrt")},
    **{name: [(-0.9, 0.9)] for name in ("asin", "acos", "atanh")},
    "acosh": [(1.1, 4.0)],
    "tan": [(-1.2, 1.2)],
    "pow": [(0.2, 3.0), (-2.0, 2.0)],
    "div": [(-2.0, 2.0), (0.3, 2.0)],
    "mod": [(-2.0, 2.0), (0.3, 2.0)],
    "truncmod": [(-2.0, 2.0), (0.3, 2.0)],
    "atan2": [(0.2, 2.0), (-2.0, 2.0)],
}
SCALARS = {d.name.removeprefix("scalar."): d for d in op_defs() if d.name.startswith("scalar.")}
#: ops that belong to kernels, and conversions
NOT_DIFFERENTIATED = ("broadcast", "extract", "cast", "piece", "join_pieces")
SMOOTH = sorted(n for n, d in SCALARS.items() if any(d.partials) and n not in NOT_DIFFERENTIATED)


def partial(name, k, arrays):
    """The derivative of the op by operand k at every point, times a factor that is drawn."""
    dtypes = ["bool" if a.dtype == bool else "f64" for a in arrays]
    b, params = scalar_body([*dtypes, "f64"])
    x = [Scalar(b, p) for p in params]
    y = x[0].apply(name, *x[1:-1])
    b.do("scalar.yield", SCALARS[name].partials[k](x[:-1], y, x[-1]).value)
    g = np.random.default_rng(3).standard_normal(POINTS)
    return run_body(b.block(params), [*arrays, g], {})[0], g


@pytest.mark.parametrize("name", SMOOTH)
def test_differences(name):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    d = SCALARS[name]
    ranges = RANGES.get(name, [(-2.0, 2.0)])
    ranges = [*ranges, *ranges[-1:] * (len(d.operands) - len(ranges))]
    x = [rng.uniform(low, high, POINTS) for low, high in ranges]
    if name == "select":
        x[0] = rng.random(POINTS) < 0.5
    h = 1e-6
    for k, p in enumerate(d.partials):
        if p is None:
            continue
        up, down = ([*x[:k], x[k] + s * h, *x[k + 1 :]] for s in (1, -1))
        numeric = (d.evaluate(up, {})[0] - d.evaluate(down, {})[0]) / (2 * h)
        own, g = partial(name, k, x)
        smooth = np.abs(numeric) < 1e4  # a step of mod lies between the two points
        assert smooth.mean() > 0.99
        np.testing.assert_allclose(own[smooth], (numeric * g)[smooth], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", sorted(n for n, d in SCALARS.items() if d.partials and not any(d.partials)))
def test_piecewise_constant_ops_are_that(name):
    d = SCALARS[name]
    rng = np.random.default_rng(0)
    x = [rng.uniform(-2, 2, POINTS) for _ in d.operands]
    if name in ("and", "or", "xor", "not") or name.startswith(("bit_", "sh")) or name == "truncdiv":
        return  # their operands are no floats
    near = [v + 1e-9 for v in x]
    assert (np.asarray(d.evaluate(x, {})[0]) == np.asarray(d.evaluate(near, {})[0])).mean() > 0.99


@pytest.mark.parametrize(
    ("name", "k", "x", "expected"),
    [
        ("abs", 0, [0.0], 0.0),
        ("max", 0, [1.0, 1.0], 0.5),
        ("max", 1, [1.0, 1.0], 0.5),
        ("min", 0, [1.0, 1.0], 0.5),
        ("min", 1, [2.0, 2.0], 0.5),
        ("pow", 0, [0.0, 0.0], 0.0),
        ("pow", 0, [0.0, 2.0], 0.0),
        ("pow", 1, [0.0, 2.0], 0.0),
    ],
)
def test_kinks(name, k, x, expected):
    own, g = partial(name, k, [np.full(POINTS, v) for v in x])
    np.testing.assert_array_equal(own, expected * g)


def test_every_scalar_op_states_one_partial_derivative_per_operand():
    for name, d in SCALARS.items():
        count = 0 if name == "yield" else len(d.operands)
        assert d.partials is not None, name
        assert len(d.partials) == count, name
    with pytest.raises(ValueError, match=r"'scalar.new' must state its partial derivatives, one per operand"):
        define("scalar.new", ("a",), "A new op.")


def test_a_wrong_derivative_is_found(monkeypatch):
    sine = SCALARS["sin"]
    monkeypatch.setitem(SCALARS, "sin", replace(sine, partials=(lambda x, y, g: g * y,)))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        test_differences("sin")
