"""Pass store-pieces: float32 factors of large products are stored in pieces of bfloat16."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter
from typing import Literal

import numpy as np

from tilewright.costmodel import CpuHardware, load_hardware
from tilewright.ir import (
    Block,
    Builder,
    Func,
    InputError,
    Level,
    Module,
    Op,
    Ref,
    Sym,
    TensorType,
    Value,
    backward_slice,
    scalar_body,
    structured,
)
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.float_pieces import PIECES, pieces_of
from tilewright.ir.tensor.ops import reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.constant_params import WEIGHTS
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import decision_of
from tilewright.passes.kernels.matrix.view import MatrixView, matrix_view
from tilewright.passes.rewriting.values import copied_ops, needed
from tilewright.passes.tensor.fusion.outline_kernel import kernel_name

#: kernels with stored pieces, those that store them included, must be estimated to take at most this share of
#: what they take without; both ways are kernels by roles where products are large (docs/adr/0074)
GAIN = 0.98
#: ops of a kernel that may write pieces of its result beside it
_WRITERS = frozenset({"tensor.map", "tensor.contract", "tensor.reduce"})


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def store_pieces(module: Module, ctx: PassContext, *, when: Literal["auto", "always"] = "auto") -> Module:
    """Store the factors of float32 products in pieces of bfloat16, which tensor cores multiply as they lie.

    rewrite:  call(%x, %w, callee = @product), which multiplies %x: f32[m, c] and %w: f32[n, c], in pieces
        -->   %p, %q, %r = call(%x, callee = @pieces): bf16[m, c], bf16[m, c], bf16[m, c];
              call(%p, %q, %r, ..., callee = @product), which joins them to %x

    A kernel that finds its factors in pieces has nothing to do in its loop but to copy and to multiply
    (docs/adr/0054); one that splits them does so once for each tile. Pieces of constants are made at compile
    time; those of what another kernel computes are written by that kernel beside its result, or instead of
    it, where the cost model says that this takes less time than a kernel of their own. One set of pieces
    serves all products that read the same array. With `auto` pieces are stored where the cost model says
    that it takes less time, on GPUs.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if isinstance(hardware, CpuHardware) or not hardware.wgmma_share:
        return module
    network = _Network(module, ctx)
    for op in module.main.body.ops:
        ref = op.get("callee")
        if isinstance(ref, Ref) and (products := network.products(op, ref.name)):
            network.store(op, products, always=when == "always")
    return network.finished()


@dataclass(frozen=True)
class _Factor:
    """A factor of a product that is to be stored in pieces.

    made: the ops of the kernel that compute it. positions: the parameters that these read, or the factor
    itself where there are none. order: its axes as they are stored, the reduced channel last.
    """

    operand: int
    value: Value
    made: tuple[Op, ...]
    positions: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class _Product:
    """A kernel around one product whose factors may be stored in pieces."""

    kernel: Func
    contraction: Op
    factors: tuple[_Factor, _Factor]


@dataclass
class _Source:
    """How pieces are made: by a kernel of their own, or by the kernel `writer`, which then also yields them.

    seconds: what they add to the time of the network, by the model. constant: its elements, where it is one.
    """

    key: Hashable
    seconds: float
    maker: Func | None = None
    writer: str = ""
    constant: np.ndarray | None = None


class _Network:
    """The kernels and calls of a module while pieces are added to it."""

    def __init__(self, module: Module, ctx: PassContext) -> None:
        self.module, self.ctx = module, ctx
        self.kernels = {f.name: f for f in module.funcs}
        self.ops: dict[Op, Op] = {op: op for op in module.main.body.ops}  # by the op that it was
        self.before: dict[Op, list[Op]] = {}
        self.pieces: dict[Hashable, tuple[Value, ...]] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.makers: dict[str, Func] = {}
        self.calls: Counter[str] = Counter()
        self.producers: dict[Value, Op] = {}
        for op in module.main.body.ops:
            self.producers.update(dict.fromkeys(op.results, op))
            if isinstance(ref := op.get("callee"), Ref):
                self.calls[ref.name] += 1

    # -- what may be stored -----------------------------------------------------------------------------
    def products(self, call: Op, name: str) -> list[_Product]:
        """The one product of a kernel, if its factors are split and may be stored, by how they are.

        First with the reduced channel last in both, then with what is no constant in the order it has.
        """
        kernel = self.kernels[name]
        products = [op for op in kernel.body.ops if op.name == "tensor.contract"]
        if self.calls[name] != 1 or len(products) != 1:
            return []
        view = matrix_view(kernel, products[0])
        if view is None or not view.splits or products[0].operands[0] is products[0].operands[1]:
            return []
        found = [_factor(kernel, products[0], operand, view.channel) for operand in (0, 1)]
        first, second = found
        if first is None or second is None:
            return []
        lasting = [self._as_it_lies(call, factor, products[0], view) for factor in (first, second)]
        both = [_Product(kernel, products[0], (first, second))]
        if lasting != [first, second]:
            both.append(_Product(kernel, products[0], (lasting[0], lasting[1])))
        return both

    def _as_it_lies(self, call: Op, factor: _Factor, product: Op, view: MatrixView) -> _Factor:
        """The factor in the order it has, where tiles can have rows of that and it is no constant."""
        last = reads(product)[factor.operand][-1]
        rows = {view.channel, *view.outer(factor.operand)}
        if not isinstance(last, Sym) or last.name not in rows or self._constant(call, factor) is not None:
            return factor
        return replace(factor, order=tuple(range(len(factor.order))))

    # -- what it costs ----------------------------------------------------------------------------------
    def store(self, call: Op, products: list[_Product], *, always: bool) -> None:
        """Store the factors of a product in pieces, in the order of least time, where this is less."""
        product, kernel = products[0], products[0].kernel
        if not always:
            # of equals the order that arrays have: other products may read it, too
            seconds, product = min(((self._stored_s(call, p), p) for p in products[::-1]), key=itemgetter(0))
            if seconds >= GAIN * self._seconds(kernel, self._constants_of(call)):
                return
        reader = _reader(product)
        sources = [self._source(call, product, factor) for factor in product.factors]
        values = [v for source, factor in zip(sources, product.factors, strict=True)
                  for v in self._stored(call, source, factor)]  # fmt: skip
        kept = [i for i, p in enumerate(kernel.params) if p in reader.params]
        self.kernels[kernel.name] = reader
        operands = (*(self.ops[call].operands[i] for i in kept), *values)
        self.ops[call] = self.ops[call].with_operands(operands)

    def _stored_s(self, call: Op, product: _Product) -> float:
        """Seconds of a product that reads stored pieces, and of storing them; infinite where none can be."""
        try:
            sources = [self._source(call, product, factor) for factor in product.factors]
            return self._seconds(_reader(product)) + sum(s.seconds for s in sources)
        except (InputError, UnsupportedError):
            return inf

    def _source(self, call: Op, product: _Product, factor: _Factor) -> _Source:
        """Where the pieces of a factor come from."""
        arrays = tuple(call.operands[i] for i in factor.positions)
        maker = _maker(product.kernel, factor, "pieces")
        key = (arrays, kernel_text(maker))
        if key in self.pieces:
            return _Source(key, 0.0)
        if (constant := self._constant(call, factor)) is not None:
            return _Source(key, 0.0, constant=constant)
        seconds = self._seconds(maker)
        writer = self._writer(arrays[0], factor)
        if writer is not None:
            name, more = writer
            if more < seconds:
                return _Source(key, more, writer=name)
        return _Source(key, seconds, maker=maker)

    def _constant(self, call: Op, factor: _Factor) -> np.ndarray | None:
        """The elements of a factor that is a constant, in the order in which it is stored."""
        if factor.made:
            return None
        op = self.producers.get(call.operands[factor.positions[0]])
        if op is None or op.name != "tensor.constant" or str(op["name"]) not in self.module.constants:
            return None
        array = self.module.constants[str(op["name"])].reshape(factor.value.tensor.shape)
        return array.transpose(factor.order)

    def _writer(self, array: Value, factor: _Factor) -> tuple[str, float] | None:
        """The kernel that computes an array, and how much longer it takes if it writes pieces as well."""
        op = self.producers.get(array)
        ref = op.get("callee") if op is not None else None
        if factor.made or factor.order != tuple(range(len(factor.order))) or not isinstance(ref, Ref):
            return None
        assert op is not None
        kernel, place = self.kernels[ref.name], op.results.index(array)
        if self.calls[ref.name] != 1 or not {o.name for o in kernel.body.ops[:-1]} <= _WRITERS:
            return None
        shapes = {t.shape for t in kernel.result_types if isinstance(t, TensorType)}
        result = kernel.body.ops[-1].operands[place]
        # the array may have other dimensions where it is read, but no other elements
        alike = len(shapes) == 1 and result.tensor.size == factor.value.tensor.size
        if not alike or result in kernel.params or not result.tensor.dense:
            return None
        constants = self._constants_of(op)
        try:
            before = self._seconds(kernel, constants)
            return ref.name, self._seconds(_writing(kernel, place), constants) - before
        except (InputError, UnsupportedError):
            return None

    def _constants_of(self, call: Op) -> tuple[int, ...]:
        """Which operands of a call are constants."""
        names = [self.producers[v].name if v in self.producers else "" for v in call.operands]
        return tuple(i for i, name in enumerate(names) if name == "tensor.constant")

    def _seconds(self, kernel: Func, constants: tuple[int, ...] = ()) -> float:
        """Seconds of a kernel by the model."""
        cores = any(op.name == "tensor.contract" for op in kernel.body.ops)
        asked = kernel.with_attrs(**{WEIGHTS: constants}) if cores else kernel
        key = ("pieces", kernel_text(asked), self.ctx.hardware, self.ctx.target)

        def answer() -> float:
            decision = decision_of(self.ctx.estimator.kernel(asked, self.ctx))
            if decision is None or decision.cost is None:
                raise InputError("expected a kernel with an estimate", where=f"@{kernel.name}")
            return decision.cost.estimate_s

        return self.ctx.estimator.remembered(key, answer)

    # -- the new network --------------------------------------------------------------------------------
    def _stored(self, call: Op, source: _Source, factor: _Factor) -> tuple[Value, ...]:
        """The pieces of a factor in @main."""
        if source.key in self.pieces:
            return self.pieces[source.key]
        shape = tuple(factor.value.tensor.shape[axis] for axis in factor.order)
        values = tuple(Value(TensorType("bf16", shape), factor.value.hint) for _ in range(PIECES))
        first = call.operands[factor.positions[0]]
        if source.constant is not None:
            owner, arrays = self.producers[first], pieces_of(np.ascontiguousarray(source.constant))
            made = [self._new_constant(owner, v, i, array)
                    for i, (v, array) in enumerate(zip(values, arrays, strict=True))]  # fmt: skip
            self.before.setdefault(call, []).extend(made)
        elif source.writer:
            op = self.producers[first]
            kernel = self.kernels[source.writer]
            place = op.results.index(first)
            self.kernels[source.writer] = _writing(kernel, place)
            self.ops[op] = replace(self.ops[op], results=(*self.ops[op].results, *values))
        else:
            assert source.maker is not None
            name = kernel_name(source.maker.body.ops[:-1], {*self.kernels, *self.makers})
            self.makers[name] = replace(source.maker, name=name)
            read = tuple(call.operands[i] for i in factor.positions)
            called = Op("tensor.call", read, (("callee", Ref(name)),), values, None, call.loc)
            self.before.setdefault(call, []).append(called)
        self.pieces[source.key] = values
        return values

    def _new_constant(self, owner: Op, value: Value, number: int, array: np.ndarray) -> Op:
        name = f"{owner['name']}.piece{number}"
        while name in self.module.constants or name in self.constants:
            name += "_"
        self.constants[name] = array
        return replace(owner.with_attrs(name=name), results=(value,))

    def finished(self) -> Module:
        """The module with all pieces; results that nobody reads any more are written no longer."""
        if not self.pieces:
            return self.module
        main = self.module.main
        ops = [new for op in main.body.ops for new in (*self.before.get(op, ()), self.ops[op])]
        used = {v for op in ops for v in op.operands}
        for i, op in enumerate(ops):
            ref = op.get("callee")
            if isinstance(ref, Ref) and ref.name in self.kernels and self.calls[ref.name] == 1:
                kept = [j for j, v in enumerate(op.results) if v in used]
                if 0 < len(kept) < len(op.results):
                    self.kernels[ref.name] = _yielding(self.kernels[ref.name], kept)
                    ops[i] = replace(op, results=tuple(op.results[j] for j in kept))
        funcs: list[Func] = [*self.makers.values()]
        funcs += [f if f is main else self.kernels[f.name] for f in self.module.funcs]
        new_main = main.with_body(main.body.with_ops(tuple(ops)))
        out = self.module.with_funcs(tuple(new_main if f is main else f for f in funcs))
        return out.with_constants(self.module.constants.updated(self.constants)) if self.constants else out


def _factor(kernel: Func, product: Op, operand: int, channel: str) -> _Factor | None:
    """A factor of a product with the reduced channel as one of its axes."""
    value, at = product.operands[operand], reads(product)[operand]
    axes = [axis for axis, e in enumerate(at) if e == Sym(channel)]
    if not axes:
        return None
    made = backward_slice(kernel.body.ops, [value])
    if any(op.name != "tensor.map" or op is product for op in made):
        return None
    values = {value, *(v for op in made for v in op.operands)}
    inputs = [p for p in kernel.params if p in values]
    order = (*(axis for axis in range(len(at)) if axis != axes[-1]), axes[-1])
    return _Factor(operand, value, tuple(made), tuple(kernel.params.index(p) for p in inputs), order)


def _pieces(b: Builder, value: Value, order: tuple[int, ...]) -> tuple[Value, ...]:
    """Append the map that makes the pieces of a value, whose axes they have in another order."""
    names = [f"p{place}" for place in range(len(order))]
    shape = tuple(value.tensor.shape[axis] for axis in order)
    at = tuple(Sym(names[order.index(axis)]) for axis in range(len(order)))
    body, (x,) = scalar_body(["f32"])
    body.do("scalar.yield", *(body.value("scalar.piece", x, number=i) for i in range(PIECES)))
    return structured(
        b, "tensor.map", [value], par=dict(zip(names, shape, strict=True)), reads=[at],
        body=body.block((x,)), types=[TensorType("bf16", shape)] * PIECES, hint=value.hint,
    )  # fmt: skip


def _maker(kernel: Func, factor: _Factor, name: str) -> Func:
    """The kernel that stores the pieces of a factor; it takes the arrays that this is made of."""
    params = [kernel.params[i] for i in factor.positions]
    renamed = {p: Value(p.type, p.hint) for p in params}
    fresh = tuple(renamed.values())
    b = Builder(kernel.body.ops[-1].loc)
    for op in copied_ops(list(factor.made), renamed):
        b.append(op)
    values = _pieces(b, renamed[factor.value], factor.order)
    b.do("tensor.return", *values)
    return Func(Level.TENSOR, name, b.block(fresh), tuple(v.tensor for v in values))


def _writing(kernel: Func, place: int) -> Func:
    """The kernel that yields the pieces of one of its results after all others."""
    *ops, last = kernel.body.ops
    result = last.operands[place]
    b = Builder(last.loc)
    for op in ops:
        b.append(op)
    values = _pieces(b, result, tuple(range(len(result.tensor.shape))))
    b.do("tensor.return", *last.operands, *values)
    types = (*kernel.result_types, *(v.tensor for v in values))
    return replace(kernel, body=b.block(kernel.params), result_types=types)


def _yielding(kernel: Func, kept: list[int]) -> Func:
    """The kernel with some of its results only."""
    *ops, last = kernel.body.ops
    ending = last.with_operands(tuple(last.operands[i] for i in kept))
    types = tuple(kernel.result_types[i] for i in kept)
    return replace(kernel, body=kernel.body.with_ops(tuple(needed([*ops, ending]))), result_types=types)


def _reader(product: _Product) -> Func:
    """The kernel of a product with the pieces of both factors as its last parameters."""
    kernel, contraction = product.kernel, product.contraction
    operands, places = list(contraction.operands), list(reads(contraction))
    b = Builder(contraction.loc)
    params: list[Value] = []
    for factor in product.factors:
        shape = tuple(factor.value.tensor.shape[axis] for axis in factor.order)
        pieces = [Value(TensorType("bf16", shape), factor.value.hint) for _ in range(PIECES)]
        operands[factor.operand] = _joined(b, pieces)
        places[factor.operand] = tuple(places[factor.operand][axis] for axis in factor.order)
        params += pieces
    reading = contraction.with_operands(tuple(operands)).with_attrs(reads=tuple(places))
    ops: list[Op] = []
    for op in kernel.body.ops:
        ops += [*b.ops, reading] if op is contraction else [op]
    ops = needed(ops)
    used = {v for op in ops for v in op.operands}
    kept = tuple(p for p in kernel.params if p in used)
    return replace(kernel, body=Block((*kept, *params), tuple(ops)))


def _joined(b: Builder, pieces: list[Value]) -> Value:
    """Append the map that makes a factor of its pieces."""
    shape = pieces[0].tensor.shape
    names = [f"p{place}" for place in range(len(shape))]
    body, parameters = scalar_body(["bf16"] * PIECES)
    body.do("scalar.yield", body.value("scalar.join_pieces", *parameters))
    (value,) = structured(
        b, "tensor.map", pieces, par=dict(zip(names, shape, strict=True)),
        reads=[tuple(map(Sym, names))] * PIECES, body=body.block(parameters),
        types=[TensorType("f32", shape)], hint=pieces[0].hint,
    )  # fmt: skip
    return value
