"""Gradients of elementwise ops of one tensor; where a form in the result exists, it is the one taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.ir.types import FLOATS
from tilewright.passes.graph.gradients.registry import Backward, gradient, summed_to


# Numbers without a short decimal are computed, so that they are exact in every precision; they are folded.
def _log_of(base: int, x: Tensor) -> Tensor:
    return x.writer.number(base, x.dtype).log()


def _two_over_root_pi(x: Tensor) -> Tensor:
    return x.writer.op("atan", x.writer.number(1, x.dtype)).rsqrt()


#: graph op -> its derivative from (x, y = op(x))
_DERIVATIVES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "abs": lambda x, y: x.writer.op("sign", x),
    "exp": lambda x, y: y,
    "exp2": lambda x, y: y * _log_of(2, x),
    "log": lambda x, y: 1 / x,
    "log2": lambda x, y: 1 / (x * _log_of(2, x)),
    "log10": lambda x, y: 1 / (x * _log_of(10, x)),
    "sqrt": lambda x, y: 0.5 / y,
    "rsqrt": lambda x, y: y * y * y * -0.5,
    "sin": lambda x, y: x.writer.op("cos", x),
    "cos": lambda x, y: -x.writer.op("sin", x),
    "tan": lambda x, y: y * y + 1,
    "sinh": lambda x, y: x.writer.op("cosh", x),
    "cosh": lambda x, y: x.writer.op("sinh", x),
    "tanh": lambda x, y: 1 - y * y,
    "asin": lambda x, y: (1 - x * x).rsqrt(),
    "acos": lambda x, y: -(1 - x * x).rsqrt(),
    "atan": lambda x, y: 1 / (x * x + 1),
    "asinh": lambda x, y: (x * x + 1).rsqrt(),
    "acosh": lambda x, y: ((x - 1) * (x + 1)).rsqrt(),
    "atanh": lambda x, y: 1 / (1 - x * x),
    "erf": lambda x, y: (-(x * x)).exp() * _two_over_root_pi(x),
    "sigmoid": lambda x, y: y * (1 - y),
}


def _by_derivative(name: str) -> None:
    derivative = _DERIVATIVES[name]

    @gradient(f"graph.{name}")
    def rule(b: Backward) -> Sequence[Tensor | None]:
        return [b.g * derivative(b.x[0], b.y[0])]


for _name in _DERIVATIVES:
    _by_derivative(_name)


@gradient("graph.negative")
def negative(b: Backward) -> Sequence[Tensor | None]:
    """dx = -g."""
    return [-b.g]


@gradient("graph.relu")
def relu(b: Backward) -> Sequence[Tensor | None]:
    """dx = g where the result is positive; nothing at 0, as PyTorch has it."""
    return [(b.y[0] > 0).where(b.g, 0)]


@gradient("graph.leaky_relu")
def leaky_relu(b: Backward) -> Sequence[Tensor | None]:
    """dx = g where x is positive, else alpha g."""
    return [(b.x[0] > 0).where(b.g, b.g * b.op.number("alpha"))]


@gradient("graph.clip")
def clip(b: Backward) -> Sequence[Tensor | None]:
    """dx = g inside the bounds and at them, as PyTorch has it."""
    x = b.x[0]
    inside = (x >= b.op.number("a_min")) & (x <= b.op.number("a_max"))
    return [inside.where(b.g, 0)]


@gradient("graph.softplus")
def softplus(b: Backward) -> Sequence[Tensor | None]:
    """dx = g sigmoid(beta x), and g above the threshold."""
    scaled = b.x[0] * b.op.number("beta")
    smooth = b.g * scaled.sigmoid()
    threshold = b.op.get("threshold")
    return [smooth if threshold is None else (scaled > b.op.number("threshold")).where(b.g, smooth)]


@gradient("graph.hard_swish")
def hard_swish(b: Backward) -> Sequence[Tensor | None]:
    """dx = 0 up to -3, g from 3 on, and g (2 x + 3) / 6 between."""
    x = b.x[0]
    between = b.g * ((x * 2 + 3) / 6)
    return [(x < 3).where((x > -3).where(between, 0), b.g)]


@gradient("graph.prelu")
def prelu(b: Backward) -> Sequence[Tensor | None]:
    """dx = g where x is positive, else alpha g; alpha gathers g x where x is not positive."""
    x, alpha = b.x
    axis = b.op.integer("axis") % x.rank
    spread = alpha.along(axis, x.rank)
    positive = x > 0
    return [
        positive.where(b.g, b.g * spread) if b.needed[0] else None,
        summed_to(positive.where(0, b.g * x), spread.shape).reshape(*alpha.shape) if b.needed[1] else None,
    ]


@gradient("graph.cast")
def cast(b: Backward) -> Sequence[Tensor | None]:
    """g in the dtype of x; integers carry nothing back."""
    return [b.g.cast(b.x[0].dtype) if b.y[0].dtype in FLOATS else None]
