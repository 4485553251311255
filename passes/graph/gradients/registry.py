"""The table of gradient rules, and what a rule is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_code import GraphWriter, Tensor
from tilewright.ir.graph_ops.operands import accumulator_dtype
from tilewright.ir.nodes import Attr, Op, Pairs


@dataclass(frozen=True)
class Backward:
    """One op on the way back: its operands and results, the cotangents of its results, a writer of graph ops.

    x, y: operands and results of the forward op. cotangents: per result the gradient of the differentiated
    value by it, of its type, or none where nothing came back. needed: per operand, whether its gradient is
    asked for; a rule may leave out what is not.
    """

    w: GraphWriter
    op: Op
    x: tuple[Tensor, ...]
    y: tuple[Tensor, ...]
    cotangents: tuple[Tensor | None, ...]
    needed: tuple[bool, ...]

    @property
    def g(self) -> Tensor:
        """The cotangent of the only result, or of the first one; zeros where nothing came back to it."""
        return self.cotangent(0)

    def cotangent(self, index: int) -> Tensor:
        """The cotangent of a result; zeros where nothing came back to it."""
        given = self.cotangents[index]
        return self.w.full(0, self.y[index].type) if given is None else given

    def attr(self, key: str) -> Attr:
        """An attribute of the forward op."""
        return self.op[key]

    def refused(self, why: str) -> UnsupportedError:
        """The error for an op that has no derivative as it stands here."""
        return UnsupportedError(f"{self.op.name} is not differentiable here: {why}", where=self.op.loc)


#: what came back to the results of an op -> what goes back to each operand (none: nothing)
GradientRule = Callable[[Backward], Sequence[Tensor | None]]
GRADIENTS: dict[str, GradientRule] = {}


def gradient(*names: str) -> Callable[[GradientRule], GradientRule]:
    """Register the gradient rule of graph ops by full name; a second rule for one op is an error."""

    def register(rule: GradientRule) -> GradientRule:
        for name in names:
            if name in GRADIENTS:
                raise InputError(
                    f"'{name}' has two gradient rules: {GRADIENTS[name].__module__} and {rule.__module__}"
                )
            GRADIENTS[name] = rule
        return rule

    return register


def derived(b: Backward) -> Sequence[Tensor | None]:
    """The adjoint that is derived from the tensor ops of the op's lowering: graph.adjoint."""
    wrt = tuple(i for i, needed in enumerate(b.needed) if needed)
    given = tuple(i for i, g in enumerate(b.cotangents) if g is not None)
    results = b.w.ops_of(
        "adjoint",
        (*b.x, *(g for g in b.cotangents if g is not None)),
        of=b.op.name,
        attrs=Pairs(b.op.attrs),
        wrt=wrt,
        given=given,
    )
    by_operand = dict(zip(wrt, results, strict=True))
    return [by_operand.get(i) for i in range(len(b.x))]


def summed_to(g: Tensor, shape: Sequence[int]) -> Tensor:
    """`g` summed over the dimensions along which an operand of this shape was broadcast to it."""
    lead = g.rank - len(shape)
    spread = [lead + d for d, n in enumerate(shape) if n == 1 and g.shape[lead + d] != 1]
    axes = (*range(lead), *spread)
    return (g.sum(axes) if axes else g).reshape(*shape)


def accumulated(x: Tensor) -> Tensor:
    """`x` in the dtype in which sums of its elements are held: 16-bit floats as float32."""
    return x.cast(accumulator_dtype(x.dtype))


def standardised(x: Tensor, axes: Sequence[int], epsilon: float) -> tuple[Tensor, Tensor]:
    """Standardised elements of `x` over `axes` (biased variance), and 1 / the deviation."""
    centred = x - x.mean(axes, keepdims=True)
    rstd = ((centred * centred).mean(axes, keepdims=True) + epsilon).rsqrt()
    return centred * rstd, rstd
