"""Attention in a kernel as problems of cuDNN: its score taken apart, its operands as arrays in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.expr import symbols
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.libraries.matching.convolution import packed
from tilewright.libraries.matching.library_call import (
    LibraryCall,
    copies_behind,
    region_of,
    with_op_before,
    written_anew,
)
from tilewright.libraries.matching.matmul import BUFFER_DTYPE
from tilewright.libraries.matching.strides import Merged, Strides, merged, steps_of_element
from tilewright.passes.analysis.attention import KEY, Attention, attention_of
from tilewright.passes.analysis.position_masks import HIDDEN, MOST_PAIRS, positional
from tilewright.passes.analysis.terms import (
    Apply,
    Read,
    Reduction,
    Term,
    Terms,
    divided,
    names_in,
    number,
    peeled,
)
from tilewright.runtime.libraries.attention import ATTENTION_DTYPES, AttentionProblem
from tilewright.runtime.libraries.convolution import Array4
from tilewright.runtime.libraries.problem import POINTER_BYTES

#: times that a dimension of the result is split where indices divide it
_SPLITS = 4


@dataclass(frozen=True)
class _Scores:
    """scale * product [+ bias], `causal` where later keys are masked."""

    scale: float = 1.0
    bias: Term | None = None
    causal: bool = False


@dataclass(frozen=True)
class _AttentionOperands:
    """Elements of tensors that a call reads; all but the bias are of one type."""

    q: Read
    k: Read
    v: Read
    bias: Read | None

    def present(self) -> list[Read]:
        return [r for r in (self.q, self.k, self.v, self.bias) if r is not None]


def attentions_in(kernel: Func) -> list[LibraryCall]:
    """The ways to leave softmax(scale * q k^T + bias) v to cuDNN, those that take most ops along first."""
    contracts = [op for op in kernel.body.ops if op.name == "tensor.contract"]
    if len(contracts) < 2:
        return []
    calls: list[LibraryCall] = []
    for mix in reversed(contracts):
        for root in reversed(copies_behind(kernel, mix)):
            for call in _calls(kernel, root):
                calls += [call, *_with_spread_mask(kernel, call)]
    return calls


def _with_spread_mask(kernel: Func, call: LibraryCall) -> list[LibraryCall]:
    """The same with a mask that is written out, where it is one for all queries."""
    problem = call.problem
    assert isinstance(problem, AttentionProblem)
    if problem.bias is None or problem.bias.dims[2] == problem.q.dims[2]:
        return []
    rewritten = _spread(kernel, call.operands[3])
    if rewritten is None:
        return []
    other, spread = rewritten
    roots = (op for op in other.body.ops if op.results == (call.result,))
    return [replace(c, kernel=other) for root in roots for c in _calls(other, root, {spread})]


def _calls(kernel: Func, root: Op, stop: Collection[Value] = ()) -> Iterator[LibraryCall]:
    if BUFFER_DTYPE.get(root.result.tensor.dtype) not in ATTENTION_DTYPES:
        return
    terms, strides = _result_terms(kernel, root, stop)
    result = peeled(terms.element(root.result, _index(root, terms)))
    match = attention_of(terms, result) if isinstance(result, Reduction) else None
    scores = None if match is None or match.kept is not None else _scores(terms, match, match.score)
    if match is None or scores is None:
        return
    for operands in _choices(terms, match, scores):
        problem = _problem(terms, match, scores, operands, strides, root)
        if problem is None:
            continue
        values = tuple(r.value for r in operands.present())
        ops = region_of(kernel, root, values)
        if ops:
            yield LibraryCall(problem, values, ops, "cudnn")
            return


def _index(root: Op, terms: Terms) -> list[Expr]:
    """The index of the result in the dimensions of the terms: split ones are put together again."""
    out: list[Expr] = []
    for d, n in dims(root, "par").items():
        parts = [p for p in terms.ranges if p == d or p.startswith(f"{d}.")]
        e: Expr = 0
        for p in sorted(parts):
            e = e * (terms.ranges[p][1] + 1) + Sym(p)
        out.append(e if n > 1 else 0)
    return out


def _result_terms(kernel: Func, root: Op, stop: Collection[Value]) -> tuple[Terms, Strides]:
    """Terms over the dimensions of the result, those that indices divide being split; steps of the result."""
    wide = {d: n for d, n in dims(root, "par").items() if n > 1}
    by_dim = dict(zip(dims(root, "par"), root.result.tensor.strides, strict=True))
    ranges = {d: (0, n - 1) for d, n in wide.items()}
    for _ in range(_SPLITS):
        terms = Terms(kernel, ranges, stop)
        sources = terms.sources(terms.element(root.result, _index(root, terms)))
        split = divided(list(sources), ranges)
        if split is None:
            break
        d, size = split
        extent = ranges.pop(d)[1] + 1
        ranges |= {f"{d}.hi": (0, extent // size - 1), f"{d}.lo": (0, size - 1)}
        by_dim |= {f"{d}.hi": by_dim[d] * size, f"{d}.lo": by_dim[d]}
    terms = Terms(kernel, ranges, stop)
    return terms, Strides({d: by_dim[d] for d in ranges}, root.result.tensor.start)


def _scores(terms: Terms, match: Attention, term: Term) -> _Scores | None:
    """The parts of a score; a number that is added to all of a row changes nothing in its softmax."""
    term = peeled(term)
    if term == match.product:
        return _Scores()
    if not isinstance(term, Apply):
        return None
    if term.name == "scalar.select":
        scores, masked = _scores(terms, match, term.args[1]), number(term.args[2])
        seen = _by_position(match, term.args[0])
        causal = seen is not None and bool((seen == np.tri(len(seen), dtype=bool)).all())
        if scores is None or not causal or masked is None or masked > HIDDEN:
            return None
        return replace(scores, causal=True)
    if term.name not in ("scalar.add", "scalar.mul", "scalar.div"):
        return None
    for one, other in (term.args,) if term.name == "scalar.div" else (term.args, term.args[::-1]):
        scores = _scores(terms, match, one)
        if scores is None:
            continue
        value = number(other)
        if term.name == "scalar.add":
            return scores if value is not None else _with_mask(terms, match, scores, other)
        if value is not None and scores.bias is None:
            factor = value if term.name == "scalar.mul" else 1 / value
            return replace(scores, scale=scores.scale * factor) if factor > 0 else None
    return None


def _with_mask(terms: Terms, match: Attention, scores: _Scores, mask: Term) -> _Scores | None:
    """The scores with a causal mask added, or with an array."""
    added = _by_position(match, mask)
    if added is not None:
        seen = np.tri(len(added), dtype=bool)
        if (added[seen] == 0).all() and (added[~seen] <= HIDDEN).all():
            return replace(scores, causal=True)
    if scores.bias is not None or scores.causal or not terms.stored(mask):
        return None
    return replace(scores, bias=mask)


def _by_position(match: Attention, term: Term) -> np.ndarray | None:
    """A term that indices alone decide as a square [query, key]; None for others."""
    queries = [d for d in match.rows if match.sizes[d] > 1]
    keys = match.sizes[KEY]
    if len(queries) != 1 or match.sizes[queries[0]] != keys or keys * keys > MOST_PAIRS:
        return None
    if names_in(term) != {queries[0], KEY}:
        return None
    rows, columns = np.arange(keys)[:, None], np.arange(keys)[None, :]
    values = positional(term, {queries[0]: rows, KEY: columns})
    return None if values is None else np.broadcast_to(values, (keys, keys))


def _choices(terms: Terms, match: Attention, scores: _Scores) -> Iterator[_AttentionOperands]:
    """Sets of elements to begin with: as they are stored where the element types agree."""
    biases: Sequence[Read | None] = terms.stored(scores.bias) if scores.bias is not None else (None,)
    q, k, v = (terms.stored(t) for t in (match.q, match.k, match.v))
    for operands in (_AttentionOperands(*roles) for roles in product(q, k, v, biases)):
        if len({r.value.tensor.dtype for r in (operands.q, operands.k, operands.v)}) == 1:
            yield operands


def _problem(
    terms: Terms, match: Attention, scores: _Scores, operands: _AttentionOperands, result: Strides, root: Op
) -> AttentionProblem | None:
    dtype = BUFFER_DTYPE[root.result.tensor.dtype]
    q, k, v = (steps_of_element(r, terms.ranges) for r in (operands.q, operands.k, operands.v))
    bias = Strides({}) if operands.bias is None else steps_of_element(operands.bias, terms.ranges)
    if q is None or k is None or v is None or bias is None:
        return None
    roles = _roles(match, {"q": q, "k": k, "v": v, "d": result, "bias": bias})
    if BUFFER_DTYPE.get(operands.q.value.tensor.dtype) != dtype or roles is None:
        return None
    arrays = {
        "q": _array(roles, ("batch", "heads", "query", "inner"), q),
        "k": _array(roles, ("batch", "heads", "key", "inner"), k),
        "v": _array(roles, ("batch", "heads", "key", "width"), v),
        "d": _array(roles, ("batch", "heads", "query", "width"), result),
    }
    mask, mask_dtype = None, ""
    if operands.bias is not None:
        mask_dtype = BUFFER_DTYPE.get(operands.bias.value.tensor.dtype, "")
        mask = _array(roles, ("batch", "heads", "query", "key"), bias, spread=True)
        if mask_dtype not in (dtype, "float32") or not bias[KEY]:
            return None
    starts = [a.start * 2 for a in arrays.values()]
    starts += [mask.start * (4 if mask_dtype == "float32" else 2)] if mask is not None else []
    if any(start % POINTER_BYTES for start in starts):
        return None
    return AttentionProblem(
        **arrays, dtype=dtype, scale=scores.scale, bias=mask, bias_dtype=mask_dtype, causal=scores.causal
    )


def _roles(match: Attention, operands: Mapping[str, Strides]) -> dict[str, Merged] | None:
    """The dimensions that play batch, heads, queries, keys and sizes, as one each with steps by operand.

    None where one has not one step per operand, or an operand does not move along the dimensions it should.
    """
    groups = {
        "batch": match.batch,
        "query": match.rows,
        "width": match.width,
        "inner": match.summed,
        "key": (KEY,),
    }
    moving = {
        "q": ("batch", "query", "inner"),
        "k": ("batch", "key", "inner"),
        "v": ("batch", "key", "width"),
        "d": ("batch", "query", "width"),
        "bias": ("batch", "query", "key"),
    }
    for operand, steps in operands.items():
        along = {d for group in moving[operand] for d in groups[group]}
        moves = {d for d, step in steps.by_dim.items() if step}
        if moves - along or (operand != "bias" and moves != along):
            return None
    all_steps = list(operands.values())
    roles = {name: merged(group, match.sizes, all_steps) for name, group in groups.items()}
    if any(len(m) > (2 if name == "batch" else 1) for name, m in roles.items()):
        return None
    one = Merged((), 1, (0,) * len(all_steps))
    batch = roles.pop("batch")
    out = {name: m[-1] if m else one for name, m in roles.items()}
    return out | {"heads": batch[-1] if batch else one, "batch": batch[0] if len(batch) == 2 else one}


def _array(
    roles: Mapping[str, Merged], names: Sequence[str], steps: Strides, *, spread: bool = False
) -> Array4:
    """An operand with these roles as dimensions; `spread`: those it does not depend on get the extent 1."""
    extents_and_steps = [(m.extent, steps[m.dims[-1]] if m.dims else 0) for m in (roles[n] for n in names)]
    extents = tuple(1 if spread and not s else n for n, s in extents_and_steps)
    return Array4(extents, packed(extents, [s for _, s in extents_and_steps], (0, 1, 2, 3)), steps.start)


def _spread(kernel: Func, mask: Value) -> tuple[Func, Value] | None:
    """The kernel that writes the mask out before it is added, and what it writes; None for several readers.

    rewrite:  tensor.map(%s, %mask, par = (b, h, m, k), reads = [.., [b, k]])
              -->   %n = tensor.map(%mask, par = (b, m, k), reads = [[b, k]])
                    tensor.map(%s, %n, par = (b, h, m, k), reads = [.., [b, m, k]])
    """
    readers = [op for op in kernel.body.ops if mask in op.operands]
    if len(readers) != 1 or readers[0].name != "tensor.map" or readers[0].operands.count(mask) != 1:
        return None
    (reader,) = readers
    par = dims(reader, "par")
    at = reads(reader)[reader.operands.index(mask)]
    if len(par) < 2 or fills(reader)[reader.operands.index(mask)] is not None:
        return None
    used = {name for e in at for name in symbols(e)} | set(list(par)[-2:])
    extents = {d: n for d, n in par.items() if d in used}
    written = written_anew(mask, extents, at, "spread", reader.loc)
    index = tuple(Sym(d) for d in extents)
    changed = reader.with_operands(
        tuple(written.result if v is mask else v for v in reader.operands)
    ).with_attrs(
        reads=tuple(index if v is mask else r for v, r in zip(reader.operands, reads(reader), strict=True))
    )
    return with_op_before(kernel, reader, written, changed), written.result
