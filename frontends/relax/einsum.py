"""Einstein summation as products of matrices: each operand is multiplied into the product of those before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.frontends.emitter import Emitter
from tilewright.frontends.relax.static import reshaped, transposed
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Value

#: names of the dimensions that `...` stands for, counted from the last one
_ELLIPSIS = "ZYXWVUTSRQ"


def contracted(emit: Emitter, operands: Sequence[Value], subscripts: str) -> Value:
    """The einsum of `operands`. Raises InputError where the subscripts do not fit them."""
    terms, result = _parse(subscripts, operands)
    extents: dict[str, int] = {}
    held: list[tuple[Value, str]] = []
    for operand, term in zip(operands, terms, strict=True):
        x, names = _diagonal(emit, operand, term)
        held.append((x, names))
        for name, extent in zip(names, x.tensor.shape, strict=True):
            if extents.setdefault(name, extent) not in (extent, 1) and extent != 1:
                raise InputError(
                    f"expected one extent for '{name}' of '{subscripts}', got {extents[name]} and {extent}"
                )
            extents[name] = max(extents[name], extent)
    value, names = held[0]
    for i, (other, other_names) in enumerate(held[1:], 2):
        later = set(result).union(*(n for _, n in held[i:]))
        value, names = _multiply(emit, value, names, other, other_names, later)
    value, names = _summed(emit, value, names, set(result))
    value = transposed(emit, value, [names.index(n) for n in result])
    shape = tuple(extents[n] for n in result)
    return value if value.tensor.shape == shape else emit.value("broadcast_to", value, shape=shape)


def _parse(subscripts: str, operands: Sequence[Value]) -> tuple[list[str], str]:
    """Terms and result with `...` written out."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    good = len(terms) == len(operands) and all(re.fullmatch(r"[a-zA-Z]*(\.{3})?[a-zA-Z]*", t) for t in terms)
    if not good or not operands:
        raise InputError(f"expected subscripts for {len(operands)} operands, got '{subscripts}'")
    spare = [c for c in _ELLIPSIS if c not in subscripts]
    full, widest = [], 0
    for term, operand in zip(terms, operands, strict=True):
        count = operand.tensor.rank - len(term.replace("...", ""))
        if count < 0 or (count and "..." not in term) or count > len(spare):
            raise InputError(f"expected '{term}' to name the dimensions of {operand.type}")
        widest = max(widest, count)
        full.append(term.replace("...", "".join(reversed(spare[:count]))))
    batch = "".join(reversed(spare[:widest]))
    if not arrow:
        letters = sorted(c for c in set("".join(full)) - set(batch) if "".join(full).count(c) == 1)
        return full, batch + "".join(letters)
    result = right.replace("...", batch)
    if len(set(result)) != len(result) or not set(result) <= set("".join(full)):
        raise InputError(f"expected a result of distinct names of the operands, got '{subscripts}'")
    return full, result


def _diagonal(emit: Emitter, x: Value, term: str) -> tuple[Value, str]:
    """`x` with dimensions of one name made one: elements off the diagonal are left out."""
    names = list(term)
    while len(set(names)) < len(names):
        name = next(n for n in names if names.count(n) > 1)
        first, second = (i for i, n in enumerate(names) if n == name)
        order = [d for d in range(len(names)) if d not in (first, second)]
        moved = transposed(emit, x, (first, second, *order))
        ramp = emit.constant(np.arange(x.tensor.shape[first]))
        x = emit.value("adv_index", moved, ramp, ramp)
        names = [name, *(names[d] for d in order)]
    return x, "".join(names)


def _summed(emit: Emitter, x: Value, names: str, kept: set[str]) -> tuple[Value, str]:
    """`x` summed over names nobody asks for any more."""
    axes = tuple(i for i, n in enumerate(names) if n not in kept)
    if not axes:
        return x, names
    return emit.value("sum", x, axis=axes, keepdims=False), "".join(n for n in names if n in kept)


def _multiply(emit: Emitter, a: Value, an: str, b: Value, bn: str, later: set[str]) -> tuple[Value, str]:
    """The product over shared names: those needed later are batches, the others are contracted."""
    a, an = _summed(emit, a, an, later | set(bn))
    b, bn = _summed(emit, b, bn, later | set(an))
    sizes = {n: max(x.tensor.shape[m.index(n)] for x, m in ((a, an), (b, bn)) if n in m) for n in {*an, *bn}}
    batch = [n for n in an if n in bn and n in later]
    inner = [n for n in an if n in bn and n not in later]
    rows, columns = ([n for n in names if n not in other] for names, other in ((an, bn), (bn, an)))
    left = _arranged(emit, a, an, batch, rows, inner, sizes)
    right = _arranged(emit, b, bn, batch, inner, columns, sizes)
    product = emit.value("matmul", left, right)
    names = "".join((*batch, *rows, *columns))
    return reshaped(emit, product, [sizes[n] for n in names]), names


def _arranged(
    emit: Emitter,
    x: Value,
    names: str,
    batch: list[str],
    rows: list[str],
    columns: list[str],
    sizes: dict[str, int],
) -> Value:
    """`x` as [batch, rows, columns], broadcast to the extents the names have elsewhere."""
    order = [*batch, *rows, *columns]
    x = transposed(emit, x, [names.index(n) for n in order])
    shape = tuple(sizes[n] for n in order)
    if x.tensor.shape != shape:
        x = emit.value("broadcast_to", x, shape=shape)
    return reshaped(emit, x, [prod(sizes[n] for n in part) for part in (batch, rows, columns)])
