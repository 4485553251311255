"""The gradients of attention in a kernel as a problem of cuDNN, by what their elements are computed from.

With P = exp(score - logarithm of sums) and T = g v^T: dv sums P g over queries, and with the slopes
P (T - rowsum(d g)) scale, dq sums slopes k over keys and dk sums slopes q over queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.ir import Func, Op, Value
from tilewright.libraries.matching.attention import index_of, result_terms
from tilewright.libraries.matching.attention_scores import Pairs, Places, places_of, scores_of, square
from tilewright.libraries.matching.library_call import LibraryCall, region_of
from tilewright.libraries.matching.matmul import BUFFER_DTYPE
from tilewright.libraries.matching.strides import Strides, steps_of_element
from tilewright.passes.analysis.attention import factors_of
from tilewright.passes.analysis.pair_sums import PairProduct, PairSums, pair_sums
from tilewright.passes.analysis.position_masks import positional
from tilewright.passes.analysis.terms import (
    Apply,
    Read,
    Reduction,
    Term,
    Terms,
    applied,
    leaves,
    names_in,
    peeled,
)
from tilewright.runtime.libraries.attention import ATTENTION_DTYPES, AttentionBackwardProblem
from tilewright.runtime.libraries.convolution import Array4
from tilewright.runtime.libraries.problem import POINTER_BYTES

#: the dimension that rowsum(d g) is over
_SUMMED = "gradient.summed"
#: pairs that weights are evaluated at where indices do not matter
_SAMPLES = 16
#: largest difference between two ways to compute a weight, of its largest number: that of bfloat16
_NEAR = 1e-2


@dataclass(frozen=True)
class _Gradient:
    """One gradient: its arrays and the values they lie in, by the roles of the problem."""

    role: str
    arrays: Mapping[str, Array4]
    values: Mapping[str, Value]
    scale: float
    causal: bool


def gradients_in(kernel: Func) -> list[LibraryCall]:
    """The ways to leave dq, dk and dv of attention to cuDNN, where a kernel returns these alone."""
    returned = kernel.body.ops[-1].operands
    made = {r: op for op in kernel.body.ops for r in op.results}
    roots = [made[v] for v in returned if v in made]
    if len(set(returned)) != 3 or len(roots) != 3:
        return []
    dtype = BUFFER_DTYPE.get(returned[0].tensor.dtype, "")
    if dtype not in ATTENTION_DTYPES or len({v.tensor.dtype for v in returned}) != 1:
        return []
    calls = (_call(kernel, roots, rows, dtype) for rows in kernel.body.ops if rows.name == "tensor.reduce")
    return [call for call in calls if call is not None]


def _call(kernel: Func, roots: list[Op], rows: Op, dtype: str) -> LibraryCall | None:
    """The call for a kernel in which `rows` gives rowsum(d g)."""
    found = [_gradient(kernel, root, rows) for root in roots]
    gradients = {g.role: g for g in found if g is not None}
    if len(gradients) != len(roots):
        return None
    arrays: dict[str, Array4] = {}
    values: dict[str, Value] = {}
    for g in gradients.values():
        for role, array in g.arrays.items():
            if (
                arrays.setdefault(role, array) != array
                or values.setdefault(role, g.values[role]) != g.values[role]
            ):
                return None
    if len({(g.scale, g.causal) for g in gradients.values()}) != 1:
        return None
    read = tuple(values[role] for role in ("q", "k", "v", "d", "g", "stats"))
    written = tuple(values[role] for role in ("dq", "dk", "dv"))
    if any(BUFFER_DTYPE.get(v.tensor.dtype) != dtype for v in read[:-1]) or read[-1].tensor.dtype != "f32":
        return None
    if any(a.start * (4 if role == "stats" else 2) % POINTER_BYTES for role, a in arrays.items()):
        return None
    one = gradients["dq"]
    problem = AttentionBackwardProblem(**arrays, dtype=dtype, scale=one.scale, causal=one.causal)
    ops = region_of(kernel, written, read)
    return LibraryCall(problem, read, ops, "cudnn", written=written) if ops else None


def _gradient(kernel: Func, root: Op, rows: Op) -> _Gradient | None:
    """One result as a gradient of attention; None where it is none."""
    terms, strides = result_terms(kernel, root, {rows.result})
    mixed = peeled(terms.element(root.result, index_of(root, terms)))
    sums = pair_sums([(terms, mixed)]) if isinstance(mixed, Reduction) else None
    if sums is None:
        return None
    (weighted,) = sums.sums
    powers = list(dict.fromkeys(x for x in _parts(weighted.weight) if x.name == "scalar.exp"))
    difference = applied(powers[0].args[0], "sub") if len(powers) == 1 else None
    logarithm = None if difference is None else peeled(difference[1])
    if difference is None or not isinstance(logarithm, Read):
        return None
    scored = [p for p in sums.products if p.leaf in set(leaves(difference[0]))]
    others = [p for p in sums.products if p not in scored]
    if len(scored) != 1 or len(others) > 1:
        return None
    own_is_query = not names_in(logarithm) & set(sums.other)
    if not own_is_query and names_in(logarithm) & set(sums.rows):
        return None
    queries, keys = (sums.rows, sums.other) if own_is_query else (sums.other, sums.rows)
    if len([d for d in keys if _size(terms, d) > 1]) != 1:
        return None
    (key,) = [d for d in keys if _size(terms, d) > 1]
    sizes = {d: high + 1 for d, (_, high) in terms.ranges.items()}
    scores = scores_of(terms, Pairs(scored[0].leaf, queries, key, sizes), difference[0])
    if scores is None or scores.bias is not None or scores.shifted:
        return None
    slope = others[0] if others else None
    backs = [x for x in leaves(weighted.weight) if isinstance(x, Read) and x.value is rows.result]
    pairs = (scores.causal, key, sizes[key]) if scores.causal else None
    if not _weighs(weighted.weight, powers[0], slope, backs, scores.scale, pairs):
        return None
    role = "dv" if slope is None else "dq" if own_is_query else "dk"
    if role == "dv" and own_is_query:
        return None
    operands = _operands(kernel, terms, sums, scored[0], slope, backs, own_is_query)
    if operands is None:
        return None
    steps = {name: steps_of_element(read, terms.ranges) for name, (read, _) in operands.items()}
    if any(s is None for s in steps.values()):
        return None
    along = {name: (steps[name], a) for name, (_, a) in operands.items()} | {
        "stats": (steps_of_element(logarithm, terms.ranges), ("batch", "query")),
        role: (strides, ("batch", "key" if role != "dq" else "query", "out")),
    }
    channels = _channels(scored[0], slope, weighted.width)
    sizes = {d: high + 1 for d, (_, high) in terms.ranges.items()}
    places = places_of(sizes, sums.batch, queries, keys, channels, along, scores.causal)  # type: ignore[arg-type]
    if places is None:
        return None
    return _as_problem(role, places, along, operands, logarithm, root, scores.scale, bool(scores.causal))  # type: ignore[arg-type]


def _channels(
    score: PairProduct, slope: PairProduct | None, width: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    channels = {"inner": (score.inner,), "out": width}
    return channels if slope is None else channels | {"outer": (slope.inner,), "rows summed": (_SUMMED,)}


def _as_problem(
    role: str,
    places: Places,
    along: Mapping[str, tuple[Strides, tuple[str, ...]]],
    operands: Mapping[str, tuple[Read, tuple[str, ...]]],
    logarithm: Read,
    root: Op,
    scale: float,
    causal: bool,
) -> _Gradient | None:
    """The arrays of a gradient; None where one that is read twice is not the same."""
    arrays: dict[str, Array4] = {}
    values = {"stats": logarithm.value, role: root.result} | {n: r.value for n, (r, _) in operands.items()}
    for name, (steps, dims) in along.items():
        if name == "stats":
            arrays[name] = places.array(("batch", "heads", "query", "one"), steps)
        else:
            lead = ("groups", "key") if "key" in dims else ("heads", "query")
            arrays[name] = places.array(("batch", *lead, dims[-1]), steps)
    for name in [n for n in arrays if n.endswith(" again")]:
        first = name.removesuffix(" again")
        if arrays.setdefault(first, arrays[name]) != arrays[name]:
            return None
        if values.setdefault(first, values[name]) is not values[name]:
            return None
        del arrays[name], values[name]
    return _Gradient(role, arrays, values, scale, causal)


def _operands(
    kernel: Func,
    terms: Terms,
    sums: PairSums,
    score: PairProduct,
    slope: PairProduct | None,
    backs: list[Read],
    own_is_query: bool,
) -> dict[str, tuple[Read, tuple[str, ...]]] | None:
    """By role what is read of each array, and along which roles of dimensions it moves; None for others.

    A factor that a product and the sum both read stands as `NAME again`, too.
    """
    query, key = (score.own, score.other) if own_is_query else (score.other, score.own)
    found: dict[str, tuple[Term, tuple[str, ...]]] = {
        "q": (query, ("batch", "query", "inner")),
        "k": (key, ("batch", "key", "inner")),
    }
    factor = sums.sums[0].factor
    if slope is None:
        found["g"] = (factor, ("batch", "query", "out"))
    else:
        g, v = (slope.own, slope.other) if own_is_query else (slope.other, slope.own)
        found |= {"g": (g, ("batch", "query", "outer")), "v": (v, ("batch", "key", "outer"))}
        again = ("k again", "key") if own_is_query else ("q again", "query")
        found[again[0]] = (factor, ("batch", again[1], "out"))
        if len(set(backs)) != 1:
            return None
        whole = Terms(kernel, terms.ranges)
        total = whole.element(backs[0].value, backs[0].at)
        parts = factors_of(whole, total, (_SUMMED,)) if isinstance(total, Reduction) else None
        if parts is None:
            return None
        terms.ranges[_SUMMED] = whole.ranges[_SUMMED]
        same = [isinstance(peeled(g), Read) and _value(x) is _value(g) for x in parts]
        if same.count(True) != 1:
            return None
        rows = ("batch", "query", "rows summed")
        found["g again"], found["d"] = (parts[same.index(True)], rows), (parts[same.index(False)], rows)
    reads = {name: (peeled(term), dims) for name, (term, dims) in found.items()}
    out = {name: (read, dims) for name, (read, dims) in reads.items() if isinstance(read, Read)}
    return out if len(out) == len(reads) else None


def _value(term: Term) -> Value | None:
    inner = peeled(term)
    return inner.value if isinstance(inner, Read) else None


def _size(terms: Terms, dim: str) -> int:
    return terms.ranges[dim][1] + 1


def _parts(term: Term) -> Iterator[Apply]:
    """The term and all terms inside it that are ops of terms, reductions not opened."""
    if isinstance(term, Apply):
        yield term
        for inner in term.args:
            yield from _parts(inner)


def _weighs(
    weight: Term,
    power: Term,
    slope: PairProduct | None,
    backs: list[Read],
    scale: float,
    pairs: tuple[str, str, int] | None,
) -> bool:
    """Return whether weights are P (T - rowsum) scale, or P where there is no T, at every pair.

    They are computed for random P, which is 0 where a key is masked, T and rowsum. pairs: the dimensions of
    queries and keys and their extent, where a mask depends on them.
    """
    rng = np.random.default_rng(0)
    size = pairs[2] if pairs is not None else _SAMPLES
    env = square(*pairs) if pairs is not None else {}
    p, t = (rng.uniform(0.5, 2.0, (size, size)).astype(np.float32) for _ in range(2))
    if pairs is not None:
        p = np.tril(p)
    back = rng.uniform(-2.0, 0.0, (size, 1)).astype(np.float32)
    known: dict[Term, np.ndarray] = {power: p, **dict.fromkeys(backs, back)}
    wanted = p
    if slope is not None:
        known[slope.leaf] = t
        wanted = p * (t - back) * np.float32(scale)
    values = positional(weight, env, known)
    if values is None:
        return False
    largest = float(np.abs(wanted).max())
    return bool(
        (np.abs(np.broadcast_to(values, wanted.shape).astype(np.float32) - wanted) <= _NEAR * largest).all()
    )
