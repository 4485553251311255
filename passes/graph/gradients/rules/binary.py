"""Gradients of elementwise ops of two tensors, summed over the dimensions that were broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.passes.graph.gradients.registry import Backward, gradient, summed_to

#: what an op sends back to each operand, before sums over broadcast dimensions, from (step, a, b)
_Parts = tuple[Callable[[Backward, Tensor, Tensor], Tensor], Callable[[Backward, Tensor, Tensor], Tensor]]


def _of_two(name: str, parts: _Parts) -> None:
    @gradient(f"graph.{name}")
    def rule(b: Backward) -> Sequence[Tensor | None]:
        x, y = b.x
        return [
            summed_to(part(b, x, y), v.shape) if needed else None
            for part, v, needed in zip(parts, b.x, b.needed, strict=True)
        ]


_of_two("add", (lambda b, x, y: b.g, lambda b, x, y: b.g))
_of_two("subtract", (lambda b, x, y: b.g, lambda b, x, y: -b.g))
_of_two("multiply", (lambda b, x, y: b.g * y, lambda b, x, y: b.g * x))
_of_two("divide", (lambda b, x, y: b.g / y, lambda b, x, y: -(b.g * b.y[0] / y)))
# The power's derivative by its exponent is 0 where the base is 0, as PyTorch has it.
_of_two(
    "power",
    (
        lambda b, x, y: y.equal(0).where(0, b.g * y * x ** (y - 1)),
        lambda b, x, y: b.g * x.equal(0).where(0, b.y[0] * x.equal(0).where(1, x).log()),
    ),
)
_of_two(
    "atan2",
    (
        lambda b, x, y: b.g * y / (x * x + y * y),
        lambda b, x, y: -(b.g * x / (x * x + y * y)),
    ),
)
_of_two("mod", (lambda b, x, y: b.g, lambda b, x, y: -(b.g * b.w.op("trunc", x / y))))
_of_two("floor_mod", (lambda b, x, y: b.g, lambda b, x, y: -(b.g * b.w.op("floor", x / y))))


def _chosen(b: Backward, mine: Tensor, other: Tensor, *, larger: bool) -> Tensor:
    """g where `mine` was chosen, half of it where both are equal, as PyTorch has it."""
    better = mine > other if larger else mine < other
    return better.where(b.g, mine.equal(other).where(b.g * 0.5, 0))


_of_two(
    "maximum",
    (
        lambda b, x, y: _chosen(b, x, y, larger=True),
        lambda b, x, y: _chosen(b, y, x, larger=True),
    ),
)
_of_two(
    "minimum",
    (
        lambda b, x, y: _chosen(b, x, y, larger=False),
        lambda b, x, y: _chosen(b, y, x, larger=False),
    ),
)


@gradient("graph.where")
def where(b: Backward) -> Sequence[Tensor | None]:
    """g goes to the operand that was chosen."""
    condition, x, y = b.x
    chosen = condition if condition.dtype == "bool" else ~condition.equal(0)
    return [
        None,
        summed_to(chosen.where(b.g, 0), x.shape) if b.needed[1] else None,
        summed_to(chosen.where(0, b.g), y.shape) if b.needed[2] else None,
    ]
