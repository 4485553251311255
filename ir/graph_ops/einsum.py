"""Sums of products over named dimensions: graph.einsum."""

from __future__ import annotations

import string
from collections import Counter
from collections.abc import Sequence
from math import prod

import numpy as np

from tilewright.ir.division import Labels
from tilewright.ir.errors import InputError
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass
from tilewright.ir.graph_ops.operands import accumulator_dtype, alike, dtype_of, require, wide
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type, numpy_dtype


def explicit_equation(equation: str, ranks: Sequence[int]) -> str:
    """`equation` in the form graph.einsum takes: with an arrow, ellipses spelt out, no blanks.

    Without an arrow the result has the labels that occur once, in alphabetical order, after the ellipsis.
    Raises InputError where terms do not fit operands of these ranks.
    """
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    require(len(terms) == len(ranks), f"expected {len(ranks)} terms, got '{equation}'")
    letters = [c for c in string.ascii_letters if c not in equation]
    hidden = [r - len(t.replace("...", "")) if "..." in t else 0 for t, r in zip(terms, ranks, strict=True)]
    most = max([0, *hidden])
    if min([0, *hidden]) < 0 or most > len(letters):
        raise InputError(f"expected operands with a dimension per label, got ranks {tuple(ranks)}")
    spelt = "".join(letters[:most])
    terms = [t.replace("...", spelt[most - n :], 1) for t, n in zip(terms, hidden, strict=True)]
    if arrow:
        output = output.replace("...", spelt, 1)
    else:
        seen = Counter("".join(terms))
        output = spelt + "".join(sorted(c for c, n in seen.items() if n == 1 and c not in spelt))
    return f"{','.join(terms)}->{output}"


def terms_of(equation: str) -> tuple[list[str], str]:
    """Labels of every operand, and of the result, of an explicit equation."""
    inputs, _, output = equation.partition("->")
    return inputs.split(","), output


def extents_of(equation: str, shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The extent of every label; an extent of 1 broadcasts. Raises InputError where they disagree."""
    terms, output = terms_of(equation)
    good = "->" in equation and all(c in string.ascii_letters for c in "".join([*terms, output]))
    require(good, f"expected an equation such as 'ab,bc->ac', got '{equation}'")
    fits = [len(t) for t in terms] == [len(s) for s in shapes]
    require(fits, f"expected operands with a dimension per label of '{equation}', got {tuple(shapes)}")
    extents: dict[str, int] = {}
    for term, shape in zip(terms, shapes, strict=True):
        for label, n in zip(term, shape, strict=True):
            before = extents.setdefault(label, n)
            require(1 in (before, n) or before == n, f"expected one extent of '{label}', got {before}, {n}")
            extents[label] = n if before == 1 else before
    named = len(set(output)) == len(output) and set(output) <= extents.keys()
    require(named, f"expected distinct labels of operands in the result '{output}'")
    return extents


def _infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    operands = alike(types)
    require(bool(operands), "expected at least one operand")
    dtype = operands[0].dtype
    require(dtype != "bool", f"expected numbers, got {operands[0]}")
    extents = extents_of(attrs["equation"], [t.shape for t in operands])
    return [TensorType(dtype, tuple(extents[c] for c in terms_of(attrs["equation"])[1]))]


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    equation = attrs["equation"]
    extents = extents_of(equation, [x.shape for x in inputs])
    terms, output = terms_of(equation)
    operands = []
    for x, term in zip(inputs, terms, strict=True):
        shape = tuple(extents[c] for c in term)
        operands.append(np.broadcast_to(wide(x, dtype_of(x)), shape))
    dtype = dtype_of(inputs[0])
    acc = numpy_dtype(accumulator_dtype(dtype))
    with np.errstate(all="ignore"):
        out = np.einsum(f"{','.join(terms)}->{output}", *operands, optimize=len(operands) > 1, dtype=acc)
    return [np.asarray(out).astype(numpy_dtype(dtype), copy=False)]


def _flops(op: Op) -> int:
    """2 x the product of the extents of all labels."""
    return 2 * prod(extents_of(str(op["equation"]), [v.tensor.shape for v in op.operands]).values())


def _divided(op: Op) -> Labels:
    """Labels of the equation that name one extent, and one dimension of every operand that has them."""
    terms, output = terms_of(str(op["equation"]))
    extents: dict[str, set[int]] = {}
    for term, v in zip(terms, op.operands, strict=True):
        for c, n in zip(term, v.tensor.shape, strict=True):
            extents.setdefault(c, set()).add(n)
    shut = {c for c in extents if len(extents[c]) > 1 or any(t.count(c) > 1 for t in (*terms, output))}
    dims = [tuple(None if c in shut else c for c in t) for t in (*terms, output)]
    return Labels(tuple(dims[:-1]), (dims[-1],), frozenset(extents) - frozenset(output) - shut)


define(
    "graph.einsum",
    ("operands*",),
    "The product of the operands, summed over the labels that are not in the result; a label names the "
    "same dimension everywhere, and an extent of 1 broadcasts.",
    attrs={"equation": AttrDef("str", doc="a letter per dimension: 'ab,bc->ac'")},
    infer=_infer,
    evaluate=_evaluate,
    facts=Facts(
        elements=Elements.CONTRACTS,
        flops=_flops,
        precision=Precision.NARROW,
        division=_divided,
        extents=attributes_stay,
        report=ReportClass.MATRIX_PRODUCT,
        gradient=Gradient.RULE,
        exact=False,
    ),
)
