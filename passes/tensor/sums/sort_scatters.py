"""Pass sort-scatters: many updates of few lines are sorted by target; runs of them combine in parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from tilewright.costmodel import load_hardware
from tilewright.ir import Builder, Expr, Level, Module, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.expr import BinOp, maximum, substitute, symbols
from tilewright.ir.nodes import Attr
from tilewright.ir.tensor.ops import dims, reads
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import row_major_offset, slices_of
from tilewright.passes.kernels.ordered.choose_scatter import sorting_pays
from tilewright.passes.kernels.rows.combiners import COMBINERS, neutral_of
from tilewright.passes.lower.lowering import mapped
from tilewright.passes.lower.rules.binary_search import count_before
from tilewright.passes.lower.rules.orders import Order, gathered
from tilewright.passes.lower.rules.sorting import first_places
from tilewright.passes.lower.scalars import Scalar, Scalars
from tilewright.passes.rewriting.names import unused
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module

_SCALAR = {"+": "add", "-": "sub", "*": "mul", "//": "div", "%": "mod", "min": "min", "max": "max"}
#: elements that a 32-bit key can name
_MAX_TARGETS = (1 << 31) - 1


@register_pass(Level.TENSOR)
def sort_scatters(module: Module, ctx: PassContext) -> Module:
    """Sort updates by target, combine those of one target, and let every target look up its run.

    rewrite:  %y = tensor.scatter(%x, %u, %i, at = [i0]) {add}
        -->   keys = %i, or behind all targets where out of bounds; order = places of the sorted keys;
              runs = %u[order], folded in log2 steps where neighbours have equal keys;
              %y = tensor.map(%x, runs at the last place of each target's run) {add}

    Orders are stable, so the last update of a target stays the last. Sums, products and extremes of a run are
    taken in pairs, always the same ones. Other bodies, and indices that differ between slices, keep the walk;
    elsewhere the cost model compares.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)

    def rewrite(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        s = KeyedUpdates(op, rewriter.builder)
        if not s.sortable() or not sorting_pays(
            s.count, s.targets, s.payload_size, itemsize(op.result.tensor.dtype), hardware,
            combined=s.combiner is not None,
        ):  # fmt: skip
            return None
        return [s.sorted()]

    pattern = Pattern("sort-scatter", frozenset({"tensor.scatter"}), rewrite)
    return rewrite_module(module, [pattern], level="tensor")


class KeyedUpdates:
    """A scatter seen as `count` updates of `payload_size` elements, each to one of `targets` places."""

    def __init__(self, op: Op, b: Builder) -> None:
        self.op, self.b = op, b
        self.par, self.named = dims(op, "par"), slices_of(op)
        self.shape = op.result.tensor.shape
        self.rest = [d for d in range(len(self.shape)) if d not in self.named]
        self.payload = {p: self.par[p] for p in self.named.values()}
        self.walked = {p: n for p, n in self.par.items() if p not in self.payload}
        self.count, self.payload_size = prod(self.walked.values()), prod(self.payload.values())
        self.targets = prod(self.shape[d] for d in self.rest)
        self.combiner = self._combiner()
        self.line = unused("w", self.payload)

    def sortable(self) -> bool:
        """Return True where all slices share their indices and the order of combining does not matter."""
        wide = {p for p, n in self.payload.items() if n > 1}
        shared = not any(wide & set(symbols(e)) for read in reads(self.op)[1:] for e in read)
        known = self.combiner is not None or self._overwrites()
        some = bool(self.rest) and self.op.result.tensor.size > 0 and self.count > 0
        return shared and known and some and self.targets < _MAX_TARGETS

    def _combiner(self) -> str | None:
        """The scalar op that joins the old value and the update; None where the body is not of that form."""
        assert self.op.body is not None
        old, ops = self.op.body.params[0], self.op.body.ops[:-1]
        users = [o for o in self.op.body.ops if old in o.operands or o.name == "scalar.index"]
        if not ops or users != [ops[-1]] or self.op.body.ops[-1].operands != ops[-1].results:
            return None
        return ops[-1].name if ops[-1].name in COMBINERS and ops[-1].operands.count(old) == 1 else None

    def _overwrites(self) -> bool:
        assert self.op.body is not None
        ops = self.op.body.ops
        return not any(self.op.body.params[0] in o.operands or o.name == "scalar.index" for o in ops)

    def sorted(self) -> Value:
        """Return the value that replaces the scatter's result."""
        keys = self.keys()
        order = first_places(self.b, keys, Order(0, ascending=True), self.count)
        keys = gathered(self.b, keys, order, 0)
        runs, step = self._updates(order), 1
        while self.combiner is not None and step < self.count:
            runs, step = self._joined(runs, keys, step), 2 * step
        return self._applied(runs, self._ends(keys))

    def places(self, at: Expr) -> dict[str, Expr]:
        """Indices of the walked dimensions at place `at` of their row-major order; slices are at 0."""
        places: dict[str, Expr] = dict.fromkeys(self.payload, 0)
        step = 1
        for k, (name, extent) in enumerate(reversed(self.walked.items())):
            outermost = k == len(self.walked) - 1
            e = at // step
            places[name] = e if outermost else e % extent
            step *= extent
        return places

    def keys(self) -> Value:
        """The row-major place of every update's target; one behind all where it is out of bounds."""
        indices = self.op.operands[2:]
        env = self.places(Sym(self.line))
        where = [tuple(substitute(e, env) for e in read) for read in reads(self.op)[1:]]
        wide = any(v.tensor.dtype in ("i64", "u64", "u32") for v in indices)
        dtype = "i64" if wide else "i32"
        at: tuple[Expr, ...] = self.op["at"]  # type: ignore[assignment]

        def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
            runtime = {f"i{k}": i.cast(v, dtype) for k, v in enumerate(p)}
            key, inside = i.const(0, dtype), i.const(True, "bool")
            for d in self.rest:
                place = _scalar(i, substitute(at[d], env), runtime, dtype)
                low = place >= 0
                high = place < self.shape[d]
                inside = inside & (low & high)
                scaled = key * self.shape[d]
                key = scaled + inside.select(place, 0)
            return inside.select(i.cast(key, "i32"), self.targets)

        t = TensorType("i32", (self.count,))
        return mapped(self.b, indices, t, {self.line: self.count}, where[len(where) - len(indices) :], body)

    def _domain(self) -> dict[str, int]:
        return {self.line: self.count, **self.payload}

    def _updates(self, order: Value) -> Value:
        """Updates in the order of their keys, as the body gives them to an old value without effect."""
        updates, held = self.op.operands[1].tensor.dtype, self.op.result.tensor.dtype
        places = {**self.places(Sym("i0")), **{p: Sym(p) for p in self.payload}}
        at = tuple(substitute(e, places) for e in reads(self.op)[0])
        raw = _gather(self.b, self.op.operands[1], order, self._domain(), (Sym(self.line),), at, updates)

        def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
            old = neutral_of(self.combiner, held) if self.combiner is not None else 0
            return self._inlined(i, i.const(old, held), p[0])

        t = TensorType(held, raw.tensor.shape)
        return mapped(self.b, [raw], t, self._domain(), [tuple(map(Sym, self._domain()))], body)

    def _inlined(self, i: Scalars, old: Scalar, update: Scalar) -> Scalar:
        assert self.op.body is not None
        values = dict(zip(self.op.body.params, (old.value, update.value), strict=True))
        for o in self.op.body.ops[:-1]:
            copies = i.builder.emit(
                o.name, [values[v] for v in o.operands], dict(o.attrs), types=[r.type for r in o.results]
            )
            values.update(zip(o.results, copies, strict=True))
        return Scalar(i.builder, values[self.op.body.ops[-1].operands[0]])

    def _joined(self, runs: Value, keys: Value, step: int) -> Value:
        """Each update with the one `step` places before it, where that has the same target."""
        back = maximum(Sym(self.line) - step, 0)
        rest = tuple(map(Sym, self.payload))

        def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
            exists = i.index(Sym(self.line)) >= step
            same = exists & p[2].equals(p[3])
            return same.select(i.value(str(self.combiner), p[0], p[1]), p[1])

        here: Expr = Sym(self.line)
        where = [(back, *rest), (here, *rest), (back,), (here,)]
        return mapped(self.b, [runs, runs, keys, keys], runs.tensor, self._domain(), where, body)

    def _ends(self, keys: Value) -> Value:
        """For every target the place of its last update, -1 where it has none."""
        t = TensorType("i32", (self.targets,))
        par, here = {"t": self.targets}, (Sym("t"),)
        targets = mapped(self.b, [], t, par, [], lambda i, p: i.index(Sym("t")))
        before = count_before(self.b, keys, targets, right=True)
        key = _gather(self.b, keys, before, par, here, (Sym("i0") - 1,), "i32")

        def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
            some = p[0] > 0
            found = some & p[1].equals(i.index(Sym("t")))
            last = p[0] - 1
            return found.select(last, -1)

        return mapped(self.b, [before, key], t, par, [here, here], body)

    def _applied(self, runs: Value, ends: Value) -> Value:
        """The initial values, joined with what the runs of their targets give."""
        names = [f"d{d}" for d in range(len(self.shape))]
        par = dict(zip(names, self.shape, strict=True))
        target = (row_major_offset([Sym(names[d]) for d in self.rest], [self.shape[d] for d in self.rest]),)
        at = (Sym("i0"), *(Sym(names[d]) for d in self.named))
        picked = _gather(self.b, runs, ends, par, target, at, runs.tensor.dtype)
        partial = {names[d]: self.par[p] for d, p in self.named.items() if self.par[p] < self.shape[d]}

        def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
            changed = p[2] >= 0
            for name, extent in partial.items():
                inside = i.index(Sym(name)) < extent
                changed = changed & inside
            new = i.value(self.combiner, p[0], p[1]) if self.combiner is not None else p[1]
            return changed.select(new, p[0])

        point = tuple(map(Sym, names))
        where = [point, point, target]
        return mapped(self.b, [self.op.operands[0], picked, ends], self.op.result.tensor, par, where, body)


def _gather(
    b: Builder, data: Value, index: Value, par: Mapping[str, int], read: Sequence[Expr], at: Sequence[Expr],
    dtype: str,
) -> Value:  # fmt: skip
    """A gather with one index operand; addresses out of bounds are clipped."""
    attrs: dict[str, Attr] = {"par": Pairs.of(dict(par)), "reads": (tuple(read),), "at": tuple(at)}
    t = TensorType(dtype, tuple(par.values()))
    (out,) = b.emit("tensor.gather", [data, index], attrs, types=[t])
    return out


def _scalar(i: Scalars, e: Expr, runtime: Mapping[str, Scalar], dtype: str) -> Scalar:
    """The value of an index expression in which `runtime` names values of the body."""
    if not runtime.keys() & set(symbols(e)):
        return i.index(e, dtype)
    if isinstance(e, Sym):
        return runtime[e.name]
    assert isinstance(e, BinOp)
    return i.value(
        f"scalar.{_SCALAR[e.op]}", _scalar(i, e.lhs, runtime, dtype), _scalar(i, e.rhs, runtime, dtype)
    )
