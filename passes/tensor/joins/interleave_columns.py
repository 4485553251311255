"""Pass interleave-columns: products and the maps that combine their columns pairwise become one product."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import Block, Func, Level, Module, Op, Pairs, Ref, Sym, TensorType, Value
from tilewright.ir.expr import Expr, substitute
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Attr
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import callee_of, dims, fills, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.constant_params import WEIGHTS
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.column_members import GROUP, column_of, whole_groups
from tilewright.passes.kernels.kernel_problem import contract_roles
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.rewriting.values import (
    copied_ops,
    making,
    producers,
    readers,
    rename_dims,
    with_indices,
)
from tilewright.passes.tensor.joins.estimates import alone_s
from tilewright.passes.tensor.joins.merge import (
    joinable_kernels,
    kernel_of,
    merged,
    reshapes_filled,
)

#: the kernel is taken where its estimate is at most this share of those of its parts
GAIN = 0.97
#: the ops of kernels that are taken
_TAKEN = ("tensor.contract", "tensor.map")


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def interleave_columns(
    module: Module, ctx: PassContext, *, when: Literal["auto", "always", "never"] = "auto"
) -> Module:
    """Make one product of products of the same rows whose results a map combines, column by column.

    rewrite:  %g = call(%x, %w, callee = @product): [m, 2 n]; %y = call(%g, callee = @maps), which reads %g at
              [i, j] and [i, j + n]
        -->   %y = call(%x, %v, callee = @maps_interleaved): [m, n], whose maps read the product at
              [i, j // 8 * 16 + j % 8] and [i, j // 8 * 16 + j % 8 + 8]; %v: the rows of %w in that order
    rewrite:  %g = call(%x, %w, callee = @gate); %y = call(%x, %v, %g, callee = @up), whose maps read %g
        -->   %y = call(%x, %u, callee = @up_interleaved); %u: the rows of %w and of %v, in turns of eight

    An epilogue computes a result from sums that its thread has. Gates of feed-forward layers (GLU, SwiGLU,
    GEGLU) multiply two columns that lie far apart: both were stored, and read by a kernel of maps or by that
    of the second product. With the columns of both in turns, a thread has the two sums, and only the result
    is stored. Any number of columns and any maps are taken; factors that are interleaved must be constants,
    and get zeros behind columns that eight does not divide.
    when: `auto` where the estimate is at most 0.97 of the sum of the kernels apart, `always` where some
    kernel computes it, `never`.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or isinstance(hardware, CpuHardware):
        return module
    network = _Network(module, ctx, hardware, always=when == "always")
    for op in module.main.body.ops:
        for calls in network.groups(op):
            if network.taken(calls):
                break
    return network.finished()


@dataclass(frozen=True)
class _Member:
    """What of a product's second factor, a parameter of a kernel, is interleaved: columns from `first` on."""

    weights: Value
    first: int


@dataclass(frozen=True)
class _Interleaved:
    """A kernel around one product of interleaved columns.

    members: in the order in which their groups of columns follow one another; extent: columns of each. axis:
    that of the columns in the second factor; factor: the parameter that holds it. kept: the parameters of the
    kernels apart, merged, that the others are, by position.
    """

    kernel: Func
    members: tuple[_Member, ...]
    extent: int
    axis: int
    factor: Value
    kept: tuple[Value, ...]


class _Network:
    """The calls of a module while some become one."""

    def __init__(self, module: Module, ctx: PassContext, hardware: Hardware, *, always: bool) -> None:
        self.module, self.ctx, self.hardware, self.always = module, ctx, hardware, always
        self.kernels = joinable_kernels(module)
        self.readers = readers(module.main.body)
        self.producers = producers(module.main.body)
        self.numbers = {op: i for i, op in enumerate(module.main.body.ops)}
        self.names = {f.name for f in module.funcs}
        self.pool = ConstantPool(module.constants)
        self.constants: dict[tuple[object, ...], Op] = {}
        self.chosen: dict[str, _Interleaved | None] = {}
        self.instead: dict[Op, tuple[Op, ...]] = {}

    def groups(self, last: Op) -> list[tuple[Op, ...]]:
        """Calls that may become one: products of the same rows which `last` alone reads, and that."""
        kernel = kernel_of(last, self.kernels)
        if kernel is None or any(op.name not in _TAKEN for op in kernel.body.ops[:-1]):
            return []
        own = self._rows(last)
        if own is None and any(op.name == "tensor.contract" for op in kernel.body.ops):
            return []
        by_rows: dict[Value | Op, list[Op]] = {}
        for v in dict.fromkeys(last.operands):
            call = self.producers.get(v)
            rows = self._rows(call) if call is not None else None
            if call is None or rows is None or call in self.instead:
                continue
            if all(self.readers[r] == [last] for r in call.results) and call not in by_rows.get(rows, []):
                by_rows.setdefault(rows, []).append(call)
        return [
            (*sorted(calls, key=self.numbers.__getitem__), last)
            for rows, calls in by_rows.items()
            if own is None or own is rows
        ]

    def _rows(self, call: Op) -> Value | Op | None:
        """The first factor of a call of one product and maps: an array, or the call where that computes it.

        None of other calls, and where the second factor is no constant that is known.
        """
        kernel = kernel_of(call, self.kernels)
        products = [] if kernel is None else [op for op in kernel.body.ops if op.name == "tensor.contract"]
        if kernel is None or len(products) != 1 or len(products[0].operands) != 2:
            return None
        rows, weights = products[0].operands
        if weights not in kernel.params:
            return None
        constant = self.producers.get(call.operands[kernel.params.index(weights)])
        if self.pool.array(constant) is None:
            return None
        return call.operands[kernel.params.index(rows)] if rows in kernel.params else call

    def taken(self, calls: Sequence[Op]) -> bool:
        """Let one call stand for all of them, where that is possible and pays."""
        if reshapes_filled(calls, self.kernels):
            return False
        outputs = set(calls[-1].results)
        kernel, arguments, returned = merged(
            calls, self.kernels, outputs, f"{callee_of(calls[-1])}_interleaved", once=True
        )
        if list(returned) != list(calls[-1].results):
            return False
        text = kernel_text(kernel)
        if text not in self.chosen:
            self.chosen[text] = self._worth(kernel, calls)
        chosen = self.chosen[text]
        if chosen is None:
            return False
        # Equal kernels have the same parameters in the same order.
        given = dict(zip(chosen.kept, arguments, strict=True))
        made = self._constant(chosen, given)
        operands = tuple(made.result if p is chosen.factor else given[p] for p in chosen.kernel.params)
        attrs = (("callee", Ref(chosen.kernel.name)),)
        call = Op("tensor.call", operands, attrs, calls[-1].results, None, calls[-1].loc)
        self.instead |= dict.fromkeys(calls, ())
        self.instead[calls[-1]] = (made, call)
        return True

    def _worth(self, kernel: Func, calls: Sequence[Op]) -> _Interleaved | None:
        """The kernel of the calls; None where there is none, or the calls are as fast."""
        found = interleaved(kernel)
        if found is None:
            return None
        positions = (found.kernel.params.index(found.factor),)
        seconds = self._seconds(found.kernel, positions)
        if not seconds:
            return None
        if not self.always:
            apart_s = sum(self._seconds(self.kernels[callee_of(c)], self._constants_of(c)) for c in calls)
            if seconds > GAIN * apart_s:
                return None
        named = replace(found.kernel, name=numbered(kernel.name, self.names))
        self.names.add(named.name)
        return replace(found, kernel=named)

    def _constants_of(self, call: Op) -> tuple[int, ...]:
        made = [self.producers.get(v) for v in call.operands]
        return tuple(i for i, op in enumerate(made) if op is not None and op.name == "tensor.constant")

    def _seconds(self, kernel: Func, constants: tuple[int, ...]) -> float:
        """Estimated seconds of a kernel with these constants; 0 where nothing computes it."""
        products = any(op.name == "tensor.contract" for op in kernel.body.ops)
        return alone_s(
            kernel.with_attrs(**{WEIGHTS: constants}) if products else kernel, self.ctx, self.hardware
        )

    def _constant(self, chosen: _Interleaved, given: Mapping[Value, Value]) -> Op:
        """A constant of the interleaved columns."""
        sources = [self.producers[given[m.weights]] for m in chosen.members]
        order = ((given[m.weights], m.weights.tensor.shape, m.first) for m in chosen.members)
        key = (*order, chosen.extent, chosen.axis)
        if key in self.constants:
            return self.constants[key]
        extent, columns = chosen.extent, whole_groups(chosen.extent)
        parts = []
        for m, source in zip(chosen.members, sources, strict=True):
            array = self.pool.array(source)
            assert array is not None  # calls of other factors are in no group
            whole = np.moveaxis(array.reshape(m.weights.tensor.shape), chosen.axis, 0)
            part = np.zeros((columns, *whole.shape[1:]), whole.dtype)
            part[:extent] = whole[m.first : m.first + extent]
            parts.append(part.reshape(columns // GROUP, GROUP, *part.shape[1:]))
        stacked = np.stack(parts, axis=1)
        rows = stacked.reshape(len(parts) * columns, *stacked.shape[3:])
        first = sources[0]
        array = np.ascontiguousarray(np.moveaxis(rows, 0, chosen.axis))
        name = self.pool.add(f"{first['name']}.interleaved", array)
        t = chosen.factor.tensor
        result = Value(TensorType(t.dtype, t.shape), first.result.hint)
        self.constants[key] = replace(first.with_attrs(name=name), results=(result,))
        return self.constants[key]

    def finished(self) -> Module:
        """The module with the calls that were taken."""
        if not self.instead:
            return self.module
        main, placed = self.module.main, set[Op]()
        ops: list[Op] = []
        for op in main.body.ops:
            for new in self.instead.get(op, (op,)):
                if new not in placed:
                    ops.append(new)
                    placed.add(new)
        main = main.with_body(main.body.with_ops(tuple(ops)))
        main = main.with_body(main.body.with_ops(tuple(live_ops(main.body))))
        called = {callee_of(op) for op in main.body.ops if op.name == "tensor.call"}
        funcs = [main if f is self.module.main else f for f in self.module.funcs]
        funcs = [f for f in funcs if f.name == "main" or f.name in called]
        funcs += [f.kernel for f in self.chosen.values() if f is not None and f.kernel.name in called]
        return self.module.with_funcs(tuple(funcs)).with_constants(self.pool.constants)


def interleaved(kernel: Func) -> _Interleaved | None:
    """A kernel of products and maps as one product of interleaved columns; None where it is no such kernel.

    All products have the same first factor at the same places, which maps of the kernel may compute where
    there is one product. Every result reads two or more columns of them, at distances that do not depend on
    where it is, in its own row.
    """
    ops = kernel.body.ops[:-1]
    contracts = [op for op in ops if op.name == "tensor.contract"]
    if not contracts or any(op.name not in _TAKEN for op in ops):
        return None
    anchor = contracts[0]
    columns = [d for d in contract_roles(anchor).columns if dims(anchor, "par")[d] > 1]
    at = reads(anchor)[1]
    # Two indices of one factor that name the columns would have to be permuted together.
    named = [i for i, e in enumerate(at) if len(columns) == 1 and e == Sym(columns[0])]
    plain = all(isinstance(e, Sym) for e in at) and len(set(at)) == len(at)
    if len(named) != 1 or not plain or not all(_is_alike(anchor, op, kernel) for op in contracts):
        return None
    before = making(producers(kernel.body), anchor.operands[:1])
    if anchor in before or (before and len(contracts) > 1):
        return None
    instances = _Instances(kernel, anchor, columns[0])
    found = [instances.value(v, 0) for v in kernel.body.ops[-1].operands]
    returned = [v for v in found if v is not None]
    members = instances.in_order()
    if len(returned) < len(found) or members is None:
        return None
    return _with_one_product(kernel, before, anchor, instances, members, returned, named[0])


def _is_alike(anchor: Op, op: Op, kernel: Func) -> bool:
    """Return whether a product differs from another one in nothing but its second factor, a parameter."""
    rows, weights = anchor.operands[0], op.operands[1]
    read = [v for x in kernel.body.ops for v in x.operands]
    if len(op.operands) != 2 or op.operands[0] is not rows:
        return False
    if weights not in kernel.params or weights is rows or read.count(weights) != 1:
        return False
    return op is anchor or _alone(op, anchor) == _alone(anchor, anchor)


def _alone(op: Op, anchor: Op) -> str:
    """The text of a kernel of one product, its dimensions called as those of another one."""
    own, other = ([*dims(x, "par"), *dims(x, "red")] for x in (op, anchor))
    if len(own) != len(other):
        return ""
    # New names first: some may be those of other dimensions.
    op = rename_dims(op, {d: f"product.{i}" for i, d in enumerate(own)})
    op = rename_dims(op, {f"product.{i}": d for i, d in enumerate(other)})
    block = Block(op.operands, (op, Op("tensor.return", op.results)))
    return kernel_text(Func(Level.TENSOR, "product", block, tuple(r.type for r in op.results)))


class _Instances:
    """The maps of a kernel, once for every distance of columns at which its results need what they yield.

    A value at a distance is what the kernel had in the same row so many columns further.
    """

    def __init__(self, kernel: Func, anchor: Op, column: str) -> None:
        self.kernel, self.column = kernel, column
        self.producers = producers(kernel.body)
        self.axis = list(dims(anchor, "par")).index(column)
        results = [self.producers.get(v) for v in kernel.body.ops[-1].operands]
        extents = [list(dims(op, "par").values()) for op in results if op is not None]
        self.par = dict(dims(anchor, "par"))
        if extents and all(len(e) == len(self.par) for e in extents):
            self.par[column] = extents[0][self.axis]
        self.ranges = {d: (0, n - 1) for d, n in self.par.items()}
        self.ops: list[Op] = []
        self.made: dict[tuple[Op, int], tuple[Value, ...] | None] = {}
        self.members: dict[tuple[Op, int], Value] = {}

    def value(self, v: Value, distance: int) -> Value | None:
        """A value of the kernel at a distance; None where it is not of the rows and columns of results."""
        op = self.producers.get(v)
        if op is None:
            return None
        extents, wanted = list(dims(op, "par").values()), list(self.par.values())
        if len(extents) != len(wanted) or distance < 0 or distance + wanted[self.axis] > extents[self.axis]:
            return None
        if any(a != b for i, (a, b) in enumerate(zip(extents, wanted, strict=True)) if i != self.axis):
            return None
        if op.name == "tensor.contract":
            t = TensorType(v.tensor.dtype, tuple(wanted))
            return self.members.setdefault((op, distance), Value(t, v.hint))
        if (op, distance) not in self.made:
            self.made[op, distance] = self._instance(op, distance)
        results = self.made[op, distance]
        return None if results is None else results[op.results.index(v)]

    def _instance(self, op: Op, distance: int) -> tuple[Value, ...] | None:
        """The results of a map at a distance, over the domain of the kernel's results."""
        env: dict[str, Expr] = {d: Sym(name) for d, name in zip(dims(op, "par"), self.par, strict=True)}
        env[list(dims(op, "par"))[self.axis]] = Sym(self.column) + distance
        operands, places, outside = [], [], []
        for v, at, fill in zip(op.operands, reads(op), fills(op), strict=True):
            index = tuple(simplify(substitute(e, env), self.ranges) for e in at)
            if v in self.producers:
                there = self._distance(index)
                inner = None if there is None else self.value(v, there)
                if inner is None:
                    return None
                v, index, fill = inner, tuple(map(Sym, self.par)), None
            operands.append(v)
            places.append(index)
            outside.append(fill)
        attrs: dict[str, Attr] = {"par": Pairs(tuple(self.par.items())), "reads": tuple(places)}
        if op.get("fill"):
            attrs["fill"] = tuple(outside)
        shape = tuple(self.par.values())
        results = tuple(
            Value(r.type if r.tensor.shape == shape else TensorType(r.tensor.dtype, shape), r.hint)
            for r in op.results
        )
        moved = with_indices(op.with_attrs(**attrs), lambda e: simplify(substitute(e, env), self.ranges))
        moved = replace(moved, operands=tuple(operands), results=results, body=_copied(moved.body))
        self.ops.append(moved)
        return results

    def _distance(self, index: Sequence[Expr]) -> int | None:
        """How many columns from its own a result reads in its row; None where it reads elsewhere."""
        if len(index) != len(self.par):
            return None
        for i, (e, d) in enumerate(zip(index, self.par, strict=True)):
            if i != self.axis and e != Sym(d) and not (e == 0 and self.par[d] == 1):
                return None
        there = simplify(index[self.axis] - Sym(self.column), self.ranges)
        return there if isinstance(there, int) else None

    def in_order(self) -> list[tuple[Op, int]] | None:
        """Products and distances of all members; None where there is one, or columns overlap."""
        extent, numbers = self.par[self.column], {op: i for i, op in enumerate(self.kernel.body.ops)}
        found = sorted(self.members, key=lambda m: (numbers[m[0]], m[1]))
        apart = all(a[0] is not b[0] or b[1] - a[1] >= extent for a, b in pairwise(found))
        return found if len(found) > 1 and apart else None


def _copied(body: Block | None) -> Block | None:
    """A body with values of its own: a map may be there at several distances."""
    if body is None:
        return None
    new = {p: Value(p.type, p.hint) for p in body.params}
    params = tuple(new.values())
    return replace(body, params=params, ops=tuple(copied_ops(body.ops, new)))


def _with_one_product(
    kernel: Func,
    before: Sequence[Op],
    anchor: Op,
    instances: _Instances,
    members: Sequence[tuple[Op, int]],
    returned: Sequence[Value],
    axis: int,
) -> _Interleaved:
    """The kernel of the maps that instances have, behind one product of all members.

    before: the maps that compute its first factor.
    """
    extent = instances.par[instances.column]
    count, columns = len(members), len(members) * whole_groups(extent)
    old = anchor.operands[1].tensor
    shape = tuple(n if i != axis else columns for i, n in enumerate(old.shape))
    factor = Value(TensorType(old.dtype, shape), anchor.operands[1].hint)
    par = {**instances.par, instances.column: columns}
    sums = Value(TensorType(anchor.result.tensor.dtype, tuple(par.values())), anchor.result.hint)
    product = anchor.with_attrs(par=Pairs(tuple(par.items()))).with_operands((anchor.operands[0], factor))
    places: dict[Value, tuple[Expr, ...]] = {}
    for number, member in enumerate(members):
        column = simplify(column_of(Sym(instances.column), number, count), instances.ranges)
        index = tuple(column if d == instances.column else Sym(d) for d in par)
        places[instances.members[member]] = index
    ops = [*before, replace(product, results=(sums,))]
    for op in instances.ops:
        at = [places.get(v, place) for v, place in zip(op.operands, reads(op), strict=True)]
        operands = tuple(sums if v in places else v for v in op.operands)
        ops.append(op.with_operands(operands).with_attrs(reads=tuple(at)))
    ops.append(Op("tensor.return", tuple(returned)))
    read = {v for op in ops for v in op.operands}
    taken = (factor if p is anchor.operands[1] else p for p in kernel.params)
    params = tuple(p for p in taken if p in read)
    body = Block(params, tuple(ops))
    func = Func(Level.TENSOR, kernel.name, body, tuple(v.type for v in returned))
    weights = tuple(_Member(op.operands[1], distance) for op, distance in members)
    return _Interleaved(func, weights, extent, axis, factor, kernel.params)
