"""Pass join-product-sums: sums over the rows of what a product computes are taken in the product's kernel."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, isqrt
from typing import Literal

from tilewright.costmodel import load_hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir import (
    Block,
    Builder,
    Expr,
    Func,
    InputError,
    Level,
    Module,
    Op,
    Ref,
    Sym,
    TensorType,
    UnsupportedError,
    Value,
    scalar_body,
    structured,
)
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import callee_of, dims, domain, fills, ranges_of, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.constant_params import WEIGHTS
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.kernels.matrix.choice import choose_matrix, has_tensor_cores, matrix_variant
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.view import MatrixView, matrix_view
from tilewright.passes.kernels.rows.moments import joined_means, joined_moments, shifted_sums
from tilewright.passes.kernels.rows.whole_sums import Runs, WholeSum, runs_of, whole_sums
from tilewright.passes.kernels.writing.column_sums import GROUP_ROWS, row_index, takes_sums
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.rewriting.values import with_indices
from tilewright.passes.tensor.joins.call_order import CallOrder, in_order
from tilewright.passes.tensor.joins.estimates import alone_s
from tilewright.passes.tensor.joins.merge import kernel_of, merged, reshapes_filled

#: bytes of the smallest array whose sums are sought
LEAST_BYTES = 1 << 20
#: rows of a part that are tried: those of a warpgroup, and of the tiles that hold whole ones
PART_ROWS = (64, 128, 256)
#: the new kernels must be estimated to save at least this share of what the sums take on their own
GAIN = 0.25
#: joining parts in two steps must be estimated to take at most this share of one step
TWICE_GAIN = 0.7


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def join_product_sums(
    module: Module, ctx: PassContext, *, when: Literal["auto", "always", "never"] = "auto"
) -> Module:
    """Add up columns of a product's results where these are written, part by part, and add the parts behind.

    rewrite:  %y = call(%x, %w, callee = @conv2d); %s, %q = call(%y, callee = @moments_of_parts);
              %mean, %var = call(%y, %s, %q, callee = @moments)
        -->   %y, %m, %v = call(%x, %w, callee = @conv2d_sums);
              %mean, %var = call(%m, %v, callee = @conv2d_parts)

    The sums are those over all rows of the product, one for each column: of its results, or of what is
    computed from them and from arrays that are read at the same points. A part is as many rows as the tiles
    of the product hold whole, whatever way the sums were cut before. Of moments (mean and squared distances)
    each part gives its own about its own mean, which are joined twice: groups of rows to parts in the
    product, parts to the whole behind. What is summed is what is stored where the graph adds up a stored
    value. when: `auto` where the estimates say that enough is saved, `always` where legal, `never`.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or not isinstance(hardware, GpuHardware):
        return module
    search = _Search(module, ctx, hardware, always=when == "always")
    while (joined := search.next()) is not None:
        search.take(joined)
    return search.module()


@dataclass(frozen=True)
class _Call:
    """A kernel with parameters, the values of @main that it is called with, and those that it gives."""

    kernel: Func
    operands: tuple[Value, ...]
    results: tuple[Value, ...]


def _seconds(calls: Sequence[_Call]) -> float:
    """The estimates of calls together."""
    return sum(estimate_of(call.kernel) for call in calls)


@dataclass(frozen=True)
class _Joined:
    """Calls, and those that replace them: a product with sums by parts, and what joins the parts."""

    calls: tuple[Op, ...]
    new: tuple[_Call, ...]


class _Search:
    """The calls of a module, some of which are replaced by joined ones."""

    def __init__(self, module: Module, ctx: PassContext, hardware: GpuHardware, *, always: bool) -> None:
        self.before, self.ctx, self.hardware, self.always = module, ctx, hardware, always
        self.kernels = {f.name: f for f in module.funcs if f.name != "main"}
        self.least_bytes = 0 if always else LEAST_BYTES
        self.order = CallOrder(module.main.body.ops)
        self.constants = {op.result for op in self.order.ops if op.name == "tensor.constant"}
        self.made: list[Func] = []
        self.names = {f.name for f in module.funcs}
        self.tried: set[tuple[int, int]] = set()

    def next(self) -> _Joined | None:
        """The next product with sums over its rows that are worth joining; None where there are no more."""
        for walk in self.order.ops:
            if not self._free(walk) or not _folds(self.kernels[callee_of(walk)]):
                continue
            for value in dict.fromkeys(walk.operands):
                product = self.order.producer.get(value)
                if (
                    product is None
                    or value.tensor.nbytes < self.least_bytes
                    or (id(walk), id(product)) in self.tried
                    or not self._free(product)
                    or not _is_product(self.kernels[callee_of(product)])
                ):
                    continue
                self.tried.add((id(walk), id(product)))
                joined = self._joined(product, value, walk)
                if joined is not None:
                    return joined
        return None

    def _free(self, op: Op) -> bool:
        kernel = kernel_of(op, self.kernels)
        return kernel is not None and not kernel.attrs

    def _joined(self, product: Op, value: Value, walk: Op) -> _Joined | None:
        """A product and the sums over the rows of one of its results as two kernels; None where they stay."""
        ends = self._ends(walk)
        joined = self._with(product, value, walk, ends)
        return self._with(product, value, walk, []) if joined is None and ends else joined

    def _with(self, product: Op, value: Value, walk: Op, ends: Sequence[Op]) -> _Joined | None:
        """The same where these calls behind the sums become a part of what joins their parts."""
        sums = self.order.sorted([walk, *ends])
        outside = [v for v in walk.operands if v not in product.results]
        if not self.order.convex(sums) or self.order.depends(outside, product):
            return None
        if any(v in product.results and v is not value for call in sums for v in call.operands):
            return None
        if reshapes_filled(sums, self.kernels):
            return None
        outputs = self._read_elsewhere(sums)
        if any(v in outputs for v in walk.results) and ends:
            return None
        kernel, arguments, returned = merged(sums, self.kernels, outputs, callee_of(walk), once=True)
        joint = _Joint(self.kernels[callee_of(product)], product, value, kernel, arguments, returned)
        kept = [v for v in product.results if any(op not in sums for op in self.order.readers.get(v, ()))]
        best = self._best(joint, kept)
        if best is None:
            return None
        calls = self.order.sorted([product, *sums])
        apart_s = sum(self._alone(call) for call in calls)
        if not self.always and _seconds(best) > apart_s - GAIN * self._alone(walk):
            return None
        return _Joined(tuple(calls), best)

    def _ends(self, walk: Op) -> list[Op]:
        """The calls that read parts which a walk gives, where all may join; none where it is whole."""
        readers = [op for v in walk.results for op in self.order.readers.get(v, ())]
        found = list(dict.fromkeys(readers))
        parts = any(v.tensor.rank > 1 for v in walk.results)
        if not parts or not all(self._free(op) for op in found):
            return []
        return found if all(_folds_or_maps(self.kernels[callee_of(op)]) for op in found) else []

    def _read_elsewhere(self, calls: Sequence[Op]) -> set[Value]:
        own = set(map(id, calls))
        return {
            v for call in calls for v in call.results
            if any(id(op) not in own for op in self.order.readers.get(v, ()))
        }  # fmt: skip

    def _alone(self, call: Op) -> float:
        kernel = self.kernels[callee_of(call)]
        if _is_product(kernel):
            kernel = _with_weights(kernel, call.operands, self.constants)
        return alone_s(kernel, self.ctx, self.hardware)

    def _best(self, joint: _Joint, kept: Sequence[Value]) -> tuple[_Call, ...] | None:
        """The calls by the parts that take the least time."""
        points = joint.points(self.ctx)
        if points is None:
            return None
        product = _with_weights(points.product, points.operands, self.constants)
        points = replace(points, product=product)
        found = (joint.by_parts(points, rows, kept, self.ctx, self.hardware) for rows in PART_ROWS)
        return min((calls for calls in found if calls is not None), key=_seconds, default=None)

    # -- rewriting -------------------------------------------------------------------------------------------
    def take(self, joined: _Joined) -> None:
        """Put the new calls in the place of the old ones."""
        own, base = set(map(id, joined.calls)), callee_of(joined.calls[0])
        new = []
        for i, call in enumerate(joined.new):
            name = numbered(f"{base}_{'parts' if i else 'sums'}", self.names)
            self.names.add(name)
            self.made.append(replace(call.kernel, name=name))
            attrs = (("callee", Ref(name)),)
            new.append(Op("tensor.call", call.operands, attrs, call.results, None, joined.calls[0].loc))
        first = self.order.position[id(joined.calls[0])]
        ops: list[Op] = []
        for i, op in enumerate(self.order.ops):
            if i == first:
                ops += new
            elif id(op) not in own:
                ops.append(op)
        self.order = CallOrder(in_order(ops))

    def module(self) -> Module:
        """The module with all that was taken."""
        if not self.made:
            return self.before
        main, ops = self.before.main, self.order.ops
        called = {callee_of(op) for op in ops if op.name == "tensor.call"}
        rest = [f for f in self.before.funcs if f is not main and f.name in called]
        body = Block(main.params, ops)
        return self.before.with_funcs((*self.made, *rest, main.with_body(body)))


def _with_weights(kernel: Func, operands: Sequence[Value], constants: Collection[Value]) -> Func:
    """A product that knows which of its factors are constants, as `mark-weights` will tell it."""
    return kernel.with_attrs(**{WEIGHTS: tuple(i for i, v in enumerate(operands) if v in constants)})


def _folds(kernel: Func) -> bool:
    """Return whether a kernel reduces, and maps besides."""
    return any(op.name == "tensor.reduce" for op in kernel.body.ops) and _folds_or_maps(kernel)


def _folds_or_maps(kernel: Func) -> bool:
    """Return whether a kernel does nothing but reduce and map, one result at a time."""
    names = {"tensor.reduce", "tensor.map"}
    return all(op.name in names and len(op.results) == 1 for op in kernel.body.ops[:-1])


def _is_product(kernel: Func) -> bool:
    """Return whether a kernel multiplies, and maps what goes in and comes out."""
    names = [op.name for op in kernel.body.ops[:-1]]
    return names.count("tensor.contract") == 1 and set(names) <= {"tensor.contract", "tensor.map"}


@dataclass(frozen=True)
class _Points:
    """A product's kernel with what is summed among its results, its dimensions merged.

    sums: those over its rows, and the rows of each of their results. operands: what it is called with.
    values: what each of the sums adds up, inside the kernel.
    """

    sums: Mapping[WholeSum, Runs]
    product: Func
    operands: tuple[Value, ...]
    values: tuple[Value, ...]


class _Joint:
    """A product's kernel and one that sums over the rows of what it computes.

    kernel: the sums and what finishes them, called with `arguments`; it gives `returned`.
    """

    def __init__(
        self,
        product: Func,
        call: Op,
        value: Value,
        kernel: Func,
        arguments: Sequence[Value],
        returned: Sequence[Value],
    ) -> None:
        self.product, self.call, self.value = product, call, value
        self.kernel, self.arguments, self.returned = kernel, arguments, returned
        self.maker = {r: op for op in kernel.body.ops for r in op.results}
        self.by_param = dict(zip(kernel.params, arguments, strict=True))
        (self.contract,) = (op for op in product.body.ops if op.name == "tensor.contract")
        inside = product.body.ops[-1].operands[call.results.index(value)]
        self.summed = inside
        self.of_value = [p for p, v in self.by_param.items() if v is value]

    def by_parts(
        self, points: _Points, rows: int, kept: Sequence[Value], ctx: PassContext, hardware: GpuHardware
    ) -> tuple[_Call, ...] | None:
        """The product by parts of so many rows, and what joins these; None where that is not possible."""
        sums, func = points.sums, points.product
        (op,) = (o for o in func.body.ops if o.name == "tensor.contract")
        view = matrix_view(func, op)
        if view is None or not takes_sums(view) or any(runs.length % rows for runs in sums.values()):
            return None
        results = dict(zip(self.call.results, func.body.ops[-1].operands, strict=False))
        b = Builder(op.loc)
        parts: dict[WholeSum, tuple[Value, ...]] = {}
        for whole, value in zip(sums, points.values, strict=True):
            parts[whole] = _parts_of(b, view, whole, value, rows)
        given = [(v, results[v]) for v in kept]
        made = tuple(v for whole in sums for v in parts[whole])
        returned = (*(r for _, r in given), *made)
        b.do("tensor.return", *returned)
        body = Block(func.params, (*func.body.ops[:-1], *b.ops))
        body = body.with_ops(live_ops(body))
        kernel = Func(Level.TENSOR, "product", body, tuple(v.type for v in returned), func.attrs)
        product = self._chosen(kernel, ctx, hardware)
        outer = {whole: tuple(Value(v.type, "parts") for v in parts[whole]) for whole in sums}
        ends = None if product is None else self._ends(sums, outer, rows, ctx)
        if product is None or ends is None:
            return None
        gives = (*(v for v, _ in given), *(v for whole in sums for v in outer[whole]))
        return (_Call(product, points.operands, gives), *ends)

    def _chosen(self, kernel: Func, ctx: PassContext, hardware: GpuHardware) -> Func | None:
        """The product with sums and its parameters; None where tensor cores cannot, or nothing fits."""

        def answer() -> Func | None:
            (op,) = (o for o in kernel.body.ops if o.name == "tensor.contract")
            view = matrix_view(kernel, op)
            assert view is not None
            problem = matrix_problem(kernel, view)
            if not has_tensor_cores(hardware, problem):
                return None
            try:
                return matrix_variant(kernel, view, choose_matrix(problem, hardware), hardware)
            except InputError:
                return None  # no tile holds whole parts

        return ctx.estimator.remembered(("product sums", kernel_text(kernel), hardware), answer)

    # -- what is summed --------------------------------------------------------------------------------------
    def points(self, ctx: PassContext) -> _Points | None:
        """The product with what is summed; None where that is not computed at the product's own points."""
        if len(self.of_value) != 1 or self.of_value[0].tensor != self.summed.tensor:
            return None
        if self.summed.tensor.shape != tuple(dims(self.contract, "par").values()):
            return None
        writer = _PointWriter(self)
        sums: dict[WholeSum, Runs] = {}
        values: list[Value] = []
        for whole in whole_sums(self.kernel):
            if not writer.reads_value(whole.op):
                if any(v.tensor.size >= self.summed.tensor.size for v in whole.op.operands):
                    return None  # a walk along another array would be left to what joins the parts
                continue
            runs = writer.runs(whole)
            point = None if runs is None else writer.summand(whole)
            if runs is None or point is None:
                return None
            values.append(point)
            sums[whole] = runs
        if not sums:
            return None
        own = self.product.body.ops
        results = (*own[-1].operands, *values)
        last = Op("tensor.return", results)
        params = (*self.product.params, *writer.params.values())
        body = Block(params, (*own[:-1], *writer.b.ops, last))
        func = Func(Level.TENSOR, "points", body, tuple(v.type for v in results))
        canonical = ctx.estimator.canonical(func, ctx)
        summed = canonical.body.ops[-1].operands[len(own[-1].operands) :]
        return _Points(sums, canonical, (*self.call.operands, *writer.params), tuple(summed))

    # -- what joins the parts --------------------------------------------------------------------------------
    def _ends(
        self,
        sums: Mapping[WholeSum, Runs],
        parts: Mapping[WholeSum, tuple[Value, ...]],
        rows: int,
        ctx: PassContext,
    ) -> tuple[_Call, ...] | None:
        """What finishes the sums from parts of so many rows: one call, or two where parts are many."""
        whole = self._end(sums, parts, rows, ctx)
        count = gcd(*(runs.length // rows for runs in sums.values()))
        together = max(n for n in range(1, isqrt(count) + 1) if count % n == 0)
        if whole is None or together == 1:
            return None if whole is None else (whole,)
        fewer = {
            s: tuple(Value(_fewer_rows(v.tensor, together), "parts") for v in values)
            for s, values in parts.items()
        }
        before, last = self._fewer(parts, fewer, rows, ctx), self._end(sums, fewer, rows * together, ctx)
        if before is None or last is None or _seconds((before, last)) > TWICE_GAIN * _seconds((whole,)):
            return (whole,)
        return before, last

    def _fewer(
        self,
        parts: Mapping[WholeSum, tuple[Value, ...]],
        fewer: Mapping[WholeSum, tuple[Value, ...]],
        rows: int,
        ctx: PassContext,
    ) -> _Call | None:
        """The call that joins some parts each to fewer ones."""
        b = Builder()
        params = {v: Value(v.type, "parts") for values in parts.values() for v in values}
        joined: list[Value] = []
        for whole, values in parts.items():
            count, columns = fewer[whole][0].tensor.shape
            part = ("each", values[0].tensor.shape[0] // count)
            at = (Sym("part") * part[1] + Sym("each"), Sym("column"))
            over = {"part": count, "column": columns}
            joined += _joined(b, whole, [params[v] for v in values], at, over, part, rows)
        b.do("tensor.return", *joined)
        kernel = Func(
            Level.TENSOR, "fewer", Block(tuple(params.values()), tuple(b.ops)), tuple(v.type for v in joined)
        )
        chosen = _with_parameters(kernel, ctx)
        results = tuple(v for values in fewer.values() for v in values)
        return None if chosen is None else _Call(chosen, tuple(params), results)

    def _end(
        self,
        sums: Mapping[WholeSum, Runs],
        parts: Mapping[WholeSum, tuple[Value, ...]],
        rows: int,
        ctx: PassContext,
    ) -> _Call | None:
        """The call that finishes the sums from parts; None where something reads the product besides."""
        b = Builder()
        env: dict[Value, Value] = {}
        params: dict[Value, Value] = {}  # of the parts
        first = {r: whole for whole in parts for r in whole.results[:1]}
        for op in self.kernel.body.ops:
            for r in op.results:
                if r in first:
                    whole = first[r]
                    runs, count = sums[whole], sums[whole].length // rows
                    given = [params.setdefault(v, Value(v.type, "parts")) for v in parts[whole]]
                    over = {f"at{i}": n for i, n in enumerate(r.tensor.shape)}
                    names = dict(zip(whole.kept, map(Sym, over), strict=True))
                    part: Expr = Sym("part")
                    for d, step in runs.steps.items():
                        part += names[d] * (step * count)
                    at = (part, names[runs.column])
                    finished = _joined(b, whole, given, at, over, ("part", count), rows)
                    env.update(zip(whole.results, finished, strict=True))
            if not op.results or any(r not in env for r in op.results):
                b.append(op.with_operands(tuple(env.get(v, v) for v in op.operands)))
        block = Block((*params.values(), *self.kernel.params), tuple(b.ops))
        ops = live_ops(block)
        used = {v for op in ops for v in op.operands}
        outer = [p for p in self.kernel.params if p in used]
        if any(self.by_param[p] is self.value for p in outer):
            return None  # something else reads what the product gives
        block = Block((*params.values(), *outer), ops)
        end = Func(Level.TENSOR, "end", block, tuple(v.type for v in ops[-1].operands))
        chosen = _with_parameters(end, ctx)
        operands = (*params, *(self.by_param[p] for p in outer))
        return None if chosen is None else _Call(chosen, operands, tuple(self.returned))


def _fewer_rows(t: TensorType, together: int) -> TensorType:
    return TensorType(t.dtype, (t.shape[0] // together, *t.shape[1:]))


def _with_parameters(kernel: Func, ctx: PassContext) -> Func | None:
    """The kernel with the parameters that the model chooses; None where no family takes it."""

    def answer() -> Func | None:
        try:
            return ctx.estimator.kernel(kernel, ctx)
        except UnsupportedError:
            return None

    question = ("parts of product sums", kernel_text(kernel), ctx.hardware, ctx.target)
    return ctx.estimator.remembered(question, answer)


class _PointWriter:
    """Writes what sums add up as maps over the product's own points."""

    def __init__(self, joint: _Joint) -> None:
        self.joint, self.b = joint, Builder(joint.contract.loc)
        self.params: dict[Value, Value] = {}  # by the value of @main
        self.par = dims(joint.contract, "par")
        self.made: dict[tuple[Value, tuple[Expr, ...]], Value] = {}

    def reads_value(self, op: Op) -> bool:
        """Return whether an op reads what the product gives, perhaps through maps."""
        return any(
            v in self.joint.of_value or (v in self.joint.maker and self.reads_value(self.joint.maker[v]))
            for v in op.operands
        )

    def runs(self, whole: WholeSum) -> Runs | None:
        """The rows of the product that each result of a sum is of; None where it is of something else."""
        column = [d for d in self.par if self.par[d] > 1][-1:]
        places = self._all_places(whole)
        if not column or len(places) != 1:
            return None
        (own,), (place,) = self.joint.of_value, places
        found = runs_of(whole, place, own.tensor.shape, list(self.par).index(column[0]))
        moments_of_runs = found is not None and found.steps and whole.value is not None
        return None if moments_of_runs else found

    def _all_places(self, whole: WholeSum) -> set[tuple[Expr, ...]]:
        op, (own,) = whole.op, self.joint.of_value
        if whole.value is None:
            return self._places(op, {d: Sym(d) for d in domain(op)}, ranges_of(op))
        return {tuple(simplify(e, ranges_of(op)) for e in whole.at)} if whole.value is own else set()

    def summand(self, whole: WholeSum) -> Value | None:
        """What a sum adds up, one value for each point of the product; None where that is not possible."""
        if whole.value is not None:
            return self.joint.summed
        (place,) = self._all_places(whole)
        return self._summand_of_plain(whole, place)

    def _places(
        self, op: Op, env: Mapping[str, Expr], ranges: Mapping[str, tuple[int, int]]
    ) -> set[tuple[Expr, ...]]:
        """Where an op reads what the product gives, in the dimensions of the walk."""
        found: set[tuple[Expr, ...]] = set()
        for v, at in zip(op.operands, reads(op), strict=True):
            index = tuple(simplify(substitute(e, env), ranges) for e in at)
            if v in self.joint.of_value:
                found.add(index)
            elif v in self.joint.maker:
                made = self.joint.maker[v]
                found |= self._places(made, dict(zip(dims(made, "par"), index, strict=True)), ranges)
        return found

    def _summand_of_plain(self, whole: WholeSum, place: tuple[Expr, ...]) -> Value | None:
        """What a plain sum adds up: what is stored where it adds up that alone, else a map in its type."""
        op, (own,) = whole.op, self.joint.of_value
        assert op.body is not None
        join = f"scalar.{whole.kind}"
        if op.operands == (own,) and [o.name for o in op.body.ops] in (
            [join, "scalar.yield"],
            ["scalar.cast", join, "scalar.yield"],
        ):
            return self.joint.summed
        ranges = ranges_of(op)
        operands = self._operands(op, {d: Sym(d) for d in domain(op)}, place, ranges)
        if operands is None:
            return None
        *inner, last, end = op.body.ops
        acc = op.body.params[-1]
        rest = [v for v in last.operands if v is not acc]
        b = Builder(op.loc)
        for o in inner:
            b.append(o)
        total = rest[0] if last.name == join else b.value("scalar.mul", *rest)
        b.append(end.with_operands((total,)))
        body = Block(op.body.params[:-1], tuple(b.ops))
        return self._map(replace(op, body=body), operands, place, ranges, op.result.tensor.dtype)

    def _map(
        self,
        op: Op,
        operands: list[tuple[Value, tuple[Expr, ...]]],
        place: tuple[Expr, ...],
        ranges: Mapping[str, tuple[int, int]],
        dtype: str,
        env: Mapping[str, Expr] | None = None,
    ) -> Value | None:
        """Append the body of an op as a map over the product's points."""
        failed: list[Expr] = []

        def moved(e: Expr) -> Expr:
            new = self._moved(simplify(substitute(e, env or {}), ranges), place)
            if new is None:
                failed.append(e)
                return 0
            return new

        body = with_indices(op, moved).body
        assert body is not None
        if failed:
            return None
        (out,) = structured(
            self.b, "tensor.map", [v for v, _ in operands], par=self.par, reads=[at for _, at in operands],
            body=body, types=[TensorType(dtype, tuple(self.par.values()))],
        )  # fmt: skip
        return out

    def _operands(
        self,
        op: Op,
        env: Mapping[str, Expr],
        place: tuple[Expr, ...],
        ranges: Mapping[str, tuple[int, int]],
    ) -> list[tuple[Value, tuple[Expr, ...]]] | None:
        """What an op of the sums reads, as values of the product's kernel, and where; None if it cannot."""
        if any(fill is not None for fill in fills(op)):
            return None
        found: list[tuple[Value, tuple[Expr, ...]]] = []
        for v, at in zip(op.operands, reads(op), strict=True):
            index = tuple(simplify(substitute(e, env), ranges) for e in at)
            element = self._element(v, index, place, ranges)
            if element is None:
                return None
            found.append(element)
        return found

    def _element(
        self,
        v: Value,
        index: tuple[Expr, ...],
        place: tuple[Expr, ...],
        ranges: Mapping[str, tuple[int, int]],
    ) -> tuple[Value, tuple[Expr, ...]] | None:
        own = tuple(map(Sym, self.par))
        if v in self.joint.of_value:
            return (self.joint.summed, own) if index == place else None
        if v in self.joint.by_param:
            at = [self._moved(e, place) for e in index]
            if any(e is None for e in at):
                return None
            outer = self.joint.by_param[v]
            known = self._known(outer, v)
            return known, tuple(e for e in at if e is not None)
        made = self.joint.maker[v]
        if made.name != "tensor.map":
            return None
        key = v, index
        if key not in self.made:
            env = dict(zip(dims(made, "par"), index, strict=True))
            operands = self._operands(made, env, place, ranges)
            if operands is None:
                return None
            value = self._map(made, operands, place, ranges, v.tensor.dtype, env)
            if value is None:
                return None
            self.made[key] = value
        return self.made[key], own

    def _known(self, outer: Value, inner: Value) -> Value:
        """The parameter of the product's kernel that holds a value, a new one where it has none."""
        for p, v in zip(self.joint.product.params, self.joint.call.operands, strict=True):
            if v is outer and p.type == inner.type:
                return p
        return self.params.setdefault(outer, Value(inner.type, inner.hint))

    def _moved(self, e: Expr, place: tuple[Expr, ...]) -> Expr | None:
        """An index in the dimensions of a walk as one in those of the product."""
        for at, d in zip(place, self.par, strict=True):
            if e == at and not isinstance(e, int):
                return Sym(d)
        env: dict[str, Expr] = {
            at.name: Sym(d) for at, d in zip(place, self.par, strict=True) if isinstance(at, Sym)
        }
        return substitute(e, env) if set(symbols(e)) <= set(env) else None


def _parts_of(b: Builder, view: MatrixView, whole: WholeSum, value: Value, rows: int) -> tuple[Value, ...]:
    """Append the sums of each part of a product's rows: groups of rows, then these."""
    columns = view.size(view.columns)
    parts, groups = view.size(view.rows) // rows, rows // GROUP_ROWS
    over = {"part": parts, "group": groups, "column": columns}
    of_part = {"part": parts, "column": columns}
    dtype = whole.results[-1].tensor.dtype
    ranges = {**{d: (0, n - 1) for d, n in over.items()}, "row": (0, GROUP_ROWS - 1)}
    begin = (Sym("part") * groups + Sym("group")) * GROUP_ROWS
    own, first = (
        row_index(view, simplify(row, ranges), Sym("column"), ranges) for row in (begin + Sym("row"), begin)
    )
    group_at = tuple(map(Sym, over))
    if whole.value is not None:
        shifted = shifted_sums(b, value, over, {"row": GROUP_ROWS}, own, first, dtype)
        return joined_moments(b, value, first, shifted, group_at, of_part, ("group", groups), GROUP_ROWS)
    sums = _folded(b, whole, value, over, {"row": GROUP_ROWS}, own)
    return (_folded(b, whole, sums, of_part, {"group": groups}, group_at),)


def _joined(
    b: Builder,
    whole: WholeSum,
    parts: Sequence[Value],
    at: tuple[Expr, ...],
    over: Mapping[str, int],
    part: tuple[str, int],
    rows: int,
) -> tuple[Value, ...]:
    """Append what a sum is of parts of so many rows, which are read at `at`, for each point of `over`."""
    if whole.value is not None:
        means, squares = parts
        return joined_means(b, means, squares, at, over, part, rows)
    return (_folded(b, whole, parts[0], over, dict([part]), at),)


def _folded(
    b: Builder,
    whole: WholeSum,
    value: Value,
    over: Mapping[str, int],
    within: Mapping[str, int],
    at: tuple[Expr, ...],
) -> Value:
    """Append the sum of a value over some dimensions, of the kind of `whole`."""
    dtype = whole.results[-1].tensor.dtype
    start: tuple[float, ...] = whole.op["init"]  # type: ignore[assignment]
    inner, (x, acc) = scalar_body([value.tensor.dtype, dtype])
    inner.do("scalar.yield", inner.value(f"scalar.{whole.kind}", inner.cast(x, dtype), acc))
    (out,) = structured(
        b, "tensor.reduce", [value], par=over, red=within, reads=[at], init=start,
        body=inner.block((x, acc)), types=[TensorType(dtype, tuple(over.values()))],
    )  # fmt: skip
    return out
