"""Einsum as contractions of two operands at a time; labels name the dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.einsum import extents_of, terms_of
from tilewright.passes.lower.lowering import (
    accumulated,
    added,
    converted,
    lowering,
    mapped,
    multiply_add,
    reduced,
    result_type,
)
from tilewright.passes.lower.scalars import Scalar, Scalars


@dataclass(frozen=True)
class _Labelled:
    """An operand with one label per dimension; labels may repeat, and dimensions of extent 1 broadcast."""

    value: Value
    labels: str

    def read(self, extents: dict[str, int]) -> tuple[Expr, ...]:
        shape = self.value.tensor.shape
        return tuple(
            0 if n == 1 and extents[c] != 1 else Sym(c) for c, n in zip(self.labels, shape, strict=True)
        )


@dataclass(frozen=True)
class _Einsum:
    b: Builder
    extents: dict[str, int]
    acc: str

    def _type(self, labels: str) -> TensorType:
        return TensorType(self.acc, tuple(self.extents[c] for c in labels))

    def _dims(self, labels: str) -> dict[str, int]:
        return {c: self.extents[c] for c in labels}

    def summed(self, x: _Labelled, labels: str) -> _Labelled:
        """Sums labels that are not kept, takes diagonals, and puts labels in their order."""
        if x.labels == labels and x.value.tensor.shape == self._type(labels).shape:
            return x
        red = "".join(dict.fromkeys(c for c in x.labels if c not in labels))
        reads, par = [x.read(self.extents)], self._dims(labels)
        if not red:
            t = TensorType(x.value.tensor.dtype, self._type(labels).shape)
            return _Labelled(mapped(self.b, [x.value], t, par, reads, lambda i, p: p[0]), labels)

        t, sums = self._type(labels), self._dims(red)
        init = 0.0 if self.acc[0] in "bf" else 0
        return _Labelled(
            reduced(self.b, "tensor.reduce", [x.value], t, par, sums, reads, added, init=init), labels
        )

    def multiplied(self, x: _Labelled, y: _Labelled, labels: str) -> _Labelled:
        """The product of two operands, summed over the labels that are not kept."""
        red = "".join(dict.fromkeys(c for c in x.labels + y.labels if c not in labels))
        operands, reads = [x.value, y.value], [x.read(self.extents), y.read(self.extents)]
        t, par = self._type(labels), self._dims(labels)
        if red:
            init, sums = 0.0 if self.acc[0] in "bf" else 0, self._dims(red)
            out = reduced(self.b, "tensor.contract", operands, t, par, sums, reads, multiply_add, init=init)
            return _Labelled(out, labels)

        def product(i: Scalars, p: Sequence[Scalar]) -> Scalar:
            return i.value("scalar.mul", *(i.cast(v, self.acc) for v in p))

        return _Labelled(mapped(self.b, operands, t, par, reads, product), labels)


@lowering("graph.einsum")
def einsum(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Labels of one operand only are summed first, then operands are multiplied from left to right."""
    t = result_type(op)
    equation = str(op["equation"])
    terms, output = terms_of(equation)
    acc = accumulated(t)
    sums = _Einsum(b, extents_of(equation, [v.tensor.shape for v in x]), acc.dtype)
    if len(x) > 2:
        x = [converted(b, v, TensorType(acc.dtype, v.tensor.shape)) for v in x]
    factors = []
    for i, (v, term) in enumerate(zip(x, terms, strict=True)):
        # extents of 1 stay where another operand has the label, and are read at 0
        others = output + "".join(terms[:i] + terms[i + 1 :])
        labels = "".join(dict.fromkeys(c for c in term if c in others))
        factors.append(_reduced_factor(sums, _Labelled(v, term), labels))
    while len(factors) > 1:
        left, right, *rest = factors
        needed = output + "".join(f.labels for f in rest)
        labels = "".join(c for c in dict.fromkeys(left.labels + right.labels) if c in needed)
        factors = [sums.multiplied(left, right, labels if rest else output), *rest]
    return [converted(b, sums.summed(factors[0], output).value, t)]


def _reduced_factor(sums: _Einsum, x: _Labelled, labels: str) -> _Labelled:
    """The operand itself where it has just the labels kept, once each."""
    return x if x.labels == labels else sums.summed(x, labels)
