"""Pass split-sums: sums of few results over many samples are cut into parts for more blocks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import (
    Block,
    Builder,
    Expr,
    Func,
    Level,
    Op,
    Sym,
    Value,
)
from tilewright.ir.expr import substitute
from tilewright.ir.hardware_facts import LINE_BYTES, SECTOR_BYTES
from tilewright.ir.tensor.ops import dims, domain, reads
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.framework.context import Estimator
from tilewright.passes.kernels.matrix.reduction_parts import split_along
from tilewright.passes.kernels.rows.moments import Moments, joined_moments, moments_of, shifted_sums
from tilewright.passes.kernels.rows.same_points import Walk, sums_of_same_points
from tilewright.passes.kernels.rows.whole_sums import adds_last
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.names import unused

#: dtypes of sums, and so of parts: nothing is rounded to 16 bits before all parts are added
EXACT = frozenset({"f32", "f64"})
#: elements from which a sum is long: over the samples and the pixels of images, and over other dimensions
LONG_OVER_SAMPLES, LONG = 1 << 11, 1 << 14
#: numbers of parts to compare, or the next smaller ones that divide a dimension
PARTS = (4, 16, 64)
#: cut sums must be estimated to take at most this share of the whole ones
GAIN = 0.8

#: a reduced dimension, and into how many parts it is cut
Cut = tuple[str, int]


@register_pass(Level.TENSOR)
def split_sums(func: Func, ctx: PassContext) -> Func:
    """Compute parts of long sums side by side and add them.

    rewrite:  %y = tensor.reduce(%x, par = (c), red = (n: 64, p), reads = [[n, p, c]]) {add}
        -->   %s = tensor.reduce(%x, par = (part: 16, c), red = (n: 4, p),
                                 reads = [[part * 4 + n, p, c]]) {add};
              %y = tensor.reduce(%s, par = (c), red = (part: 16), reads = [[part, c]]) {add}

    Where the cost model says that it takes less time, on GPUs: moments of batches, gradients by biases and
    losses have few results, and so few blocks, each of which reads for long.

    Where the squared distances from a mean are added up, one walk takes both moments of each part, about its
    own first element k (Chan, Golub and LeVeque 1983):

              %m = {sum of %x / 64 p}; %v = tensor.reduce(%x, %m, ...) {(x - m) ** 2}
        -->   %s, %q = tensor.reduce(%x, %x, par = (part: 16, c), ...,
                                     reads = [[part * 4 + n, p, c], [part * 4, 0, c]]) {x - k, (x - k) ** 2};
              %m = {mean over the parts of k + s / l}, %v = {sum of q - s ** 2 / l + l (k + s / l - m) ** 2}

    with l elements in a part. None of these is more than sqrt(l) of their standard deviations away from their
    mean, so that q is at most 1 + l times what q - s ** 2 / l leaves, whatever the data.

    Sums over the same points of the same arrays can share a walk only in equal parts: they are cut alike
    where the model says that all of them together take less time so.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    kernels = func.name != "main" or any(op.name == "tensor.call" for op in func.body.ops)
    if isinstance(hardware, CpuHardware) or kernels:
        return func
    b = Builder()
    env: dict[Value, Value] = {}
    joined = {m.total: (m, cut) for m, cut in _joined_moments(func, hardware, ctx.estimator)}
    cuts = _cuts_of_others(func, joined, hardware, ctx.estimator)
    for op in func.body.ops:
        if op in joined:
            with b.at(op.loc):
                moments, cut_there = joined[op]
                value = env.get(moments.value, moments.value)
                both = _moments_of_parts(b, moments, value, cut_there)
                env[moments.mean], env[moments.squares.result] = both
        if op.results and all(r in env for r in op.results):
            continue
        cut = cuts.get(op)
        fresh = op.with_operands(tuple(env.get(v, v) for v in op.operands))
        if cut is None:
            b.append(fresh)
        else:
            with b.at(op.loc):
                env[op.result] = _split(fresh, b, cut)
    if not env:
        return func
    body = func.body.with_ops(tuple(b.ops))
    return func.with_body(body.with_ops(live_ops(body)) if joined else body)


def _joined_moments(func: Func, hardware: Hardware, estimator: Estimator) -> Iterator[tuple[Moments, Cut]]:
    """Moments that one walk shall take, each sum once, and how they are cut."""
    seen: set[Op] = set()
    for moments in moments_of(func):
        cut = _best_cut(moments.squares, hardware, estimator) if _is_long_sum(moments.squares) else None
        if cut is not None and moments.total not in seen:
            seen.add(moments.total)
            yield moments, cut


def _cuts_of_others(
    func: Func, joined: Mapping[Op, tuple[Moments, Cut]], hardware: Hardware, estimator: Estimator
) -> dict[Op, Cut | None]:
    """How long sums are cut that are no joined moments: each at its best, or as others of its points."""
    taken = {op for total, (moments, _) in joined.items() for op in (total, moments.squares)}
    sums = [op for op in func.body.ops if op not in taken and _is_long_sum(op)]
    cuts = {op: _best_cut(op, hardware, estimator) for op in sums}
    for walks in sums_of_same_points(func, sums):
        own: list[Cut | None] = [cuts[walk.op] for walk in walks]
        places = [_placed(walk.op, cut) for walk, cut in zip(walks, own, strict=True)]
        options = [own]
        options += [[_named(w.op, place) for w in walks] for place in dict.fromkeys(places) if place]
        if len(set(places)) > 1:
            best = min(options, key=lambda option: _together_s(walks, option, hardware, estimator))
            cuts |= {walk.op: cut for walk, cut in zip(walks, best, strict=True)}
    return cuts


def _placed(op: Op, cut: Cut | None) -> tuple[int, int] | None:
    """A cut with the number of its reduced dimension in place of the name."""
    return None if cut is None else (list(dims(op, "red")).index(cut[0]), cut[1])


def _named(op: Op, place: tuple[int, int]) -> Cut:
    return list(dims(op, "red"))[place[0]], place[1]


def _together_s(
    walks: Sequence[Walk], cuts: Sequence[Cut | None], hardware: Hardware, estimator: Estimator
) -> float:
    """Seconds of sums that are cut so, with the maps between these and the arrays they share."""
    b = Builder()
    results = []
    for op in dict.fromkeys(op for walk in walks for op in walk.maps):
        b.append(op)
    for walk, cut in zip(walks, cuts, strict=True):
        op = replace(walk.op, results=(Value(walk.op.result.type, "sum"),))
        if cut is None:
            b.append(op)
        results.append(op.result if cut is None else _split(op, b, cut))
    b.do("tensor.return", *results)
    made = {r for op in b.ops for r in op.results}
    params = tuple(v for v in dict.fromkeys(v for op in b.ops for v in op.operands) if v not in made)
    types = tuple(v.type for v in results)
    text = kernel_text(Func(Level.TENSOR, "sums", Block(params, tuple(b.ops)), types))
    return estimator.remembered(
        ("sums of same points", text, hardware), lambda: estimator.program_s(params, b.ops, hardware)
    )


def _moments_of_parts(b: Builder, moments: Moments, value: Value, cut: Cut) -> tuple[Value, Value]:
    """Append the mean of a value, and the sum of squared distances from it, from the moments of its parts."""
    op, (dim, parts) = moments.squares, cut
    par, red = dims(op, "par"), dims(op, "red")
    part = unused("part", domain(op))
    each = red[dim] // parts
    first = _at(moments.at, dict.fromkeys(red, 0) | {dim: Sym(part) * each})
    every = _at(moments.at, {dim: Sym(part) * each + Sym(dim)})
    last = dim == _innermost(op)
    over, within = {**par, part: parts} if last else {part: parts, **par}, {**red, dim: each}
    shifted = shifted_sums(b, value, over, within, every, first, op.result.tensor.dtype)
    of_part = tuple(map(Sym, over))
    length = prod(red.values()) // parts
    return joined_moments(b, value, first, shifted, of_part, par, (part, parts), length)


def _split(op: Op, b: Builder, cut: Cut) -> Value:
    """Append the sum by its parts, whose results lie as what they add up does."""
    return split_along(op, b, *cut, last=cut[0] == _innermost(op))


def _at(index: tuple[Expr, ...], env: dict[str, Expr]) -> tuple[Expr, ...]:
    return tuple(substitute(e, env) for e in index)


def _is_long_sum(op: Op) -> bool:
    """Return whether an op adds many values to each of its results, from 0 on."""
    if op.name != "tensor.reduce" or len(op.results) != 1 or op.body is None or not op.operands:
        return False
    if op.result.tensor.dtype not in EXACT or op["init"] != (0.0,):
        return False
    extents = [n for n in dims(op, "red").values() if n > 1]
    return prod(extents) >= (LONG_OVER_SAMPLES if len(extents) > 2 else LONG) and adds_last(op.body)


def _cuts(op: Op) -> Iterator[Cut]:
    """Cuts of the two outer dimensions that leave parts smaller than what is read.

    Also the last one in as many parts as it has elements, where results are fewer than a sector holds, and
    the one along which elements are neighbours where it is shorter than a line of which others read the rest,
    as groups of channels that lie last: side by side, sums of all elements are read in vectors and lines.
    """
    red, part_bytes = dims(op, "red"), op.result.tensor.nbytes
    most = max(v.tensor.nbytes for v in op.operands) // max(1, 2 * part_bytes)
    inner = _innermost(op)
    long = [d for d, n in red.items() if n > 1]
    for d in [d for d in long if d != inner][:2]:
        divisors = [p for p in range(2, min(red[d], max(PARTS), most) + 1) if red[d] % p == 0]
        best = (max((p for p in divisors if p <= count), default=1) for count in PARTS)
        yield from ((d, p) for p in dict.fromkeys(best) if p > 1)
    last = long[-1]
    side_by_side = last if part_bytes < SECTOR_BYTES else inner if _shares_lines(op, inner) else ""
    if side_by_side and red[side_by_side] <= most:
        yield side_by_side, red[side_by_side]


def _largest(op: Op) -> tuple[Value, tuple[Expr, ...]]:
    """The largest operand of a sum, and where it is read."""
    return max(zip(op.operands, reads(op), strict=True), key=lambda read: read[0].tensor.nbytes)


def _innermost(op: Op) -> str:
    """The reduced dimension along which elements of the largest operand are neighbours; '' without one."""
    value, at = _largest(op)
    last = next((e for e, n in zip(at[::-1], value.tensor.shape[::-1], strict=True) if n > 1), 0)
    return last.name if isinstance(last, Sym) and last.name in dims(op, "red") else ""


def _shares_lines(op: Op, inner: str) -> bool:
    """Return whether elements along the innermost dimension are less than a line, and others' lie behind."""
    value, at = _largest(op)
    run = dims(op, "red").get(inner, 0) * itemsize(value.tensor.dtype)
    if not run:
        return False
    outer = [e for e, n in zip(at, value.tensor.shape, strict=True) if n > 1][:-1]
    return (
        run < LINE_BYTES and bool(outer) and isinstance(outer[-1], Sym) and outer[-1].name in dims(op, "par")
    )


def _best_cut(op: Op, hardware: Hardware, estimator: Estimator) -> Cut | None:
    """The cut that takes the least time by the model; None where none gains enough."""
    assert op.body is not None
    names = tuple(o.name for o in op.body.ops)
    key = tuple(v.type for v in op.operands), op.attrs, op.result.type, names

    def seconds(cut: Cut | None) -> float:
        def answer() -> float:
            alone = op.with_operands(tuple(Value(v.type, "x") for v in op.operands))
            b = Builder()
            if cut is None:
                b.append(alone)
            b.do("tensor.return", alone.result if cut is None else _split(alone, b, cut))
            return estimator.program_s(alone.operands, b.ops, hardware)

        return estimator.remembered(("split sum", key, cut, hardware), answer)

    best, least = None, GAIN * seconds(None)
    for cut in _cuts(op):
        if seconds(cut) < least:
            best, least = cut, seconds(cut)
    return best
