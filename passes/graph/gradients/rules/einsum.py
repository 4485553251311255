"""Gradients of sums of products over named dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.graph_code import Tensor
from tilewright.ir.graph_ops.einsum import extents_of, terms_of
from tilewright.passes.graph.gradients.registry import Backward, derived, gradient


@gradient("graph.einsum")
def einsum(b: Backward) -> Sequence[Tensor | None]:
    """Each factor receives the einsum of g with the other factors; diagonals have derived adjoints."""
    equation = str(b.attr("equation"))
    terms, output = terms_of(equation)
    if any(len(set(t)) < len(t) for t in terms):
        return derived(b)
    extents = extents_of(equation, [x.shape for x in b.x])
    return [_to_factor(b, i, terms, output, extents) if needed else None for i, needed in enumerate(b.needed)]


def _to_factor(b: Backward, i: int, terms: Sequence[str], output: str, extents: dict[str, int]) -> Tensor:
    """The gradient by factor `i`, repeated along labels that only this factor has."""
    x, own = b.x[i], terms[i]
    factors = [b.g, *(f for k, f in enumerate(b.x) if k != i)]
    others = [output, *(t for k, t in enumerate(terms) if k != i)]
    present = set("".join(others))
    # along a dimension of extent 1 that was broadcast, g is summed
    kept = "".join(
        c for c, n in zip(own, x.shape, strict=True) if c in present and (n > 1 or n == extents[c])
    )
    g = b.w.op("einsum", *factors, equation=f"{','.join(others)}->{kept}")
    known = dict(zip(kept, g.shape, strict=True))
    return g.reshape(*(known.get(c, 1) for c in own)).broadcast_to(*x.shape)
