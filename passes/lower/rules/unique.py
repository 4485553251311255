"""Distinct elements of a vector: in order they stand side by side, and a scan numbers them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import Builder, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.expr import maximum
from tilewright.ir.nodes import Attr
from tilewright.passes.lower.lowering import added, elementwise, looked_up, lowering, mapped, reduced
from tilewright.passes.lower.rules.orders import Order, gathered
from tilewright.passes.lower.rules.scans import scanned
from tilewright.passes.lower.rules.sorting import first_places
from tilewright.passes.lower.scalars import Scalar, Scalars, written


def _vector(b: Builder, size: int, body: Callable[[Scalars], Scalar]) -> Value:
    """A new i32 vector; the body computes an element from dimension `i0`."""
    return mapped(b, [], TensorType("i32", (size,)), {"i0": size}, [], lambda i, p: body(i))


def _scattered(b: Builder, init: Value, updates: Value, index: Value, scalar: str) -> Value:
    """A copy of `init` where each element `index` names becomes scalar(old, update), or the update."""
    dtypes = [init.tensor.dtype, updates.tensor.dtype]
    block = written(b, dtypes, lambda i, p: p[0].apply(scalar, p[1]) if scalar else p[1])
    attrs: dict[str, Attr] = {
        "par": Pairs.of({"n": updates.tensor.size}),
        "reads": ((Sym("n"),), (Sym("n"),)),
        "at": (Sym("i0"),),
    }
    (out,) = b.emit("tensor.scatter", [init, updates, index], attrs, types=[init.type], body=block)
    return out


def _picked(b: Builder, x: Value, index: Value) -> Value:
    """x[index], and zero where an index is out of bounds."""
    return looked_up(b, x, [index], {"n": index.tensor.size}, [(Sym("n"),)], [Sym("i0")], "fill")


def _running_sum(b: Builder, x: Value, start: int = 0) -> Value:
    return scanned(b, x, x.tensor, 0, added, start)


def _numbered(b: Builder, x: Value) -> Value:
    """For every element the rank of its value among the distinct values."""
    n = x.tensor.size
    places = first_places(b, x, Order(0, ascending=True), n)
    line = gathered(b, x, places, 0)

    def starts(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        later = i.index(Sym("i0")) > 0
        return i.cast(later & p[0].apply("ne", p[1]), "i32")

    reads = [(Sym("i0"),), (maximum(0, Sym("i0") - 1),)]
    steps = mapped(b, [line, line], TensorType("i32", (n,)), {"i0": n}, reads, starts)
    nothing = _vector(b, n, lambda i: i.const(0, "i32"))
    return _scattered(b, nothing, _running_sum(b, steps), places, "")


def _first(b: Builder, group: Value) -> Value:
    """The first place of each group; the number of elements where there is no such group."""
    n = group.tensor.size
    nowhere = _vector(b, n, lambda i: i.const(n, "i32"))
    places = _vector(b, n, lambda i: i.index(Sym("i0")))
    return _scattered(b, nowhere, places, group, "min")


def _by_occurrence(b: Builder, group: Value) -> Value:
    """Groups numbered in the order in which they occur first."""
    start = gathered(b, _first(b, group), group, 0)

    def is_start(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return i.cast(p[0].equals(i.index(Sym("i0"))), "i32")

    number = _running_sum(b, elementwise(b, [start], start.tensor, is_start), start=-1)
    return gathered(b, number, start, 0)


@lowering("graph.unique")
def unique(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """From the number of every element's value: where each occurs first, how many there are, how often."""
    n = x[0].tensor.size
    group = _numbered(b, x[0])
    if not op["sorted"]:
        group = _by_occurrence(b, group)
    first = _first(b, group)

    def largest(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return (p[0] + 1).max(p[1])

    count = TensorType("i32", (1,))
    number = reduced(b, "tensor.reduce", [group], count, {"one": 1}, {"j": n}, [(Sym("j"),)], largest, init=0)
    results = [_picked(b, x[0], first), first, group, number]
    if op["return_counts"]:
        none = _vector(b, n, lambda i: i.const(0, "i32"))
        ones = _vector(b, n, lambda i: i.const(1, "i32"))
        results.append(_scattered(b, none, ones, group, "add"))
    return results
