"""Pass defer-norms: products read what a norm of rows reads, and their results are scaled and shifted."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.costmodel import CpuHardware, load_hardware
from tilewright.costmodel.hardware.description import Hardware
from tilewright.ir import (
    Block,
    Builder,
    Constants,
    Expr,
    Func,
    InputError,
    Level,
    Module,
    Op,
    ScalarType,
    Sym,
    TensorType,
    Type,
    Value,
    interpret,
    scalar_body,
    structured,
)
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.tensor.ops import dims, fills, ranges_of, reads
from tilewright.ir.types import storage_dtype
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import identity_read, is_copy
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.analysis.terms import FLOATS, Apply, Read, Reduction, Term, Terms, constant, leaves
from tilewright.passes.framework.context import Estimator
from tilewright.passes.kernels.matrix.view import multiplies
from tilewright.passes.kernels.rows.scaled_rows import ScaledRows, apply, scaled_rows
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.inlined import with_bodies

#: types in which a value is a factor of tensor cores as it is stored: from 1 to the next number
EPSILON = {"f16": 2.0**-10, "bf16": 2.0**-7}
#: what is deferred must be estimated to take at most this share of what it takes now
GAIN = 0.98
WHEN = ("auto", "always", "never")


@dataclass(frozen=True)
class _Scaled:
    """A value, shifted and scaled, and the index of its row in the statistics that give shift and scale."""

    rows: ScaledRows
    row_at: tuple[Expr, ...]

    def parts(self) -> tuple[tuple[Value, ...], ...]:
        """What shift, scale, gain and offset are made of, wherever that is read."""
        terms = (self.rows.shift, self.rows.scale, self.rows.gain, self.rows.offset)
        return tuple(
            tuple(_held(leaf) for leaf in leaves(term) if isinstance(leaf, Read | Reduction))
            for term in map(_or_nothing, terms)
        )


@dataclass(frozen=True)
class _Product:
    """A product with constant weights that reads a norm.

    channel: the dimension that it sums over. axis: that of the weights. norm: the factor that it reads, over
    the dimensions of the product.
    """

    op: Op
    channel: str
    axis: int
    weights: np.ndarray
    norm: _Scaled


@dataclass(frozen=True)
class _Folded:
    """The constants of a product behind which a norm is applied.

    stored: weights times gain, as they are stored. sums: of their columns. offset: sums of columns of weights
    times offset; None without one.
    """

    stored: np.ndarray
    sums: np.ndarray
    offset: np.ndarray | None


@dataclass(frozen=True)
class _Norm:
    """A norm of rows: what it reads, the map that gives it, the products that read it, and the maps that do.

    norm: the result, over the dimensions of `result`.
    """

    value: Value
    result: Op
    norm: _Scaled
    products: tuple[_Product, ...]
    maps: tuple[Op, ...]

    def stands_apart(self, others: Iterable[_Norm]) -> bool:
        """Return whether neither this norm is what another one reads, nor the other way around."""
        return all(
            self.value is not other.result.result and other.value is not self.result.result
            for other in others
        )


@register_pass(Level.TENSOR)
def defer_norms(module: Module, ctx: PassContext, *, when: str = "auto") -> Module:
    """Let products read what a norm of rows reads, and apply the norm to their sums.

    rewrite:  %y = tensor.map(%x, %m, %s, g, h) {(x - m) * s * g + h}; %p = tensor.contract(%y, w)
        -->   %q = tensor.contract(%x, w * g); %p = tensor.map(%q, %m, %s, c, d) {(q - m * c) * s + d}

    with c the sums of the columns of w * g, as it is stored, and d those of w * h. What is left of the norm
    are its statistics, a number or two per row. Maps that read the norm besides, such as the residual of a
    later layer, compute it from the same value and statistics.

    The value must be stored in 16 bits. Then no bound on errors grows: the value x is rounded to 2 ** -11 of
    itself as it was before, which the norm multiplies by the same x / deviation, however large; what is lost
    where the mean is taken out of a float32 sum is 2 ** -13 of that or less for each term; and the norm is
    not rounded any more. when: `auto` where the model sees a gain, `always` where legal, `never`.
    """
    if when not in WHEN:
        raise InputError(f"expected when among {', '.join(WHEN)}, got {when!r}")
    main, hardware = module.main, ctx.hardware or load_hardware(ctx.target)
    kernels = any(op.name == "tensor.call" for op in main.body.ops)
    if main.level is not Level.TENSOR or kernels or main.updates or when == "never":
        return module
    if when == "auto" and isinstance(hardware, CpuHardware):
        return module
    pool = ConstantPool(module.constants)
    search = _Search(main, pool)
    taken: list[_Norm] = []
    for norm in search.norms():
        pays = when == "always" or _pays(norm, search, hardware, ctx.estimator)
        if pays and norm.stands_apart(taken) and search.folds(norm):
            taken.append(norm)
    if not taken:
        return module
    ops: Sequence[Op] = main.body.ops
    for norm in taken:
        ops = _Writer(norm, search, pool).written(ops)
    block = main.body.with_ops(tuple(ops))
    new = main.with_body(block.with_ops(live_ops(block)))
    return module.with_funcs(tuple(new if f is main else f for f in module.funcs)).with_constants(
        pool.constants
    )


class _Search:
    """The norms of a function whose products have constant weights."""

    def __init__(self, main: Func, pool: ConstantPool) -> None:
        self.main, self.pool = main, pool
        self.producers = {r: op for op in main.body.ops for r in op.results}
        self.readers: dict[Value, list[Op]] = {}
        for op in main.body.ops:
            for v in dict.fromkeys(op.operands):
                self.readers.setdefault(v, []).append(op)
        self.returned = set(main.body.ops[-1].operands)
        self._folded: dict[Op, _Folded] = {}

    def norms(self) -> Iterator[_Norm]:
        """Norms that no op reads but such products and maps, each once."""
        seen: set[Op] = set()
        for op in self.main.body.ops:
            if op.name != "tensor.contract" or op.operands[0].tensor.dtype not in EPSILON:
                continue
            result = self._computed(op.operands[0])
            if result is None or result in seen:
                continue
            seen.add(result)
            norm = self._norm(result)
            if norm is not None:
                yield norm

    def _computed(self, value: Value) -> Op | None:
        """The map that computes what a value is, through copies that only give it another shape."""
        op = self.producers.get(value)
        while op is not None and _moves(op):
            op = self.producers.get(op.operands[0])
        return op if op is not None and op.name == "tensor.map" and len(op.results) == 1 else None

    def _norm(self, result: Op) -> _Norm | None:
        used = self._uses(result)
        if used is None or not used[0]:
            return None
        contracts, maps = used
        for value in self._sources(result):
            products = [self._product(op, value) for op in contracts]
            known = tuple(p for p in products if p is not None)
            norm = self._own(result, value)
            if norm is None or len(known) < len(products):
                continue
            if all(p.norm.parts() == norm.parts() for p in known):
                return _Norm(value, result, norm, known, tuple(maps))
        return None

    def _own(self, result: Op, value: Value) -> _Scaled | None:
        """The result of a norm over its own dimensions, one of which is that of the columns."""
        par = dims(result, "par")
        term = Terms(self.main, ranges_of(result), stop=(value,)).element(result.result, tuple(map(Sym, par)))
        columns = [d for d, n in reversed(par.items()) if n > 1]
        found = (self._scaled(term, value, set(par) - {d}, d) for d in columns)
        return next((norm for norm in found if norm is not None), None)

    def _uses(self, result: Op) -> tuple[list[Op], list[Op]] | None:
        """The contractions that read a map's result as first factor, and the maps that read it or a copy.

        None where something else needs it.
        """
        contracts: list[Op] = []
        maps: list[Op] = []
        todo = [result.result]
        while todo:
            v = todo.pop()
            if v in self.returned:
                return None
            for op in self.readers.get(v, []):
                if op.name == "tensor.contract" and op.operands[0] is v and op.operands[1] is not v:
                    contracts.append(op)
                elif op.name == "tensor.map" and len(op.results) == 1 and all(f is None for f in fills(op)):
                    maps.append(op)
                    todo += [op.result] if _moves(op) else []
                else:
                    return None
        return contracts, maps

    def _sources(self, result: Op) -> Iterator[Value]:
        """Values of 16 bits and the size of a map's result from which maps compute it, the nearest first.

        Others read them as well, so that they are stored in any case.
        """
        op: Op | None = result
        while op is not None and op.name == "tensor.map" and all(f is None for f in fills(op)):
            wide = [v for v in dict.fromkeys(op.operands) if v.tensor.size == op.result.tensor.size]
            if len(wide) != 1:
                return
            (value,) = wide
            if value.tensor.dtype in EPSILON and len(self.readers[value]) > 1:
                yield value
            op = self.producers.get(value)

    def _product(self, op: Op, value: Value) -> _Product | None:
        red = [d for d, n in dims(op, "red").items() if n > 1]
        array = self.pool.array(self.producers.get(op.operands[1]))
        if len(red) != 1 or array is None or op.result.tensor.dtype != "f32" or not multiplies(op):
            return None
        if any(f is not None for f in fills(op)) or op["init"] != (0.0,):
            return None
        weights_at, (channel,) = reads(op)[1], red
        if not all(isinstance(e, Sym) or e == 0 for e in weights_at) or weights_at.count(Sym(channel)) != 1:
            return None
        if not op.operands[0].tensor.dtype == op.operands[1].tensor.dtype == value.tensor.dtype:
            return None
        columns = {e.name for e in weights_at if isinstance(e, Sym)}
        terms = Terms(self.main, ranges_of(op), stop=(value,))
        factor = terms.element(op.operands[0], reads(op)[0])
        norm = self._scaled(factor, value, {d for d in dims(op, "par") if d not in columns}, channel)
        if norm is None:
            return None
        return _Product(op, channel, weights_at.index(Sym(channel)), array, norm)

    def _scaled(self, term: Term, value: Value, rows: set[str], column: str) -> _Scaled | None:
        """A term as the value, shifted and scaled by what statistics of its row give, and by constants."""
        places = [leaf for leaf in leaves(term) if isinstance(leaf, Read) and leaf.value is value]
        found = scaled_rows(term, places[0], rows, column) if len(places) == 1 else None
        if found is None or found == ScaledRows(found.value):
            return None
        known = (leaf for part in (found.gain, found.offset) if part is not None for leaf in leaves(part))
        if any(
            not isinstance(leaf, Read) or self.pool.array(self.producers.get(leaf.value)) is None
            for leaf in known
        ):
            return None
        of_rows = [leaf for part in (found.shift, found.scale) if part is not None for leaf in leaves(part)]
        if any(not isinstance(leaf, Read | Reduction) for leaf in of_rows):
            return None
        at = {
            (leaf.at, _held(leaf).tensor.shape)
            for leaf in of_rows
            if isinstance(leaf, Read | Reduction) and _varies(leaf)
        }
        return _Scaled(found, at.pop()[0]) if len(at) == 1 else None

    def folds(self, norm: _Norm) -> bool:
        """Return whether weights times gains are rounded as finely as weights are, in each column.

        They are not where the products leave the range of their type.
        """
        for p in norm.products:
            exact, stored = self._scaled_weights(p), self.folded(p).stored.astype(np.float64)
            if not np.isfinite(stored).all():
                return False
            error, whole = (np.sqrt((a * a).sum(axis=p.axis)) for a in (stored - exact, exact))
            if not np.all(error <= EPSILON[p.op.operands[1].tensor.dtype] * whole):
                return False
        return True

    def folded(self, p: _Product) -> _Folded:
        """The constants of a product, computed once."""
        if p.op not in self._folded:
            with np.errstate(over="ignore", invalid="ignore"):
                stored = self._scaled_weights(p).astype(storage_dtype(p.op.operands[1].tensor.dtype))
                sums = stored.astype(np.float64).sum(axis=p.axis).astype(np.float32)
            offset = None
            if p.norm.rows.offset is not None:
                moved = p.weights.astype(np.float64) * self._along(p, p.norm.rows.offset)
                offset = moved.sum(axis=p.axis).astype(np.float32)
            self._folded[p.op] = _Folded(stored, sums, offset)
        return self._folded[p.op]

    def _scaled_weights(self, p: _Product) -> np.ndarray:
        wide = p.weights.astype(np.float64)
        return wide if p.norm.rows.gain is None else wide * self._along(p, p.norm.rows.gain)

    def _along(self, p: _Product, term: Term) -> np.ndarray:
        """What a term of constants is for each index of the channel, shaped as the weights are."""
        extent = dims(p.op, "red")[p.channel]
        b = Builder()
        arrays: dict[str, np.ndarray] = {}
        for v in dict.fromkeys(leaf.value for leaf in leaves(term) if isinstance(leaf, Read)):
            array = self.pool.array(self.producers[v])
            assert array is not None
            arrays[str(self.producers[v]["name"])] = array
            b.append(self.producers[v])
        (out,) = _mapped(b, {p.channel: extent}, [term], {}, "f32")
        b.do("tensor.return", out)
        func = Func(Level.TENSOR, "main", Block((), tuple(b.ops)), (out.type,))
        (found,) = interpret(Module("numbers", (func,), (), Constants(arrays)), precision="fp64")
        shape = [extent if d == p.axis else 1 for d in range(p.weights.ndim)]
        return np.asarray(found, dtype=np.float64).reshape(shape)


def _moves(op: Op) -> bool:
    """Return whether an op gives all elements of one value another shape or order, or the same."""
    return is_copy(op) and op.result.tensor.size == op.operands[0].tensor.size


def _varies(leaf: Read | Reduction) -> bool:
    return any(not isinstance(e, int) for e in leaf.at)


def _or_nothing(term: Term | None) -> Term:
    """The term, or a number that is made of nothing."""
    return constant(1.0) if term is None else term


def _held(leaf: Read | Reduction) -> Value:
    """The value of which a leaf is an element."""
    return leaf.value if isinstance(leaf, Read) else leaf.op.result


def _mapped(
    b: Builder, par: Mapping[str, int], terms: Sequence[Term], at: Mapping[Term, tuple[Expr, ...]], dtype: str
) -> tuple[Value, ...]:
    """Append a map that gives these terms, a result each.

    at: where it reads elements that it reads elsewhere than they say.
    """
    atoms = [x for x in dict.fromkeys(a for t in terms for a in leaves(t)) if isinstance(x, Read | Reduction)]
    inner, params = scalar_body([_held(leaf).tensor.dtype for leaf in atoms])
    made: dict[Term, Value] = dict(zip(atoms, params, strict=True))

    def value(term: Term) -> Value:
        if term not in made:
            assert isinstance(term, Apply)
            args = [value(a) for a in term.args]
            if term.name != "scalar.cast" and term.type.dtype in FLOATS:
                args = [inner.cast(a, term.type.dtype) if _is_float(a) else a for a in args]
            (made[term],) = inner.emit(term.name, args, dict(term.attrs))
        return made[term]

    inner.do("scalar.yield", *(inner.cast(inner.cast(value(term), "f32"), dtype) for term in terms))
    t = TensorType(dtype, tuple(par.values()))
    return structured(
        b, "tensor.map", [_held(leaf) for leaf in atoms], par=par,
        reads=[at.get(leaf, leaf.at) for leaf in atoms], types=[t] * len(terms), body=inner.block(params),
    )  # fmt: skip


def _is_float(v: Value) -> bool:
    return isinstance(v.type, ScalarType) and v.type.dtype in FLOATS


def _times(*factors: Term | None) -> Term:
    """The product of those terms that are there, of which the first is."""
    found, *others = (f for f in factors if f is not None)
    for other in others:
        found = apply("mul", found, other)
    return found


@dataclass(frozen=True)
class _Statistics:
    """Shift and scale of each row as values; None for what the norm does without."""

    shift: Value | None
    scale: Value | None

    def moved(self, norm: _Scaled, value: Term, taken: Term | None) -> Term:
        """A value less its share of the shift (all of it without one), scaled."""
        moved = value
        if self.shift is not None:
            shift = _times(Read(self.shift, norm.row_at), taken)
            moved = apply("sub", moved, shift)
        return _times(moved, None if self.scale is None else Read(self.scale, norm.row_at))


def _statistics(b: Builder, norm: _Scaled) -> _Statistics:
    """Append the map that gives shift and scale of every row, over the rows of what they are made of."""
    parts = [part for part in (norm.rows.shift, norm.rows.scale) if part is not None]
    atoms = [x for part in parts for x in leaves(part) if isinstance(x, Read | Reduction) and _varies(x)]
    shape = _held(atoms[0]).tensor.shape
    par = {f"i{d}": n for d, n in enumerate(shape)}
    found = iter(_mapped(b, par, parts, dict.fromkeys(atoms, tuple(map(Sym, par))), "f32"))
    shift, scale = (None if part is None else next(found) for part in (norm.rows.shift, norm.rows.scale))
    return _Statistics(shift, scale)


class _Writer:
    """Writes a function's ops with a norm deferred.

    pool: takes new constants; None where the ops are only priced, for which none are computed.
    """

    def __init__(self, norm: _Norm, search: _Search, pool: ConstantPool | None) -> None:
        self.norm, self.search, self.pool = norm, search, pool
        self.b = Builder()

    def written(self, ops: Iterable[Op]) -> list[Op]:
        """The ops, in place of those that read the norm others that read what it is made of."""
        # Ops are known by their results: what another norm was written into has the same.
        norm, products = self.norm, {p.op.result: p for p in self.norm.products}
        maps = {op.result for op in norm.maps}
        inside: dict[Value, Op] = {}
        for op in ops:
            first = op.results[0] if op.results else None
            with self.b.at(op.loc):
                if first is norm.result.result:
                    self.statistics = _statistics(self.b, norm.norm)
                    inside[op.result] = self._again()
                elif first in products:
                    self._product(products[first])
                elif first in maps:
                    new = with_bodies(op, inside)
                    self.b.append(new)
                    if _moves(op):
                        inside[op.result] = new
                else:
                    self.b.append(op)
        return self.b.ops

    def _again(self) -> Op:
        """The norm from the value and its statistics, as maps compute it."""
        scaled, result = self.norm.norm, self.norm.result
        term = self.statistics.moved(scaled, scaled.rows.value, None)
        term = _times(term, scaled.rows.gain)
        if scaled.rows.offset is not None:
            term = apply("add", term, scaled.rows.offset)
        (found,) = _mapped(self.b, dims(result, "par"), [term], {}, result.result.tensor.dtype)
        made = self.b.ops[-1]
        assert made.result is found
        return made

    def _product(self, p: _Product) -> None:
        """Append the product of the value and weights that hold the gain, and the map that corrects it."""
        op, weights_at = p.op, reads(p.op)[1]
        folded = None if self.pool is None else self.search.folded(p)
        weights = self._constant(p, "scaled", op.operands[1].type, None if folded is None else folded.stored)
        at = tuple(e for d, e in enumerate(weights_at) if d != p.axis)
        t = TensorType("f32", tuple(n for d, n in enumerate(p.weights.shape) if d != p.axis))
        (sums,) = self.b.emit(
            op.name, (p.norm.rows.value.value, weights),
            {**dict(op.attrs), "reads": (p.norm.rows.value.at, weights_at)},
            types=[op.result.type], body=op.body,
        )  # fmt: skip
        par = dims(op, "par")
        taken: Term | None = None
        if self.statistics.shift is not None:
            array = None if folded is None else folded.sums
            taken = Read(self._constant(p, "sums", t, array), at)
        term = self.statistics.moved(p.norm, Read(sums, tuple(map(Sym, par))), taken)
        if p.norm.rows.offset is not None:
            array = None if folded is None else folded.offset
            term = apply("add", term, Read(self._constant(p, "offset", t, array), at))
        _mapped(self.b, par, [term], {}, "f32")
        made = self.b.ops.pop()
        self.b.append(replace(made, results=op.results))

    def _constant(self, p: _Product, kind: str, t: Type, array: np.ndarray | None) -> Value:
        name = f"{self.search.producers[p.op.operands[1]]['name']}.{kind}"
        if self.pool is not None and array is not None:
            name = self.pool.add(name, array)
        (value,) = self.b.emit("tensor.constant", (), {"name": name}, types=[t])
        return value


def _pays(norm: _Norm, search: _Search, hardware: Hardware, estimator: Estimator) -> bool:
    """Return whether the products, and what is computed beside them, are estimated to take less time so."""
    ops = _piece(norm, search)
    inside = {r for op in ops for r in op.results}
    chosen = set(ops)
    results = [
        v for v in inside if v in search.returned or any(op not in chosen for op in search.readers.get(v, []))
    ]
    end = Op("tensor.return", tuple(v for op in ops for v in op.results if v in results))
    deferred = _Writer(norm, search, None).written(ops)

    def seconds(some: Sequence[Op]) -> float:
        live = [op for op in live_ops(Block((), (*some, end))) if op.name != "tensor.constant"]
        made = {r for op in live for r in op.results}
        params = tuple(v for v in dict.fromkeys(v for op in live for v in op.operands) if v not in made)
        types = tuple(v.type for v in end.operands)
        text = kernel_text(Func(Level.TENSOR, "norm", Block(params, tuple(live)), types))
        return estimator.remembered(
            ("norm", text, hardware), lambda: estimator.program_s(params, live, hardware)
        )

    return seconds(deferred) <= GAIN * seconds(ops)


def _piece(norm: _Norm, search: _Search) -> list[Op]:
    """A norm with its statistics, the products and maps that read it, and what shares a kernel with these."""
    piece: set[Op] = set()
    todo = [norm.result]
    while todo:
        op = todo.pop()
        if op not in piece and op.name != "tensor.constant":
            piece.add(op)
            todo += [
                search.producers[v] for v in op.operands if v is not norm.value and v in search.producers
            ]
    readers = [*norm.maps, *(p.op for p in norm.products)]
    for op in readers:
        piece |= {op, *_behind(op, search), *_before(op, piece, search)}
    return [op for op in search.main.body.ops if op in piece]


def _behind(op: Op, search: _Search) -> Iterator[Op]:
    """Maps behind an op, point by point, each of which reads the one before alone."""
    while len(op.results) == 1 and len(search.readers.get(op.result, [])) == 1:
        value, (op,) = op.result, search.readers[op.result]
        if op.name != "tensor.map" or not identity_read(op, op.operands.index(value)):
            return
        yield op


def _before(op: Op, known: Collection[Op], search: _Search) -> Iterator[Op]:
    """What gives a map its other operands, point by point, back to the product that it is behind."""
    if op.name != "tensor.map":
        return
    for i, v in enumerate(op.operands):
        source = search.producers.get(v)
        alone = len(search.readers.get(v, [])) == 1
        if source is None or source in known or not alone or not identity_read(op, i):
            continue
        if source.name in ("tensor.map", "tensor.contract"):
            yield source
            yield from _before(source, known, search)
