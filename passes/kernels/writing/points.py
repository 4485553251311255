"""Values of tensor ops at points of a kernel, and addresses that come out of data: offsets of gathers and
scatters as values of the thread level.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from tilewright.ir import BinOp, Expr, Op, Sym, UnsupportedError, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import within
from tilewright.ir.tensor.ops import dims, fills, reads
from tilewright.passes.kernels.writing.writer import Index, Mask, Writer

_SCALAR = {"+": "add", "-": "sub", "*": "mul", "//": "div", "%": "mod", "min": "min", "max": "max"}
#: element counts up to which offsets are 32-bit
_NARROW = 1 << 31


class Points:
    """Values of the kernel's tensors at single indices, each computed at most once in the current scope."""

    def __init__(self, w: Writer, known: Mapping[Value, Value] | None = None) -> None:
        self.w = w
        self.known = dict(known or {})  # tensors whose value at the current point is already in a register
        self.cache: dict[tuple[Value, Index, Mask], Value] = {}

    def value(self, v: Value, at: Sequence[Expr], mask: Mask = ()) -> Value:
        """The element of `v` at `at`. Loads happen only where `mask` holds (zero elsewhere)."""
        if v in self.known:
            return self.known[v]
        index = tuple(self.w.simple(e) for e in at)
        key = (v, index, mask)
        if key not in self.cache:
            self.cache[key] = self._compute(v, index, mask)
        return self.cache[key]

    def _compute(self, v: Value, at: Index, mask: Mask) -> Value:
        if v in self.w.inputs:
            return self.w.load(self.w.inputs[v], at, mask)
        op = self.w.producers[v]
        if op.name == "tensor.gather":
            return gathered(self, op, dict(zip(dims(op, "par"), at, strict=True)), mask)
        if op.name != "tensor.map":
            raise UnsupportedError(f"{op.name} cannot be computed point by point", where=op.loc)
        env = dict(zip(dims(op, "par"), at, strict=True))
        results = self.w.inline(op, self.operands(op, env, mask), env)
        for r, x in zip(op.results, results, strict=True):
            self.cache[(r, at, mask)] = x
        return self.cache[(v, at, mask)]

    def operands(self, op: Op, env: Mapping[str, Expr], mask: Mask = ()) -> list[Value]:
        """The values one iteration point of a structured op reads, fill values included."""
        return [
            self.filled(v, tuple(self.w.simple(substitute(e, env)) for e in at), fill, mask)
            for v, at, fill in zip(op.operands, reads(op), fills(op), strict=True)
        ]

    def filled(self, v: Value, at: Index, fill: float | int | bool | None, mask: Mask = ()) -> Value:
        """The element of `v` at `at`, or `fill` outside its bounds."""
        edge = self.w.bounds(at, v.tensor.shape) if fill is not None else ()
        if not edge:
            return self.value(v, at, mask)
        if v in self.w.inputs and not mask:
            return self.w.load(self.w.inputs[v], at, edge, fill if fill is not None else 0.0)
        inside = self.value(v, at, (*mask, *edge))
        outside = self.w.b.const(fill if fill is not None else 0.0, v.tensor.dtype)
        return self.w.b.value("scalar.select", self.w.condition(edge), inside, outside)


class Address:
    """The address of one point of a gather or scatter.

    coordinates: one value per dimension of the target, brought into bounds; inside: a bool value that is
    false where a coordinate was out of bounds before, None where that cannot happen. given: the coordinates
    before they were brought into bounds.
    """

    def __init__(self, points: Points, op: Op, env: Mapping[str, Expr], first: int, mask: Mask = ()) -> None:
        """The address at iteration point `env`; the index operands of `op` start at position `first`."""
        self.w = points.w
        self.target = op.operands[0].tensor
        self.shape = self.target.shape
        indices = op.operands[first:]
        where = reads(op)[len(reads(op)) - len(indices) :]
        wide = max(self.target.span, prod(self.shape)) >= _NARROW or any(
            v.tensor.dtype in ("i64", "u64", "u32") for v in indices
        )
        self.dtype = "i64" if wide else "i32"
        self.runtime: dict[str, Value] = {}
        for k, (v, read) in enumerate(zip(indices, where, strict=True)):
            place = tuple(self.w.simple(substitute(e, env)) for e in read)
            self.runtime[f"index.{k}"] = self.w.b.cast(points.value(v, place, mask), self.dtype)
        # the i0, i1, ... of the op may be names of loops around it: both are replaced at once
        values = {f"i{k}": Sym(name) for k, name in enumerate(self.runtime)}
        bound = {**env, **values}
        self.inside: Value | None = None
        self.given: list[Value] = []
        wrap = op.get("mode") == "wrap"
        at: Sequence[Expr] = op["at"]  # type: ignore[assignment]
        self.coordinates = [
            self._bounded(substitute(e, bound), extent, wrap)
            for e, extent in zip(at, self.shape, strict=True)
        ]

    def offset(self, dimensions: Sequence[int] | None = None) -> Value:
        """The element offset over the given dimensions of the target (all of them by default)."""
        total: Value | None = None
        b = self.w.b
        if not self.target.dense:
            return self._placed_offset()
        for d in range(len(self.shape)) if dimensions is None else dimensions:
            if total is not None:
                total = b.value("scalar.mul", total, b.const(self.shape[d], self.dtype))
                total = b.value("scalar.add", total, self.coordinates[d])
            else:
                total = self.coordinates[d]
        return total if total is not None else b.const(0, self.dtype)

    def _placed_offset(self) -> Value:
        """The element offset in a target that is a box inside a larger array."""
        b = self.w.b
        total = b.const(self.target.start, self.dtype)
        for coordinate, step in zip(self.coordinates, self.target.strides, strict=True):
            total = b.value("scalar.add", total, b.value("scalar.mul", coordinate, b.const(step, self.dtype)))
        return total

    def _bounded(self, e: Expr, extent: int, wrap: bool) -> Value:
        b = self.w.b
        value = self._value(e)
        self.given.append(value)
        if not self.runtime.keys() & set(symbols(e)) and within(self.w.simple(e), extent, self.w.ranges):
            return value
        zero, last = b.const(0, self.dtype), b.const(max(0, extent - 1), self.dtype)
        if wrap:
            return b.value("scalar.mod", value, b.const(max(1, extent), self.dtype))
        fits = b.value("scalar.and", b.value("scalar.ge", value, zero), b.value("scalar.le", value, last))
        self.inside = fits if self.inside is None else b.value("scalar.and", self.inside, fits)
        return b.value("scalar.min", b.value("scalar.max", value, zero), last)

    def _value(self, e: Expr) -> Value:
        if not self.runtime.keys() & set(symbols(e)):
            return self.w.b.index(self.w.simple(e), self.dtype)
        if isinstance(e, Sym):
            return self.runtime[e.name]
        assert isinstance(e, BinOp)
        return self.w.b.value(f"scalar.{_SCALAR[e.op]}", self._value(e.lhs), self._value(e.rhs))


def gathered(points: Points, op: Op, env: Mapping[str, Expr], mask: Mask = ()) -> Value:
    """The element a tensor.gather reads at iteration point `env`; its data must be a buffer."""
    w = points.w
    address = Address(points, op, env, 1, mask)
    value = w.b.value("thread.gather", w.inputs[op.operands[0]], address.offset(), mask=mask)
    if op["mode"] == "fill" and address.inside is not None:
        fill = w.b.const(op["fill_value"], value.type.dtype)  # type: ignore[arg-type]
        return w.b.value("scalar.select", address.inside, value, fill)
    return value


def store_results(
    w: Writer, points: Points, place: tuple[Expr, ...], results: Iterable[Value] | None = None
) -> None:
    """Write results of the kernel, all by default, at one index of their common domain."""
    for v in w.outputs if results is None else dict.fromkeys(results):
        producer = w.producers[v]
        with w.b.at(producer.loc):
            w.store(points.value(v, place), w.outputs[v], place)
