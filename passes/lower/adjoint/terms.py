"""Sums over the points of a domain that read an element, for each element of a tensor: transposed reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod

from tilewright.ir.builder import Builder
from tilewright.ir.expr import Expr, Sym
from tilewright.ir.nodes import Attr, Block, Pairs, Value
from tilewright.ir.scalar_code import Scalar, Scalars
from tilewright.ir.simplify import interval, simplify, within
from tilewright.ir.types import TensorType
from tilewright.passes.lower.adjoint.bodies import factors, live_body, substituted, used_params, wide
from tilewright.passes.lower.adjoint.preimages import Preimage, mentioned, placed, preimage
from tilewright.passes.lower.adjoint.tabulated import Run, bent_line
from tilewright.passes.lower.lowering import (
    added,
    dim_names,
    elementwise,
    mapped,
    multiply_add,
    reduced,
)
from tilewright.passes.lower.scalars import written

#: how many more points than the domain and the target have an inverse read may visit
_MOST_VISITED = 16


@dataclass(frozen=True)
class Input:
    """A tensor that a body reads; fill: its value outside, none where it is never read there."""

    value: Value
    read: tuple[Expr, ...]
    fill: float | int | bool | None = None

    @property
    def tensor(self) -> TensorType:
        """The tensor's type."""
        return self.value.tensor


@dataclass(frozen=True)
class Term:
    """For every element of an operand, the sum of `body` over the points of `domain` that read it.

    body: one parameter per input, one result of a dtype of cotangents.
    """

    domain: Mapping[str, int]
    inputs: tuple[Input, ...]
    body: Block

    def pruned(self) -> Term:
        """The term without what its body does not read."""
        body = live_body(self.body)
        used = used_params(body)
        inputs = tuple(x for x, u in zip(self.inputs, used, strict=True) if u)
        params = tuple(p for p, u in zip(body.params, used, strict=True) if u)
        return replace(self, inputs=inputs, body=replace(body, params=params))


def summed_to(b: Builder, term: Term, read: Sequence[Expr], target: TensorType) -> Value | None:
    """The sums for the elements of a tensor of type `target` that points read at `read`.

    None where no point reads an element. The dtype is that of cotangents of the tensor.
    """
    term = term.pruned()
    kind = TensorType(wide(target.dtype), target.shape)
    if 0 in term.domain.values() or not target.size:
        return None
    ranges = {k: (0, n - 1) for k, n in term.domain.items()}
    read = tuple(simplify(e, ranges) for e in read)
    fixed = [d for d, e in enumerate(read) if isinstance(e, int) and target.shape[d] > 1]
    if fixed:
        return _at_fixed_places(b, term, read, kind, fixed)
    bent = bent_line(read, term.domain)
    if bent is not None:
        line, runs = bent
        pieces = [_along(b, term, read, target, line, run) for run in runs]
        sums = [v for v in pieces if v is not None]
        return total(b, sums, kind.dtype) if sums else None
    p = preimage(read, term.domain, target.shape)
    most = _MOST_VISITED * max(prod(term.domain.values()), target.size)
    if p is None or p.visited > most:
        return _scattered(b, term, read, kind)
    if any(isinstance(e, int) for e in p.zeros):
        return None
    return _inverted(b, term, p, kind)


def _along(
    b: Builder, term: Term, read: Sequence[Expr], target: TensorType, line: str, run: Run
) -> Value | None:
    """The sums over a run of places along a dimension of the domain, in which its index never falls."""
    place: Expr = run.last - Sym(line) if run.falls else Sym(line) + run.first
    extent = run.last - run.first + 1
    domain = {k: extent if k == line else n for k, n in term.domain.items()}
    ranges = {k: (0, n - 1) for k, n in domain.items()}
    at = {line: place}
    inputs = tuple(replace(x, read=placed(x.read, at, ranges)) for x in term.inputs)
    part = Term(domain, inputs, substituted(term.body, at, ranges))
    return summed_to(b, part, placed(read, at, ranges), target)


def _at_fixed_places(
    b: Builder, term: Term, read: Sequence[Expr], kind: TensorType, fixed: Sequence[int]
) -> Value | None:
    """Only one place along some dimensions is read: sums without them, then a map that puts them there."""
    places = {d: e for d, e in enumerate(read) if d in fixed}
    if any(not 0 <= place < kind.shape[d] for d, place in places.items()):  # type: ignore[operator]
        return None
    shape = tuple(n for d, n in enumerate(kind.shape) if d not in fixed)
    sums = summed_to(
        b, term, [e for d, e in enumerate(read) if d not in fixed], TensorType(kind.dtype, shape)
    )
    if sums is None:
        return None
    names = dim_names(kind.rank)

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        here: Scalar | None = None
        for d, place in places.items():
            true = i.index(Sym(names[d])).equals(place)  # type: ignore[arg-type]
            here = true if here is None else here & true
        assert here is not None
        return here.select(i.cast(p[0], kind.dtype), 0)

    rest = tuple(Sym(n) for d, n in enumerate(names) if d not in fixed)
    return elementwise(b, [sums], kind, body, [rest])


def _inverted(b: Builder, term: Term, p: Preimage, kind: TensorType) -> Value:
    """A map, or a sum over the free dimensions, that reads everything at the points of the preimage."""
    block = live_body(substituted(term.body, p.at, p.ranges))
    product = factors(block)
    zeroed = _zeroed(term, p, product)
    tests = [k for k in p.leaving if k not in zeroed]
    reads = [placed(x.read, p.at, p.ranges) for x in term.inputs]
    fills = [_fill(x, r, p) for x, r in zip(term.inputs, reads, strict=True)]
    operands = [x.value for x in term.inputs]
    masked = bool(tests or p.zeros or p.within)

    def body(i: Scalars, params: Sequence[Scalar]) -> Scalar:
        value = inlined(i, block, params)
        if not masked:
            return value
        exists: Scalar | None = None
        for k in tests:
            exists = _both(exists, _inside(i, p.at[k], term.domain[k], p))
        for e, n in p.within:
            exists = _both(exists, _inside(i, e, n, p))
        for e in p.zeros:
            exists = _both(exists, i.index(e).equals(0))
        return value if exists is None else exists.select(value, 0)

    free = dict(p.free)
    if not free:
        return _copied(term, p, block, kind) or mapped(b, operands, kind, p.target, reads, body, fills)
    if not masked and product is not None and _is_matrix_product(reads, p, product):
        a, c = product
        name, operands = "tensor.contract", [operands[a], operands[c]]
        reads, fills = [reads[a], reads[c]], [fills[a], fills[c]]
        return reduced(b, name, operands, kind, p.target, free, reads, multiply_add, fill=fills)
    return reduced(
        b, "tensor.reduce", operands, kind, p.target, free, reads,
        lambda i, q: added(i, [body(i, q[:-1]), q[-1]]), fill=fills,
    )  # fmt: skip


def _copied(term: Term, p: Preimage, block: Block, kind: TensorType) -> Value | None:
    """The only input, where the result is that input as it is (or a wider copy of it)."""
    if len(term.inputs) != 1 or factors(block) != [0] or p.zeros or p.within or p.leaving:
        return None
    (x,) = term.inputs
    same = placed(x.read, p.at, p.ranges) == _identity(p, x.tensor.shape)
    return x.value if same and x.tensor.shape == kind.shape else None


def _identity(p: Preimage, shape: Sequence[int]) -> tuple[Expr, ...]:
    names = tuple(p.target)
    if len(names) != len(shape):
        return ()
    return tuple(0 if n == 1 else Sym(k) for k, n in zip(names, shape, strict=True))


def _both(a: Scalar | None, c: Scalar | None) -> Scalar | None:
    return c if a is None else a if c is None else a & c


def _inside(i: Scalars, e: Expr, n: int, p: Preimage) -> Scalar | None:
    """Whether an index lies from 0 to n - 1; none where it always does."""
    low, high = interval(e, p.ranges)
    above = i.index(e) >= 0 if low < 0 else None
    return _both(above, i.index(e) < n if high >= n else None)


def _zeroed(term: Term, p: Preimage, product: Sequence[int] | None) -> set[str]:
    """Dimensions that need no test: a factor of the product is 0 where they leave their extent."""
    if product is None or any(x.fill is not None and not isfinite(x.fill) for x in term.inputs):
        return set()
    out = set()
    for k in p.leaving:
        for place in product:
            x = term.inputs[place]
            whole = any(
                isinstance(e, Sym) and e.name == k and x.tensor.shape[d] == term.domain[k]
                for d, e in enumerate(x.read)
            )
            if whole and not x.fill:
                out.add(k)
    return out


def _fill(x: Input, read: Sequence[Expr], p: Preimage) -> float | int | bool | None:
    """The value outside at the new read; none where it is never outside."""
    if all(within(e, n, p.ranges) for e, n in zip(read, x.tensor.shape, strict=True)):
        return None
    if x.fill is not None:
        return x.fill
    return False if x.tensor.dtype == "bool" else 0 if x.tensor.dtype[0] in "iu" else 0.0


def _is_matrix_product(reads: Sequence[Sequence[Expr]], p: Preimage, product: Sequence[int]) -> bool:
    """Whether two factors each vary along a dimension of the result that the other one lacks."""
    if len(product) != 2:
        return False
    a, c = ({k for k in mentioned(reads[x]) if k in p.target} for x in product)
    return bool(a - c) and bool(c - a)


def inlined(i: Scalars, block: Block, values: Sequence[Scalar]) -> Scalar:
    """The only result of a body, written into another one."""
    env = dict(zip(block.params, (v.value for v in values), strict=True))
    for op in block.ops[:-1]:
        results = i.builder.emit(
            op.name, [env[v] for v in op.operands], op.attributes, types=[r.type for r in op.results]
        )
        env.update(zip(op.results, results, strict=True))
    (out,) = block.ops[-1].operands
    return Scalar(i.builder, env[out])


def _scattered(b: Builder, term: Term, read: Sequence[Expr], kind: TensorType) -> Value:
    """Sums over dimensions that the read does not use, then an addition at each place that is read."""
    used = mentioned(read)
    par = {k: n for k, n in term.domain.items() if k in used}
    red = {k: n for k, n in term.domain.items() if k not in used}
    t = TensorType(kind.dtype, tuple(par.values()))
    operands = [x.value for x in term.inputs]
    reads, fills = [x.read for x in term.inputs], [x.fill for x in term.inputs]
    if red:
        sums = reduced(
            b, "tensor.reduce", operands, t, par, red, reads,
            lambda i, q: added(i, [inlined(i, term.body, q[:-1]), q[-1]]), fill=fills,
        )  # fmt: skip
    else:
        sums = mapped(b, operands, t, par, reads, lambda i, q: inlined(i, term.body, q), fills)
    return scatter_sum(b, kind, sums, [], par, [tuple(map(Sym, par))], read)


def scatter_sum(
    b: Builder,
    kind: TensorType,
    updates: Value,
    indices: Sequence[Value],
    par: Mapping[str, int],
    reads: Sequence[Sequence[Expr]],
    at: Sequence[Expr],
) -> Value:
    """Zeros of type `kind` to which updates are added at places; those outside are dropped."""
    init = elementwise(b, [], kind, lambda i, p: i.const(0.0, kind.dtype))
    block = written(b, [kind.dtype, updates.tensor.dtype], lambda i, p: p[0] + i.cast(p[1], kind.dtype))
    attrs: dict[str, Attr] = {
        "par": Pairs.of(dict(par)), "reads": tuple(map(tuple, reads)), "at": tuple(at)
    }  # fmt: skip
    (out,) = b.emit("tensor.scatter", [init, updates, *indices], attrs, types=[kind], body=block)
    return out


def total(b: Builder, parts: Sequence[Value], dtype: str) -> Value:
    """The sum of tensors of one shape, in `dtype`; the only one as it is."""
    if len(parts) == 1:
        return parts[0]
    t = TensorType(dtype, parts[0].tensor.shape)

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        out = i.cast(p[0], dtype)
        for x in p[1:]:
            out = out + i.cast(x, dtype)
        return out

    return elementwise(b, parts, t, body)
