"""Pass sink-reshapes: elementwise ops behind a product are computed in the product's own dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from tilewright.ir.nodes import Level, Module, Op, Value
from tilewright.ir.types import TensorType
from tilewright.passes.analysis.backward_pass import LOSS
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.products.parallel_products import CONVOLUTIONS, PRODUCTS
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module

#: ops that begin a kernel which takes elementwise ops along
BEGINNINGS = (PRODUCTS - CONVOLUTIONS) | {"graph.bias_add"}
#: ops that keep all elements in their order
VIEWS = frozenset({"graph.reshape", "graph.squeeze", "graph.expand_dims"})
#: ops of one or two operands, element by element, with broadcasting from the right
ELEMENTWISE = frozenset(
    f"graph.{name}"
    for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "cast", "relu", "clip", "exp", "tanh",
        "erf", "sigmoid", "negative",
    )
)  # fmt: skip
#: a choice between elements, and what may make its condition: masks of gradients
CHOICES = frozenset({"graph.where"})
COMPARISONS = frozenset({"graph.greater", "graph.less"})


@register_pass(Level.GRAPH, requires={"shapes-known"})
def sink_reshapes(module: Module, ctx: PassContext) -> Module:
    """Move reshapes of products behind the elementwise ops that follow: those become the product's epilogue.

    rewrite:  graph.add(graph.reshape(graph.batch_matmul(%q, %k)), %mask)
        -->   graph.reshape(graph.add(graph.batch_matmul(%q, %k), %mask))

    Where the other operand is alike for all indices that the reshape rearranges: scores of attention, whose
    heads are a dimension of their own from the reshape on, are scaled and masked alike for all heads. The
    reshape must have no other use. In functions with a backward pass another operand of the whole shape, such
    as a saved activation, is reshaped as well: gradients by inputs are products of matrices.
    """
    trains = module.main.level is Level.GRAPH and module.main.get(LOSS) is not None
    names = ELEMENTWISE | CHOICES if trains else ELEMENTWISE

    def sunk(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        return _sunk(op, rewriter, trains)

    return rewrite_module(module, [Pattern("behind-elementwise", names, sunk)], level="graph")


def _sunk(op: Op, rewriter: Rewriter, trains: bool) -> Sequence[Value] | None:
    shape = op.result.tensor.shape
    if trains and op.result.tensor.nbytes > max(v.tensor.nbytes for v in op.operands):
        return None  # sums in float32 of what is stored in 16 bits widen what they read
    for value in op.operands:
        source, made = _before_views(value, rewriter)
        begins = BEGINNINGS | ELEMENTWISE | CHOICES
        if made is None or made.name not in begins or value.tensor.shape != shape:
            continue
        tail = _kept(source.tensor.shape, value.tensor.shape)
        others = [v for v in op.operands if v is not value]
        before = source.tensor.shape
        if tail == len(before):
            continue
        whole = trains and len(before) < len(shape)  # back to the dimensions of a product of matrices
        if not all(_alike(v.tensor.shape, tail) or (whole and v.tensor.shape == shape) for v in others):
            continue
        operands = [
            source if v is value
            else _as(v, before, rewriter) if v.tensor.shape == shape
            else _without_front(v, tail, rewriter)
            for v in op.operands
        ]  # fmt: skip
        result = TensorType(op.result.tensor.dtype, source.tensor.shape)
        (early,) = rewriter.emit(op.name, operands, dict(op.attrs), types=[result], hint=op.result.hint)
        return rewriter.emit("graph.reshape", [early], {"newshape": shape}, types=[op.result.type])
    return None


def _as(v: Value, shape: Sequence[int], rewriter: Rewriter) -> Value:
    """A value under another shape; what is computed from one value and numbers is computed under it."""
    source, _ = _before_views(v, rewriter)
    if source.tensor.shape == tuple(shape):
        return source
    made = rewriter.producer(v)
    if made is not None and made.name in ELEMENTWISE | COMPARISONS and rewriter.uses(v) == 1:
        whole = [x for x in made.operands if x.tensor.size > 1]
        if len(whole) == 1 and whole[0].tensor.shape == v.tensor.shape:
            operands = [_as(x, shape, rewriter) if x is whole[0] else x for x in made.operands]
            result = TensorType(v.tensor.dtype, tuple(shape))
            return rewriter.emit(made.name, operands, dict(made.attrs), types=[result])[0]
    result = TensorType(v.tensor.dtype, tuple(shape))
    return rewriter.emit("graph.reshape", [v], {"newshape": tuple(shape)}, types=[result])[0]


def _before_views(value: Value, rewriter: Rewriter) -> tuple[Value, Op | None]:
    """Return the value before reshapes without another use, and the op that makes it."""
    made = rewriter.producer(value)
    while made is not None and made.name in VIEWS and rewriter.uses(value) == 1:
        (value,) = made.operands
        made = rewriter.producer(value)
    return value, made


def _kept(before: Sequence[int], after: Sequence[int]) -> int:
    """Return the number of last dimensions that a reshape leaves as they are."""
    pairs = zip(reversed(before), reversed(after), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _alike(shape: Sequence[int], tail: int) -> bool:
    """Return True where an operand is broadcast along everything but the last `kept` dimensions."""
    return all(n == 1 for n in shape[: max(0, len(shape) - tail)])


def _without_front(v: Value, tail: int, rewriter: Rewriter) -> Value:
    if len(v.tensor.shape) <= tail:
        return v
    shape = v.tensor.shape[len(v.tensor.shape) - tail :]
    return rewriter.emit(
        "graph.reshape", [v], {"newshape": shape}, types=[TensorType(v.tensor.dtype, shape)]
    )[0]
