"""Constant factors of terms: what is taken out times what is left is the term."""

import pytest

from tilewright.ir import ScalarType
from tilewright.passes.analysis.terms import Apply, Position, constant, number
from tilewright.passes.kernels.term_factors import constant_factor, times

F32, BOOL = ScalarType("f32"), ScalarType("bool")
P, T, D = (Position(n, F32) for n in (3, 5, 7))
KEPT, LEFT = (Apply("scalar.const", (("value", v), ("dtype", "bool")), BOOL, ()) for v in (True, False))


def apply(name, *args):
    return Apply(f"scalar.{name}", (), F32, args)


def value(term):
    """The number that a term is; positions are the numbers they hold."""
    if isinstance(term, Position):
        return float(term.at)
    if term.name == "scalar.const":
        return dict(term.attrs)["value"]
    a = [value(x) for x in term.args]
    return {
        "mul": lambda: a[0] * a[1], "add": lambda: a[0] + a[1], "sub": lambda: a[0] - a[1],
        "neg": lambda: -a[0], "fma": lambda: a[0] * a[1] + a[2], "select": lambda: a[1] if a[0] else a[2],
    }[term.name.removeprefix("scalar.")]()  # fmt: skip


def names(term):
    """The ops of a term, the outermost first."""
    return [term.name.removeprefix("scalar."), *(n for a in term.args for n in names(a))] if isinstance(
        term, Apply
    ) else []  # fmt: skip


def gradient(kept):
    """As the gradient of attention with dropout has it: p * ((kept ? 1.25 t : 0) - d) * 0.125."""
    dropped = apply("select", kept, apply("mul", T, constant(1.25)), constant(0.0))
    return apply("mul", apply("mul", P, apply("sub", dropped, D)), constant(0.125))


@pytest.mark.parametrize("kept", [KEPT, LEFT])
def test_factors_leave_products_choices_and_sums(kept):
    factor, rest = constant_factor(gradient(kept))
    assert factor == 0.125
    assert factor * value(rest) == value(gradient(kept))
    assert names(rest) == ["mul", "fma", "select", "const", "const", "const", "neg"]


@pytest.mark.parametrize(
    ("term", "factor"),
    [
        (apply("mul", constant(2.0), apply("mul", P, constant(4.0))), 8.0),
        (apply("select", KEPT, constant(0.0), apply("mul", P, constant(3.0))), 3.0),
        (apply("add", apply("mul", P, constant(3.0)), apply("mul", T, constant(0.5))), 1.0),
        (apply("sub", P, apply("mul", T, constant(0.5))), 1.0),
        (apply("sub", P, T), 1.0),
        (apply("mul", P, constant(0.0)), 1.0),
        (apply("select", KEPT, apply("mul", P, constant(3.0)), constant(1.0)), 1.0),
    ],
)
def test_what_is_left_times_the_factor_is_the_term(term, factor):
    found, rest = constant_factor(term)
    assert found == factor
    assert found * value(rest) == value(term)


def test_a_number_goes_into_constants_and_sums():
    term = times(apply("sub", apply("mul", P, constant(0.25)), constant(8.0)), 2.0)
    assert value(term) == 2.0 * (3.0 * 0.25 - 8.0)
    assert [number(a) for a in term.args] == [None, 16.0]
    assert names(term) == ["sub", "mul", "const", "const"]
