"""Canonical iteration domains inside kernels: unit dimensions go, dimensions always used together merge.

Buffers are dense, so a kernel may see its parameters in another shape than the caller: merging (y, x) of a
1x1 convolution turns `[n, c, y, x]` of `f32[1, 64, 56, 56]` into `[c, y_x]` of `f32[64, 3136]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir import Attr, Expr, Func, Level, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import Ranges, simplify
from tilewright.ir.tensor.join_ops import placed
from tilewright.ir.tensor.ops import REDUCING, STRUCTURED, dims, domain, ranges_of, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.kernels.decision import has_parameters
from tilewright.passes.rewriting.values import with_indices, with_types


@register_pass(Level.TENSOR)
def merge_dims(func: Func, ctx: PassContext) -> Func:
    """Drop unit dimensions and merge adjacent parallel dimensions inside each kernel.

    rewrite:  par = (n: 1, k: 64, y: 56, x: 56), reads = [[n, c, y, x], ...]
        -->   par = (k: 64, y_x: 3136), reads = [[c, y_x], ...]

    Ops of one kernel may have different domains, as a contraction and the maps that compute its operand: what
    becomes of a dimension is decided for all dimensions that reads tie together.
    """
    ops = func.body.ops[:-1]
    if func.name == "main" or has_parameters(func):  # parameters name dimensions
        return func
    if not ops or any(op.name not in STRUCTURED for op in ops) or not dims(ops[-1], "par"):
        return func
    while True:
        smaller = _drop_unit(func) or _merge_pair(func)
        if smaller is None:
            return func
        func = smaller


@dataclass(frozen=True)
class _Tied:
    """Positions at which ops and values hold dimensions that merge: `count` of them from there on."""

    count: int
    ops: dict[Op, int] = field(default_factory=dict)
    values: dict[Value, int] = field(default_factory=dict)

    def names(self, op: Op) -> tuple[str, ...]:
        """The names that the op has for them; none where it has none of them."""
        if op not in self.ops:
            return ()
        return tuple(dims(op, "par"))[self.ops[op] : self.ops[op] + self.count]


def _tied(ops: Sequence[Op], seed: Op, position: int, count: int, among: set[Value]) -> _Tied:
    """The dimensions at `position` of `seed`, of ops of the same domain, and those that reads tie to them.

    A read [.., y, x, ..] ties the dimensions of its op to those of the value, if that is one of `among`. Sums
    of the same domain are tied, too, whether or not a read does it: a kernel walks along its rows alike.
    """
    tied = _Tied(count)
    for op in ops:
        if dims(op, "par") == dims(seed, "par"):
            tied.ops[op] = position
    before = -1
    while before < len(tied.ops) + len(tied.values):
        before = len(tied.ops) + len(tied.values)
        for op in ops:
            par = list(dims(op, "par"))
            for v, at in zip(op.operands, reads(op), strict=True):
                if v not in among:
                    continue
                if op in tied.ops and v not in tied.values:
                    place = _find(at, tied.names(op))
                    if place is not None:
                        tied.values[v] = place
                elif v in tied.values and op not in tied.ops:
                    own = _find([Sym(d) for d in par], _plain(at[tied.values[v] :][:count]))
                    if own is not None:
                        tied.ops[op] = own
            for r in op.results:
                if op in tied.ops:
                    tied.values[r] = tied.ops[op]
                elif r in tied.values:
                    tied.ops[op] = tied.values[r]
            if op in tied.ops and op.name in REDUCING:
                for other in ops:
                    if other.name in REDUCING and dims(other, "par") == dims(op, "par"):
                        tied.ops.setdefault(other, tied.ops[op])
    return tied


def _plain(at: Sequence[Expr]) -> tuple[str, ...]:
    return tuple(e.name if isinstance(e, Sym) else "" for e in at)


def _find(at: Sequence[Expr], names: tuple[str, ...]) -> int | None:
    """First position at which `at` names these dimensions one after the other."""
    plain, count = _plain(at), len(names)
    return next((i for i in range(len(plain) - count + 1) if plain[i : i + count] == names), None)


def _drop_unit(func: Func) -> Func | None:
    """Substitute 0 for a dimension of extent 1, then drop dimensions of size 1 that are read at 0."""
    ops = func.body.ops[:-1]
    made = {r for op in ops for r in op.results}
    for op in reversed(ops):
        for i, n in enumerate(dims(op, "par").values()):
            tied = _tied(ops, op, i, 1, made) if n == 1 else None
            if tied is not None and _droppable(ops, tied):
                return _rebuild(func, tied)
    for op in ops:
        red = dims(op, "red")
        unit = next((d for d, n in red.items() if n == 1 and len(red) > 1), None)
        if unit is not None:
            return _rebuild(func, _Tied(1), reduced={op: unit})
    for p in func.params:
        if 1 not in p.tensor.shape or p.tensor.rank == 1:
            continue
        used = [at for op in ops for v, at in zip(op.operands, reads(op), strict=True) if v is p]
        for i, extent in enumerate(p.tensor.shape):
            if extent == 1 and used and all(at[i] == 0 for at in used):
                return _rebuild(func, _Tied(1, values={p: i}))
    return None


def _droppable(ops: Sequence[Op], tied: _Tied) -> bool:
    """Return whether all of them have one index, at which they are read, and are not all their ops have."""
    if any(v.tensor.rank == 1 or v.tensor.shape[i] != 1 for v, i in tied.values.items()):
        return False
    return all(
        simplify(at[tied.values[v]], ranges_of(op)) == 0
        for op in ops
        for v, at in zip(op.operands, reads(op), strict=True)
        if v in tied.values
    )


def _merge_pair(func: Func) -> Func | None:
    ops = func.body.ops[:-1]
    values = {v for op in ops for v in (*op.operands, *op.results)}
    for i in range(len(dims(ops[-1], "par")) - 1):
        tied = _tied(ops, ops[-1], i, 2, values)
        if all(_mergeable(op, tied) for op in ops):
            return _rebuild(func, tied)
    return None


def _mergeable(op: Op, tied: _Tied) -> bool:
    """Return whether the op uses the pair only as a whole, and what it reads holds the pair as one run."""
    if op not in tied.ops:
        return not any(v in tied.values for v in op.operands)
    first, second = tied.names(op)
    if f"{first}_{second}" in domain(op) or not all(_is_one_run(r.tensor, tied.ops[op]) for r in op.results):
        return False
    assert op.body is not None
    if any(o.name == "scalar.index" and {first, second} & set(symbols(_index_of(o))) for o in op.body.ops):
        return False
    extent = dims(op, "par")[second]
    return all(
        _pair_position(v.tensor, at, first, second, extent) == tied.values.get(v, -1)
        for v, at in zip(op.operands, reads(op), strict=True)
    )


def _pair_position(t: TensorType, at: tuple[Expr, ...], first: str, second: str, extent: int) -> int | None:
    """Dimension at which `at` reads [.., first, second, ..]; -1 when it mentions neither; None otherwise."""
    mentions = [i for i, e in enumerate(at) if {first, second} & set(symbols(e))]
    if not mentions:
        return -1
    if len(mentions) == 2 and mentions[1] == mentions[0] + 1:
        i = mentions[0]
        same = at[i] == Sym(first) and at[i + 1] == Sym(second) and t.shape[i + 1] == extent
        if same and _is_one_run(t, i):
            return i
    return None


def _rebuild(func: Func, tied: _Tied, reduced: Mapping[Op, str] | None = None) -> Func:
    """Apply it to types, reads and domains of the whole kernel; dimensions of `reduced` become 0."""
    fresh = {v: Value(_type(v.tensor, i, tied.count == 2), v.hint) for v, i in tied.values.items()}
    ops = []
    for op in func.body.ops:
        if op.name in STRUCTURED:
            gone = (reduced[op],) if reduced and op in reduced else tied.names(op)
            op = _edit_op(op, tied, gone)
        ops.append(op)
    return with_types(func, ops, fresh)


def _type(t: TensorType, i: int, merge: bool) -> TensorType:
    shape, steps = t.shape, t.strides
    left = (*steps[:i], *steps[i + 1 :])
    if merge:
        return placed(_dense(t, (*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :])), left, t.start)
    return placed(_dense(t, (*shape[:i], *shape[i + 1 :])), left, t.start)


def _dense(t: TensorType, shape: tuple[int, ...]) -> TensorType:
    return TensorType(t.dtype, shape, t.space)


def _is_one_run(t: TensorType, i: int) -> bool:
    """Return whether dimensions i and i + 1 are one dimension in memory too."""
    return t.strides[i] == t.strides[i + 1] * t.shape[i + 1]


def _edit_op(op: Op, tied: _Tied, gone: tuple[str, ...]) -> Op:
    """The op without the dimension `gone`, or with the pair `gone` as one; reads of tied values follow."""
    if not gone and not any(v in tied.values for v in op.operands):
        return op
    merged = "_".join(gone) if len(gone) == 2 else ""
    env: dict[str, Expr] = dict.fromkeys(gone, 0) if len(gone) == 1 else {}
    ranges = ranges_of(op)
    indices = []
    for v, at in zip(op.operands, reads(op), strict=True):
        new = [_without(e, env, ranges) for e in at] if env else list(at)
        if v in tied.values:
            new[tied.values[v] : tied.values[v] + tied.count] = [Sym(merged)] if merged else []
        indices.append(tuple(new))
    par = dims(op, "par")
    items: list[tuple[str, int]] = []
    for d, n in par.items():
        if d not in gone:
            items.append((d, n))
        elif merged and d == gone[1]:
            items.append((merged, n * par[gone[0]]))
    changed: dict[str, Attr] = {"par": Pairs(tuple(items)), "reads": tuple(indices)}
    if op.get("red") is not None:
        changed["red"] = Pairs(tuple((d, n) for d, n in dims(op, "red").items() if d not in gone))
    op = op.with_attrs(**changed)
    return with_indices(op, lambda e: _without(e, env, ranges)) if env else op


def _without(e: Expr, env: Mapping[str, Expr], ranges: Ranges) -> Expr:
    """`e` with symbols replaced, simplified where that changes it: other dimensions keep their names."""
    changed = substitute(e, env)
    return e if changed is e else simplify(changed, ranges)


def _index_of(op: Op) -> Expr:
    """The expression of a scalar.index."""
    at: Any = op["at"]
    return at
