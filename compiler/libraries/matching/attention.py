"""Attention in a kernel as problems of cuDNN: its score taken apart, its operands as arrays in memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.expr import symbols
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.libraries.matching.attention_scores import Pairs, Scores, places_of, scores_of
from tilewright.libraries.matching.library_call import (
    LibraryCall,
    copies_behind,
    region_of,
    with_op_before,
    written_anew,
)
from tilewright.libraries.matching.matmul import BUFFER_DTYPE
from tilewright.libraries.matching.strides import Strides, steps_of_element
from tilewright.passes.analysis.attention import KEY, Attention, attention_of
from tilewright.passes.analysis.terms import (
    Read,
    Reduction,
    Terms,
    applied,
    both_orders,
    divided,
    peeled,
)
from tilewright.runtime.libraries.attention import ATTENTION_DTYPES, AttentionProblem
from tilewright.runtime.libraries.problem import POINTER_BYTES

#: times that a dimension of the result is split where indices divide it
_SPLITS = 4


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
    terms, strides = result_terms(kernel, root, stop)
    result = peeled(terms.element(root.result, index_of(root, terms)))
    match = attention_of(terms, result) if isinstance(result, Reduction) else None
    pairs = None if match is None else Pairs(match.product, match.rows, KEY, match.sizes)
    scores = None if match is None or pairs is None or match.kept is not None else scores_of(
        terms, pairs, match.score
    )  # fmt: skip
    if match is None or scores is None:
        return
    stats = None if scores.shifted else _logarithms(kernel, terms, match)
    for operands in _choices(terms, match, scores):
        values = tuple(r.value for r in operands.present())
        for sums in (None,) if stats is None else (None, stats):
            problem = _problem(terms, match, scores, operands, strides, root, sums)
            results = (root.result,) if sums is None else (root.result, sums.value)
            ops = () if problem is None else region_of(kernel, results, values)
            if problem is not None and ops:
                yield LibraryCall(problem, values, ops, "cudnn", written=results)
                return


def _logarithms(kernel: Func, terms: Terms, match: Attention) -> Read | None:
    """The stored logarithms of the sums of exponentials, in float32; None where the kernel has none."""
    sums = match.total.op.result.tensor
    for op in kernel.body.ops:
        if op.name != "tensor.map" or len(op.results) != 1 or op.result.tensor.dtype != "f32":
            continue
        if tuple(dims(op, "par").values()) != sums.shape:
            continue
        term = peeled(terms.element(op.result, match.total.at))
        for peak, logarithm in both_orders(term, "add") if match.largest is not None else [(None, term)]:
            inside = applied(logarithm, "log")
            if inside is None or peeled(inside[0]) != match.total:
                continue
            if peak is None or peeled(peak) == match.largest:
                return Read(op.result, match.total.at)
    return None


def index_of(root: Op, terms: Terms) -> list[Expr]:
    """The index of the result in the dimensions of the terms: split ones are put together again."""
    out: list[Expr] = []
    for d, n in dims(root, "par").items():
        parts = [p for p in terms.ranges if p == d or p.startswith(f"{d}.")]
        e: Expr = 0
        for p in sorted(parts):
            e = e * (terms.ranges[p][1] + 1) + Sym(p)
        out.append(e if n > 1 else 0)
    return out


def result_terms(kernel: Func, root: Op, stop: Collection[Value]) -> tuple[Terms, Strides]:
    """Terms over the dimensions of the result, those that indices divide being split; steps of the result."""
    wide = {d: n for d, n in dims(root, "par").items() if n > 1}
    by_dim = dict(zip(dims(root, "par"), root.result.tensor.strides, strict=True))
    ranges = {d: (0, n - 1) for d, n in wide.items()}
    for _ in range(_SPLITS):
        terms = Terms(kernel, ranges, stop)
        sources = terms.sources(terms.element(root.result, index_of(root, terms)))
        split = divided(list(sources), ranges)
        if split is None:
            break
        d, size = split
        extent = ranges.pop(d)[1] + 1
        ranges |= {f"{d}.hi": (0, extent // size - 1), f"{d}.lo": (0, size - 1)}
        by_dim |= {f"{d}.hi": by_dim[d] * size, f"{d}.lo": by_dim[d]}
    terms = Terms(kernel, ranges, stop)
    return terms, Strides({d: by_dim[d] for d in ranges}, root.result.tensor.start)


def _choices(terms: Terms, match: Attention, scores: Scores) -> Iterator[_AttentionOperands]:
    """Sets of elements to begin with: as they are stored where the element types agree."""
    biases: Sequence[Read | None] = terms.stored(scores.bias) if scores.bias is not None else (None,)
    q, k, v = (terms.stored(t) for t in (match.q, match.k, match.v))
    for operands in (_AttentionOperands(*roles) for roles in product(q, k, v, biases)):
        if len({r.value.tensor.dtype for r in (operands.q, operands.k, operands.v)}) == 1:
            yield operands


def _problem(
    terms: Terms,
    match: Attention,
    scores: Scores,
    operands: _AttentionOperands,
    result: Strides,
    root: Op,
    stats: Read | None,
) -> AttentionProblem | None:
    dtype = BUFFER_DTYPE[root.result.tensor.dtype]
    q, k, v = (steps_of_element(r, terms.ranges) for r in (operands.q, operands.k, operands.v))
    bias = None if operands.bias is None else steps_of_element(operands.bias, terms.ranges)
    sums = None if stats is None else steps_of_element(stats, terms.ranges)
    if q is None or k is None or v is None:
        return None
    if (bias is None) != (operands.bias is None) or (sums is None) != (stats is None):
        return None
    along: dict[str, tuple[Strides, tuple[str, ...]]] = {
        "q": (q, ("batch", "query", "inner")),
        "k": (k, ("batch", "key", "inner")),
        "v": (v, ("batch", "key", "width")),
        "d": (result, ("batch", "query", "width")),
    }
    if bias is not None:
        along["bias"] = (bias, ("batch", "query", "key"))
    if sums is not None:
        along["stats"] = (sums, ("batch", "query"))
    channels = {"inner": match.summed, "width": match.width}
    places = places_of(match.sizes, match.batch, match.rows, (KEY,), channels, along, scores.causal)
    if BUFFER_DTYPE.get(operands.q.value.tensor.dtype) != dtype or places is None:
        return None
    arrays = {
        "q": places.array(("batch", "heads", "query", "inner"), q),
        "k": places.array(("batch", "groups", "key", "inner"), k),
        "v": places.array(("batch", "groups", "key", "width"), v),
        "d": places.array(("batch", "heads", "query", "width"), result),
    }
    if sums is not None:
        arrays["stats"] = places.array(("batch", "heads", "query", "one"), sums)
    mask, mask_dtype = None, ""
    if operands.bias is not None and bias is not None:
        mask_dtype = BUFFER_DTYPE.get(operands.bias.value.tensor.dtype, "")
        mask = places.array(("batch", "heads", "query", "key"), bias, spread=True)
        if mask_dtype not in (dtype, "float32") or not bias[KEY]:
            return None
    starts = [a.start * (4 if name == "stats" else 2) for name, a in arrays.items()]
    starts += [mask.start * (4 if mask_dtype == "float32" else 2)] if mask is not None else []
    if any(start % POINTER_BYTES for start in starts):
        return None
    return AttentionProblem(
        **arrays,
        dtype=dtype,
        scale=scores.scale,
        bias=mask,
        bias_dtype=mask_dtype,
        causal=bool(scores.causal),
    )


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
