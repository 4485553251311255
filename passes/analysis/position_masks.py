"""Masks that indices decide: constants of that kind as maps of indices, and where terms hide an element."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.ir import Builder, Sym, TensorType, Value
from tilewright.ir.builder import scalar_body, structured
from tilewright.ir.expr import evaluate, symbols
from tilewright.ir.opdef import op_def
from tilewright.ir.types import numpy_dtype
from tilewright.passes.analysis.terms import Apply, Position, Term

#: scores at most, or with this added, of which the exponential vanishes beside those of other keys: what
#: the kernels of this compiler and those of libraries take as a mask
HIDDEN = -1e4
#: pairs of queries and keys that are looked at
MOST_PAIRS = 1 << 24

#: numbers up to the diagonal of a square matrix, and after it
MaskNumbers = tuple[float | bool, float | bool]


def mask_numbers(data: np.ndarray) -> MaskNumbers | None:
    """The numbers that a mask [.., n, n] holds up to the diagonal and after it; None for other masks.

    An array of any shape that holds one number everywhere has that number twice.
    """
    flat = data.reshape(-1)
    if flat.size == 0:
        return None
    kind = bool if data.dtype == np.bool_ else float
    if (flat == flat[0]).all():
        return kind(flat[0]), kind(flat[0])
    if not is_square(data.shape):
        return None
    square = data.reshape(data.shape[-2:])
    seen = np.tri(len(square), dtype=bool)
    first, last = square[seen], square[~seen]
    if not ((first == first[0]).all() and (last == last[0]).all()):
        return None
    return kind(first[0]), kind(last[0])


def is_square(shape: tuple[int, ...]) -> bool:
    """Return whether these are the extents of one square matrix."""
    return len(shape) > 1 and shape[-1] == shape[-2] and int(np.prod(shape)) == shape[-1] ** 2


def computed_mask(b: Builder, t: TensorType, numbers: MaskNumbers) -> Value:
    """A map of indices alone that gives the elements of a mask with these numbers.

    It is  %c = tensor.map() {select(i >= j, numbers[0], numbers[1])}
    """
    seen, hidden = numbers
    inner, _ = scalar_body([])
    shown = inner.const(seen, t.dtype)
    if seen != hidden:
        distance = Sym(f"i{t.rank - 2}") - Sym(f"i{t.rank - 1}")
        at = inner.index(distance, "i32")
        before = inner.value("scalar.ge", at, inner.const(0, "i32"))
        shown = inner.value("scalar.select", before, shown, inner.const(hidden, t.dtype))
    inner.do("scalar.yield", shown)
    par = {f"i{i}": n for i, n in enumerate(t.shape)}
    plain = TensorType(t.dtype, t.shape)
    (value,) = structured(b, "tensor.map", [], par=par, reads=(), body=inner.block([]), types=[plain])
    return value


@dataclass(frozen=True)
class BandMask:
    """A mask [.., rows, columns] of one number where low <= column - row <= high, and another elsewhere.

    low, high: None where no element lies beyond that side.
    """

    inside: float | bool
    outside: float | bool
    low: int | None
    high: int | None


def band_mask(data: np.ndarray) -> BandMask | None:
    """The band that a mask of two numbers is; None for other masks. Inside is where the first row begins."""
    if data.ndim < 2 or data.size != data.shape[-2] * data.shape[-1] or data.size == 0:
        return None
    matrix = data.reshape(data.shape[-2:])
    kind = bool if data.dtype == np.bool_ else float
    inside = matrix[0, 0]
    seen = matrix == inside
    others = matrix[~seen]
    if others.size == 0 or not (others == others[0]).all():
        return None
    count, length = data.shape[-2:]
    distance = np.arange(length)[None, :] - np.arange(count)[:, None]
    low, high = int(distance[seen].min()), int(distance[seen].max())
    if not (((distance >= low) & (distance <= high)) == seen).all():
        return None
    lowest, highest = 1 - count, length - 1
    return BandMask(
        kind(inside), kind(others[0]), None if low == lowest else low, None if high == highest else high
    )


def computed_band(b: Builder, t: TensorType, mask: BandMask) -> Value:
    """A map of indices alone that gives the elements of a mask that is a band.

    It is  %c = tensor.map() {select(i - j >= -high and i - j <= -low, inside, outside)}
    """
    inner, _ = scalar_body([])
    at = inner.index(Sym(f"i{t.rank - 2}") - Sym(f"i{t.rank - 1}"), "i32")
    seen: Value | None = None
    for name, edge in (("scalar.ge", mask.high), ("scalar.le", mask.low)):
        if edge is not None:
            side = inner.value(name, at, inner.const(-edge, "i32"))
            seen = side if seen is None else inner.value("scalar.and", seen, side)
    assert seen is not None
    chosen = (inner.const(n, t.dtype) for n in (mask.inside, mask.outside))
    inner.do("scalar.yield", inner.value("scalar.select", seen, *chosen))
    par = {f"i{i}": n for i, n in enumerate(t.shape)}
    plain = TensorType(t.dtype, t.shape)
    (value,) = structured(b, "tensor.map", [], par=par, reads=(), body=inner.block([]), types=[plain])
    return value


def positional(
    term: Term, env: Mapping[str, np.ndarray | int], known: Mapping[Term, np.ndarray] | None = None
) -> np.ndarray | None:
    """The values of a term that indices alone decide, at these ones; None for other terms.

    known: values of terms inside it that indices need not decide.
    """
    if known is not None and term in known:
        return known[term]
    if isinstance(term, Position):
        if not set(symbols(term.at)) <= set(env):
            return None
        return np.asarray(evaluate(term.at, env)).astype(numpy_dtype(term.type.dtype))
    if not isinstance(term, Apply):
        return None
    run, args = op_def(term.name).evaluate, [positional(a, env, known) for a in term.args]
    values = [a for a in args if a is not None]
    if run is None or len(values) < len(args):
        return None
    return np.asarray(run(values, dict(term.attrs))[0])


_NOWHERE = np.zeros((), dtype=np.bool_)


def hidden_at(term: Term, env: Mapping[str, np.ndarray | int]) -> np.ndarray:
    """The places where a score is certainly hidden."""
    known = positional(term, env)
    if known is not None:
        return np.asarray(known.astype(np.float64) <= HIDDEN) if known.dtype != np.bool_ else _NOWHERE
    if isinstance(term, Apply):
        if term.name == "scalar.cast":
            return hidden_at(term.args[0], env)
        if term.name == "scalar.sub":
            return hidden_at(term.args[0], env)
        if term.name == "scalar.add":
            return hidden_at(term.args[0], env) | hidden_at(term.args[1], env)
        if term.name == "scalar.select":
            seen = positional(term.args[0], env)
            one, other = (hidden_at(a, env) for a in term.args[1:])
            return one & other if seen is None else np.where(seen, one, other)
    return _NOWHERE


def zero_at(term: Term, env: Mapping[str, np.ndarray | int]) -> np.ndarray:
    """The places where a weight is certainly zero, whatever finite numbers parameters hold."""
    known = positional(term, env)
    if known is not None:
        return np.asarray(known == 0)
    if isinstance(term, Apply):
        parts = term.args
        if term.name in ("scalar.cast", "scalar.div", "scalar.neg"):
            return zero_at(parts[0], env)
        if term.name == "scalar.exp":
            return hidden_at(parts[0], env)
        if term.name == "scalar.mul":
            return zero_at(parts[0], env) | zero_at(parts[1], env)
        if term.name == "scalar.select":
            chosen = positional(parts[0], env)
            one, other = (zero_at(a, env) for a in parts[1:])
            return one & other if chosen is None else np.where(chosen, one, other)
    return _NOWHERE
