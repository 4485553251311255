"""A kernel of products in turn, each of what maps made of the one before, by the unit that a lane group owns.

A unit is an index of the state's last dimension. What a unit owns of an array are the elements whose last
index is its own modulo the number of units. Every element is followed, through maps, to the elements of
products and parameters that it is computed from; products' say which rows of the weights a unit needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import interval, simplify
from tilewright.ir.tensor.ops import dims, fills, reads

#: the index of a unit, that along the sum of a product, and the row of a batch where one stands for all
UNIT, ALONG, ROW = "unit", "along", "row"
#: elements of an array that a unit may own, and elements of a product that it may need
MOST_OWNED, MOST_SUMS = 16, 32
#: names of dtypes in sentences
FULL_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}

Index = tuple[Expr, ...]
#: an element of an array, by an index that may contain the unit
Element = tuple[Value, Index]


@dataclass(frozen=True)
class Sum:
    """An element of a product that a unit needs: where it reads the vector and where the weights."""

    at: Index
    vector_at: Index
    weights_at: Index


@dataclass(frozen=True)
class Product:
    """A product of a vector with weights; of which elements each unit needs those in `sums`.

    vector, weights: the positions of the operands.
    """

    op: Op
    vector: int
    weights: int
    sums: tuple[Sum, ...]

    @property
    def state(self) -> Value:
        """The array that holds the vector."""
        return self.op.operands[self.vector]

    @property
    def length(self) -> int:
        """Terms of each sum."""
        (length,) = dims(self.op, "red").values()
        return length


@dataclass(frozen=True)
class ResidentView:
    """The products of a kernel in turn, and what units own.

    units: their number. exchanged: the arrays that a product reads and maps of the kernel write, which all
    blocks must have. read: per product, the elements of parameters that are read first behind it. ready: per
    result, the number of products before it can be written.
    """

    units: int
    products: tuple[Product, ...]
    exchanged: tuple[Value, ...]
    read: tuple[tuple[Element, ...], ...]
    ready: tuple[tuple[Value, int], ...]
    applied: int = field(compare=False)

    @property
    def weights(self) -> tuple[tuple[Value, Index, int], ...]:
        """The rows of weights that a unit needs, each once: array, index over the sum, terms."""
        rows: dict[tuple[Value, Index, int], None] = {}
        for p in self.products:
            for s in p.sums:
                rows[p.op.operands[p.weights], s.weights_at, p.length] = None
        return tuple(rows)


def matrix_of(v: Value) -> tuple[int, int] | None:
    """Rows and columns of an array that is a matrix behind dimensions of extent 1; None where it is none."""
    *outer, rows, columns = (0, 0, *v.tensor.shape)
    return (rows, columns) if all(n < 2 for n in outer) and rows else None


def owned(v: Value, units: int, rows: int = 0) -> tuple[Index, ...]:
    """The elements of an array that a unit owns; none where they cannot be told.

    rows: of a batch that arrays [..., rows, units] have, behind dimensions of extent 1 alone, where the
    elements of one row, `ROW`, stand for all.
    """
    shape = v.tensor.shape
    if not shape or shape[-1] % units:
        return ()
    if rows:
        parts = range(shape[-1] // units if matrix_of(v) == (rows, shape[-1]) else 0)
        first = (0,) * (len(shape) - 2)
        return tuple((*first, Sym(ROW), part * units + Sym(UNIT)) for part in parts)
    outer = product(*(range(n) for n in shape[:-1]))
    return tuple((*at, part * units + Sym(UNIT)) for at in outer for part in range(shape[-1] // units))


def resident_view(kernel: Func) -> ResidentView | str:
    """The view of a kernel, or one clause that says why it has none."""
    ops = kernel.body.ops[:-1]
    unfit = {op.name for op in ops} - {"tensor.contract", "tensor.map"}
    if unfit:
        return f"it has {', '.join(sorted(unfit))} beside products and maps"
    contracts = [op for op in ops if op.name == "tensor.contract"]
    made = {r for op in ops for r in op.results}
    vectors = [(op, vector_of(op, kernel.params)) for op in contracts]
    for _, n in vectors:
        if isinstance(n, str):
            return n
    states = [op.operands[n] for op, n in vectors if isinstance(n, int) and op.operands[n] in made]
    if not states:
        return "no product reads what another one gives"
    returned = kernel.body.ops[-1].operands
    kept = list(dict.fromkeys(states))
    units = min((v.tensor.shape or (0,))[-1] for v in (*kept, *returned))
    for v in (*kept, *returned):
        if not units or not 0 < len(owned(v, units)) <= MOST_OWNED:
            return f"{v.type} is no array of at most {MOST_OWNED} elements for each of {units} units"
        if v.tensor.dtype != "f32":
            return f"{v.type} is exchanged or given back, where float32 is expected"
    walk = Walk(kernel, units)
    stages: list[tuple[Value, tuple[Index, ...]]] = [(v, owned(v, units)) for v in (*kept, *returned)]
    for v, elements in stages:
        for at in elements:
            fault = walk.follow(v, at)
            if fault:
                return fault
    return walk.view([(op, n) for op, n in vectors if isinstance(n, int)], kept, returned)


def vector_of(op: Op, params: Sequence[Value], dtypes: Sequence[str] = ("f32",)) -> int | str:
    """The position of the vector among a product's operands; the other one, a parameter, has the rows.

    dtypes: those that both factors may have; sums are float32. A clause where it is no such product.
    """
    par, red = dims(op, "par"), dims(op, "red")
    if len(red) != 1:
        return "a product sums over several dimensions"
    kinds = {v.tensor.dtype for v in op.operands}
    if len(kinds) > 1 or not kinds <= set(dtypes) or op.result.tensor.dtype != "f32":
        return f"a product is not of {' or '.join(FULL_NAMES.get(d, d) for d in dtypes)}"
    (along,) = red
    if any(not any(along in symbols(e) for e in at) for at in reads(op)):
        return "an operand of a product does not vary along the sum"
    if any(fill is not None for fill in fills(op)):
        return "a product reads outside of its operands"
    mentioned = [{s for e in at for s in symbols(e)} & set(par) for at in reads(op)]
    widths = [max((par[d] for d in m), default=1) for m in mentioned]
    vector = widths.index(min(widths))
    if op.operands[1 - vector] not in params:
        return "the weights of a product are computed in the kernel"
    if mentioned[0] & mentioned[1]:
        return "a product has a batch of weights"
    return vector


class Walk:
    """Follows elements, each once, to those of products and parameters.

    rows: as of `owned`.
    """

    def __init__(self, kernel: Func, units: int, rows: int = 0) -> None:
        self.kernel, self.units, self.rows = kernel, units, rows
        self.ranges = {UNIT: (0, units - 1)} | ({ROW: (0, rows - 1)} if rows else {})
        self.producers = {r: op for op in kernel.body.ops for r in op.results}
        #: per element, the number of products before it
        self.after: dict[Element, int] = {}
        self.sums: dict[Op, dict[Index, None]] = {}
        contracts = (op for op in kernel.body.ops if op.name == "tensor.contract")
        self.places = {op: i for i, op in enumerate(contracts)}
        self.first_read: dict[Element, int] = {}
        #: per element that needs no product, the elements of parameters that it is computed from
        self.early: dict[Element, tuple[Element, ...]] = {}
        self.applied = 0
        #: the scalar ops that are applied for a unit
        self.operations: list[str] = []

    def follow(self, v: Value, at: Index) -> str:
        """Note what an element needs; one clause where it needs what no unit can have."""
        try:
            if not self._after(v, at):
                self._read_behind(self.early[v, self._simple(at)], 0)
        except _Unfit as e:
            return str(e)
        return ""

    def _after(self, v: Value, at: Index) -> int:
        """The number of products that stand before an element: that of the last one it needs, plus one."""
        at = tuple(simplify(e, self.ranges) for e in at)
        key = (v, at)
        if key in self.after:
            return self.after[key]
        op = self.producers.get(v)
        if op is None:
            self.after[key], self.early[key] = 0, (key,)
            return 0
        if op.name == "tensor.contract":
            needed = self.sums.setdefault(op, {})
            needed[at] = None
            if len(needed) > MOST_SUMS:
                raise _Unfit(f"a unit needs more than {MOST_SUMS} elements of a product")
            self.after[key] = self.places[op] + 1
            return self.after[key]
        operands = list(map_operands(op, at, self.ranges))
        assert op.body is not None
        self.applied += len(op.body.ops) - 1
        self.operations += [o.name for o in op.body.ops[:-1]]
        before = [self._after(u, place) for u, place in operands]
        last = max(before, default=0)
        # What needs no product is read where something that needs one first asks for it.
        early = dict.fromkeys(
            e for operand, n in zip(operands, before, strict=True) if not n for e in self.early[operand]
        )
        if last:
            self._read_behind(early, last)
        else:
            self.early[key] = tuple(early)
        self.after[key] = last
        return last

    def _read_behind(self, elements: Iterable[Element], place: int) -> None:
        for e in elements:
            self.first_read[e] = min(place, self.first_read.get(e, place))

    def view(
        self, vectors: Sequence[tuple[Op, int]], kept: Sequence[Value], returned: Sequence[Value]
    ) -> ResidentView | str:
        """The view, when everything that is exchanged or given back has been followed."""
        products = []
        for op, n in vectors:
            sums = []
            for at in self.sums.get(op, ()):
                env: dict[str, Expr] = dict(zip(dims(op, "par"), at, strict=True))
                env.update(dict.fromkeys(dims(op, "red"), Sym(ALONG)))
                places = [tuple(simplify(substitute(e, env), self.ranges) for e in r) for r in reads(op)]
                if any(UNIT in symbols(e) for e in places[n]):
                    return "units read different vectors"
                sums.append(Sum(at, places[n], places[1 - n]))
            if not sums:
                return "no unit needs the elements of a product"
            products.append(Product(op, n, 1 - n, tuple(sums)))
        read: list[list[Element]] = [[] for _ in range(len(products) + 1)]
        for element, place in self.first_read.items():
            read[place].append(element)
        ready = [
            (v, max(self.after[v, self._simple(at)] for at in owned(v, self.units, self.rows)))
            for v in returned
        ]
        for p in products:
            if p.state in kept and self._made(p.state) > self.places[p.op]:
                return "a product reads what a later one gives"
        return ResidentView(
            self.units, tuple(products), tuple(kept), tuple(map(tuple, read)), tuple(ready), self.applied
        )

    def _simple(self, at: Index) -> Index:
        return tuple(simplify(e, self.ranges) for e in at)

    def _made(self, v: Value) -> int:
        return max(self.after[v, self._simple(at)] for at in owned(v, self.units, self.rows))


class _Unfit(Exception):
    """What an element needs that no unit can have."""


def map_operands(op: Op, at: Index, ranges: dict[str, tuple[int, int]]) -> Iterator[Element]:
    """The elements that a map reads for its own at `at`; raises where one may lie outside of its array."""
    env = dict(zip(dims(op, "par"), at, strict=True))
    for v, place in zip(op.operands, reads(op), strict=True):
        index = tuple(simplify(substitute(e, env), ranges) for e in place)
        for e, extent in zip(index, v.tensor.shape, strict=True):
            low, high = interval(e, ranges)
            if low < 0 or high >= extent:
                raise _Unfit("a map reads outside of its operands")
        yield v, index
