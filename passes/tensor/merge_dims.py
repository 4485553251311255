"""Canonical iteration domains inside kernels: unit dimensions go, dimensions always used together merge.

Buffers are dense, so a kernel may see its parameters in another shape than the caller: merging (y, x) of a
1x1 convolution turns `[n, c, y, x]` of `f32[1, 64, 56, 56]` into `[c, y_x]` of `f32[64, 3136]`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir import Expr, Func, Level, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.join_ops import placed
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor_ops import STRUCTURED, dims, domain, reads
from tilewright.passes import PassContext, register_pass


@register_pass(Level.TENSOR)
def merge_dims(func: Func, ctx: PassContext) -> Func:
    """Drop unit dimensions and merge adjacent parallel dimensions inside each kernel.

    rewrite:  par = (n: 1, k: 64, y: 56, x: 56), reads = [[n, c, y, x], ...]
        -->   par = (k: 64, y_x: 3136), reads = [[c, y_x], ...]

    Only kernels whose ops share one parallel domain are changed (contractions, windows, maps).
    """
    if not _uniform(func):
        return func
    while True:
        smaller = _drop_unit(func) or _merge_pair(func)
        if smaller is None:
            return func
        func = smaller


def _uniform(func: Func) -> bool:
    body = [op for op in func.body.ops if op.name != "tensor.return"]
    if not body or any(op.name not in STRUCTURED for op in body) or func.name == "main":
        return False
    first = dims(body[-1], "par")
    return bool(first) and all(dims(op, "par") == first for op in body)


@dataclass(frozen=True)
class _Position:
    """Dimension `index` of a tensor disappears into its successor (merge) or altogether (extent 1)."""

    index: int
    merge: bool


def _drop_unit(func: Func) -> Func | None:
    """Substitute 0 for a dimension of extent 1, then drop dimensions of size 1 that are read at 0."""
    ops = [op for op in func.body.ops if op.name in STRUCTURED]
    par = dims(ops[-1], "par")
    unit = next((d for d, n in par.items() if n == 1 and _always_read_at_it(ops, d)), None)
    if unit is not None and len(par) > 1:
        at = list(par).index(unit)
        every = {r: _Position(at, False) for op in ops for r in op.results}
        return _rebuild(func, every, env={unit: 0}, drop=(unit,))
    red = {d for op in ops for d, n in dims(op, "red").items() if n == 1 and len(dims(op, "red")) > 1}
    if red:
        first = min(red)
        return _rebuild(func, {}, env={first: 0}, drop=(first,))
    edits: dict[Value, _Position] = {}
    for p in func.params:
        for i, extent in enumerate(p.tensor.shape):
            used = [at for op in ops for v, at in zip(op.operands, reads(op), strict=True) if v is p]
            if extent == 1 and p.tensor.rank > 1 and used and all(at[i] == 0 for at in used):
                edits[p] = _Position(i, False)
                break
    return _rebuild(func, edits, env={}, drop=()) if edits else None


def _always_read_at_it(ops: list[Op], unit: str) -> bool:
    """Whether the ops read each other's results at the only index of a dimension, never outside of it."""
    made = {r for op in ops for r in op.results}
    at = list(dims(ops[-1], "par")).index(unit)
    indices = [index[at] for op in ops for v, index in zip(op.operands, reads(op), strict=True) if v in made]
    return all(e in (0, Sym(unit)) for e in indices)


def _merge_pair(func: Func) -> Func | None:
    ops = [op for op in func.body.ops if op.name in STRUCTURED]
    par = dims(ops[-1], "par")
    names = list(par)
    for i in range(len(names) - 1):
        first, second = names[i], names[i + 1]
        edits = _mergeable(func, ops, first, second, par[second])
        if edits is None or not all(_is_one_run(r.tensor, i) for op in ops for r in op.results):
            continue
        edits.update({r: _Position(i, True) for op in ops for r in op.results})
        return _rebuild(func, edits, env={}, drop=(first, second))
    return None


def _mergeable(
    func: Func, ops: list[Op], first: str, second: str, extent: int
) -> dict[Value, _Position] | None:
    """Where each parameter holds the pair, if every read has both side by side (or neither)."""
    edits: dict[Value, _Position] = {}
    inside = {r for op in ops for r in op.results}
    own = list(dims(ops[-1], "par")).index(first)
    for op in ops:
        assert op.body is not None
        if any(o.name == "scalar.index" and {first, second} & set(symbols(o["at"])) for o in op.body.ops):  # type: ignore[arg-type]
            return None
        for v, at in zip(op.operands, reads(op), strict=True):
            place = _pair_position(v.tensor, at, first, second, extent)
            if place is None:
                return None
            if v in inside:  # its producer merges the pair where its own dimensions are
                if place != own:
                    return None
                continue
            if place >= 0:
                if edits.get(v, _Position(place, True)).index != place:
                    return None
                edits[v] = _Position(place, True)
    for v in edits:  # the same parameter read elsewhere without the pair would no longer fit
        uses = [at for op in ops for x, at in zip(op.operands, reads(op), strict=True) if x is v]
        if any(_pair_position(v.tensor, at, first, second, extent) != edits[v].index for at in uses):
            return None
    return edits


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


def _rebuild(
    func: Func, edits: dict[Value, _Position], *, env: dict[str, Expr], drop: tuple[str, ...]
) -> Func:
    """Apply the edits to types, reads and domains of the whole kernel."""
    merged = "_".join(drop) if len(drop) == 2 else ""
    fresh: dict[Value, Value] = {}
    for v, place in edits.items():
        fresh[v] = Value(_type(v.tensor, place), v.hint)
    ops = []
    for op in func.body.ops:
        if op.name in STRUCTURED:
            op = _edit_op(op, edits, env, drop, merged)
        ops.append(
            replace(
                op,
                operands=tuple(fresh.get(v, v) for v in op.operands),
                results=tuple(fresh.get(r, r) for r in op.results),
            )
        )
    params = tuple(fresh.get(p, p) for p in func.params)
    types = tuple(v.type for v in ops[-1].operands)
    return replace(func, body=replace(func.body, params=params, ops=tuple(ops)), result_types=types)


def _type(t: TensorType, place: _Position) -> TensorType:
    i, shape, steps = place.index, t.shape, t.strides
    left = (*steps[:i], *steps[i + 1 :])
    if place.merge:
        return placed(_dense(t, (*shape[:i], shape[i] * shape[i + 1], *shape[i + 2 :])), left, t.start)
    return placed(_dense(t, (*shape[:i], *shape[i + 1 :])), left, t.start)


def _dense(t: TensorType, shape: tuple[int, ...]) -> TensorType:
    return TensorType(t.dtype, shape, t.space)


def _is_one_run(t: TensorType, i: int) -> bool:
    """Whether dimensions i and i + 1 are one dimension in memory too."""
    return t.strides[i] == t.strides[i + 1] * t.shape[i + 1]


def _edit_op(
    op: Op, edits: dict[Value, _Position], env: dict[str, Expr], drop: tuple[str, ...], merged: str
) -> Op:
    ranges = {k: (0, n - 1) for k, n in domain(op).items()}
    indices = []
    for v, at in zip(op.operands, reads(op), strict=True):
        new: list[Expr] = [simplify(substitute(e, env), ranges) for e in at]
        place = edits.get(v)
        if place is not None and place.merge:
            new[place.index : place.index + 2] = [Sym(merged)]
        elif place is not None:
            del new[place.index]
        indices.append(tuple(new))
    par = dims(op, "par")
    items: list[tuple[str, int]] = []
    for d, n in par.items():
        if d not in drop:
            items.append((d, n))
        elif merged and d == drop[1]:
            items.append((merged, n * par[drop[0]]))
    assert op.body is not None
    body = op.body.with_ops(
        tuple(
            o.with_attrs(at=simplify(substitute(_index_of(o), env), ranges))
            if o.name == "scalar.index" and env
            else o
            for o in op.body.ops
        )
    )
    op = op.with_attrs(par=Pairs(tuple(items)), reads=tuple(indices))
    if "red" in dict(op.attrs):
        op = op.with_attrs(red=Pairs(tuple((d, n) for d, n in dims(op, "red").items() if d not in drop)))
    return replace(op, body=body)


def _index_of(op: Op) -> Expr:
    """The expression of a scalar.index."""
    at: Any = op["at"]
    return at
