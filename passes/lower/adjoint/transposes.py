"""The table of tensor ops that can be transposed, and the cotangents that are collected on the way back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tilewright.ir.builder import Builder
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.expr import Expr, Sym
from tilewright.ir.nodes import Block, Op, Value
from tilewright.ir.scalar_code import Scalar, Scalars
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.ir.types import FLOATS, TensorType
from tilewright.passes.lower.adjoint.bodies import Linearised, wide
from tilewright.passes.lower.adjoint.terms import Input, Term, summed_to, total
from tilewright.passes.lower.scalars import written


class Cotangents:
    """What came back so far to the values of tensor ops, and the builder that the adjoint is written with.

    of: the graph op whose lowering is transposed. active: the values that depend on what it is differentiated
    by. A cotangent has the shape of its value and the `wide` dtype, or a narrower one that holds it exactly.
    """

    def __init__(self, b: Builder, of: str, ops: Sequence[Op], sources: Sequence[Value]) -> None:
        self.b, self.of = b, of
        self.active = set(sources)
        for op in ops:
            if any(v in self.active for v in op.operands):
                self.active.update(r for r in op.results if r.tensor.dtype in FLOATS)
        self._parts: dict[Value, list[Value]] = {}

    def add(self, v: Value, cotangent: Value | None) -> None:
        """Add to the cotangent of a value; nothing is known to be zero."""
        if cotangent is not None:
            self._parts.setdefault(v, []).append(cotangent)

    def get(self, v: Value) -> Value | None:
        """The cotangent of a value; none where nothing came back, or where nothing depends on it."""
        if v not in self._parts or v not in self.active:
            return None
        self._parts[v] = [total(self.b, self._parts[v], wide(v.tensor.dtype))]
        return self._parts[v][0]

    def spread(
        self,
        op: Op,
        domain: Mapping[str, int],
        extra: Sequence[Input],
        seeds: Seeds,
        *,
        first: int = 0,
        bound: int = 0,
    ) -> None:
        """Send back to the operands of a structured op what comes back to values of its body.

        extra: tensors read besides the operands from `first` on, of which the first `bound` are what the body
        takes behind its operands. seeds: cotangents of values of the body, from its linearisation and the
        values of `extra`. Reads of one element of one operand are taken together.
        """
        operands = op.operands[first:]
        inputs = [Input(*x) for x in zip(operands, reads(op)[first:], fills(op)[first:], strict=True)]
        groups: dict[tuple[Value, tuple[Expr, ...]], list[int]] = {}
        for k, x in enumerate(inputs):
            if x.value in self.active:
                groups.setdefault((x.value, x.read), []).append(k)
        for (v, read), places in groups.items():
            body = self._pulled(op, [*inputs, *extra], len(inputs), bound, seeds, places)
            if body is not None:
                self.add(v, summed_to(self.b, Term(domain, (*inputs, *extra), body), read, v.tensor))

    def _pulled(
        self, op: Op, inputs: Sequence[Input], count: int, bound: int, seeds: Seeds, places: Sequence[int]
    ) -> Block | None:
        """The body that gives the cotangent of parameters `places`; none where that is zero."""
        assert op.body is not None
        body, reached = op.body, True
        wrt = [body.params[k] for k in places]

        def write(i: Scalars, p: Sequence[Scalar]) -> Scalar:
            nonlocal reached
            # accumulators take part in no derivative; constants stand in for them until they are dropped
            rest = [i.const(0, v.type.dtype) for v in body.params[count + bound :]]
            values = Linearised(i, body, [*p[: count + bound], *rest])
            parts = list(values.cotangents(seeds(i, values, p[count:]), wrt).values())
            reached = bool(parts)
            out = parts[0] if parts else i.const(0.0, wide(wrt[0].type.dtype))
            for part in parts[1:]:
                out = out + part
            return out

        block = written(self.b, [x.tensor.dtype for x in inputs], write)
        return block if reached else None

    def refused(self, op: Op, why: str) -> UnsupportedError:
        """The error for a tensor op that cannot be transposed."""
        return UnsupportedError(
            f"no adjoint of {self.of} can be derived: it is lowered to a {op.name} {why}", where=op.loc
        )


#: cotangents of values of a body, from its linearisation and the values of the extra inputs
Seeds = Callable[[Scalars, Linearised, Sequence[Scalar]], Mapping[Value, Scalar]]

#: sends the cotangents of an op's results back to its operands
Transpose = Callable[[Cotangents, Op], None]
TRANSPOSES: dict[str, Transpose] = {}


def transposes(*names: str) -> Callable[[Transpose], Transpose]:
    """Register the transposition of tensor ops by full name; a second one for one op is an error."""

    def register(rule: Transpose) -> Transpose:
        for name in names:
            if name in TRANSPOSES:
                raise InputError(
                    f"'{name}' is transposed twice: {TRANSPOSES[name].__module__}, {rule.__module__}"
                )
            TRANSPOSES[name] = rule
        return rule

    return register


def at_points(v: Value, par: Mapping[str, int]) -> Input:
    """A tensor with an element for each point of `par`, read there."""
    return Input(v, tuple(map(Sym, par)))


def of_points(par: Mapping[str, int], dtype: str) -> TensorType:
    """The type of a tensor with an element for each point of `par`."""
    return TensorType(dtype, tuple(par.values()))


def par_of(op: Op) -> dict[str, int]:
    """The parallel dimensions of an op."""
    return dims(op, "par")
