"""Scores of attention taken apart, and dimensions as the heads, queries and keys of cuDNN's arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.libraries.matching.convolution import packed
from tilewright.libraries.matching.strides import Merged, Strides, merged
from tilewright.passes.analysis.position_masks import HIDDEN, MOST_PAIRS, positional
from tilewright.passes.analysis.terms import Apply, Reduction, Term, Terms, names_in, number, peeled
from tilewright.runtime.libraries.convolution import Array4


@dataclass(frozen=True)
class Pairs:
    """Queries and keys: `product` is the sum over q k; `rows` have the dimension of the queries, `key` is it.

    sizes: extents of all dimensions.
    """

    product: Reduction
    rows: tuple[str, ...]
    key: str
    sizes: Mapping[str, int]


@dataclass(frozen=True)
class Scores:
    """scale * product [+ bias]; `causal` names the dimension of the queries where later keys are masked.

    shifted: whether a number is added to all scores, which changes their sums but no softmax.
    """

    scale: float = 1.0
    bias: Term | None = None
    causal: str = ""
    shifted: bool = False


def scores_of(terms: Terms, pairs: Pairs, term: Term) -> Scores | None:
    """The parts of a score; None for a term that is none."""
    term = peeled(term)
    if term == pairs.product:
        return Scores()
    if not isinstance(term, Apply):
        return None
    if term.name == "scalar.select":
        scores, masked = scores_of(terms, pairs, term.args[1]), number(term.args[2])
        seen = _by_position(pairs, term.args[0])
        causal = seen is not None and bool((seen[1] == np.tri(len(seen[1]), dtype=bool)).all())
        if scores is None or seen is None or not causal or masked is None or masked > HIDDEN:
            return None
        return replace(scores, causal=seen[0])
    if term.name not in ("scalar.add", "scalar.mul", "scalar.div"):
        return None
    for one, other in (term.args,) if term.name == "scalar.div" else (term.args, term.args[::-1]):
        scores = scores_of(terms, pairs, one)
        if scores is None:
            continue
        value = number(other)
        if term.name == "scalar.add":
            if value is not None:
                return replace(scores, shifted=True)
            return _with_mask(terms, pairs, scores, other)
        if value is not None and scores.bias is None and not scores.shifted:
            factor = value if term.name == "scalar.mul" else 1 / value
            return replace(scores, scale=scores.scale * factor) if factor > 0 else None
    return None


def _with_mask(terms: Terms, pairs: Pairs, scores: Scores, mask: Term) -> Scores | None:
    """The scores with a causal mask added, or with an array."""
    added = _by_position(pairs, mask)
    if added is not None:
        name, numbers = added
        seen = np.tri(len(numbers), dtype=bool)
        if (numbers[seen] == 0).all() and (numbers[~seen] <= HIDDEN).all():
            return replace(scores, causal=name)
    if scores.bias is not None or scores.causal or not terms.stored(mask):
        return None
    return replace(scores, bias=mask)


def _by_position(pairs: Pairs, term: Term) -> tuple[str, np.ndarray] | None:
    """A term that indices alone decide as a square [query, key], and the queries' name; None for others."""
    queries = [d for d in pairs.rows if d in names_in(term)]
    keys = pairs.sizes[pairs.key]
    if len(queries) != 1 or pairs.sizes[queries[0]] != keys or keys * keys > MOST_PAIRS:
        return None
    if names_in(term) != {queries[0], pairs.key}:
        return None
    values = positional(term, square(queries[0], pairs.key, keys))
    return None if values is None else (queries[0], np.broadcast_to(values, (keys, keys)))


def square(query: str, key: str, size: int) -> dict[str, np.ndarray | int]:
    """All pairs of so many queries and keys, as indices of arrays [query, key]."""
    return {query: np.arange(size)[:, None], key: np.arange(size)[None, :]}


@dataclass(frozen=True)
class Places:
    """Each dimension that arrays of attention have, as one with steps per operand.

    heads: of queries and results; groups: of keys and values, fewer where heads share them.
    """

    roles: Mapping[str, Merged]

    def array(self, names: Sequence[str], steps: Strides, *, spread: bool = False) -> Array4:
        """An operand with these roles as dimensions; `spread`: those it does not depend on get the extent 1.

        A name that is no role stands for a dimension of one index.
        """
        merged_ = (self.roles.get(name, Merged((), 1, ())) for name in names)
        extents_and_steps = [(m.extent, steps[m.dims[-1]] if m.dims else 0) for m in merged_]
        extents = tuple(1 if spread and not s else n for n, s in extents_and_steps)
        return Array4(extents, packed(extents, [s for _, s in extents_and_steps], (0, 1, 2, 3)), steps.start)


#: the arrays that keys and values are read from or have gradients in: heads may share them
KEYED = ("k", "v", "dk", "dv", "k again")


def places_of(
    sizes: Mapping[str, int],
    batch: Sequence[str],
    rows: Sequence[str],
    keys: Sequence[str],
    channels: Mapping[str, Sequence[str]],
    operands: Mapping[str, tuple[Strides, tuple[str, ...]]],
    causal: str = "",
) -> Places | None:
    """The dimensions that play batch, heads, groups, queries, keys and channels.

    rows: of queries, some of which may be heads that share keys. channels: by role the dimensions of others.
    operands: by name their steps and the roles among batch, query, key and channels that they move along; a
    `bias` need not move along all. causal: the dimension of the queries, where a mask tells. None where a
    role has not one step per operand, or an operand does not move along the dimensions it should.
    """
    split = _shared_heads(sizes, rows, [s for s, _ in operands.values()], causal)
    if split is None:
        return None
    shared, queries = split
    dims = {"batch": tuple(batch), "query": queries, "key": tuple(keys)}
    dims |= {name: tuple(group) for name, group in channels.items()}
    for name, (steps, along) in operands.items():
        expected = {d for role in along for d in dims[role]}
        if "batch" in along and name not in KEYED:
            expected |= set(shared)
        moves = {d for d, step in steps.by_dim.items() if step and sizes[d] > 1}
        if moves - expected or (name != "bias" and moves != {d for d in expected if sizes[d] > 1}):
            return None
    all_steps = [s for s, _ in operands.values()]
    groups = {name: merged(group, sizes, all_steps) for name, group in dims.items()}
    heads = merged(shared, sizes, all_steps)
    if any(len(m) > 1 for name, m in groups.items() if name != "batch") or len(heads) > 1:
        return None
    one = Merged((), 1, (0,) * len(all_steps))
    own = groups.pop("batch")
    roles = {name: m[-1] if m else one for name, m in groups.items()}
    if len(own) > 2:
        return None
    if not heads:
        last = own[-1] if own else one
        return Places(roles | {"heads": last, "groups": last, "batch": own[0] if len(own) == 2 else one})
    (inner,) = heads
    joined = _joined(own[-1], inner, list(operands)) if own else inner
    if joined is not None:
        outer, last = (own[0] if len(own) == 2 else one), (own[-1] if own else one)
        return Places(roles | {"heads": joined, "groups": last, "batch": outer})
    if len(own) == 1:  # a group is a batch of its own
        return Places(roles | {"heads": inner, "groups": one, "batch": own[0]})
    return None


def _joined(outer: Merged, inner: Merged, names: Sequence[str]) -> Merged | None:
    """Groups and the heads of each as one dimension of heads; None where that has not one step."""
    for name, o, i in zip(names, outer.steps, inner.steps, strict=True):
        if name not in KEYED and o != i * inner.extent:
            return None
    return Merged((*outer.dims, *inner.dims), outer.extent * inner.extent, inner.steps)


def _shared_heads(
    sizes: Mapping[str, int], rows: Sequence[str], steps: Sequence[Strides], causal: str
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Which dimensions of queries are heads that share keys, and which are queries; None for too many."""
    if causal:
        return tuple(d for d in rows if d != causal and sizes[d] > 1), (causal,)
    parts = merged(rows, sizes, steps)
    if len(parts) < 2:
        return (), tuple(rows)
    return (parts[0].dims, parts[1].dims) if len(parts) == 2 else None
