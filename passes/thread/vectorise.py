"""Pass vectorise: innermost loops over consecutive elements become operations on short vectors."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from math import gcd, prod

from tilewright.costmodel.hardware.description import CpuHardware
from tilewright.ir.builder import Builder
from tilewright.ir.errors import InputError
from tilewright.ir.expr import Expr, Sym, substitute
from tilewright.ir.nodes import Block, Func, Level, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.simplify import Ranges, coefficients, multiple_of, simplify
from tilewright.ir.types import LANES, ScalarType, TensorType, itemsize
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.kept_values import alloc_kept, read_kept
from tilewright.passes.thread.scopes import (
    body_ranges,
    extent_of,
    launch_ranges,
    loop_variable,
    map_indices,
    mask_of,
    mentions,
)


@register_pass(Level.THREAD)
def vectorise(func: Func, ctx: PassContext, *, max_bytes: int = 16, registers: bool = False) -> Func:
    """Turn an innermost loop over consecutive, aligned elements into vector loads, arithmetic and stores.

    rewrite:  loop(v, 4) { %a = load(%x, at = [i, 4*j + v]); store(%a, %s, at = [4*j + v]) }
              -->   %a = load(%x, at = [i, 4*j], lanes = 4); store(%a, %s, at = [4*j])

    A gather whose offset is one number for all iterations plus their own is a vector, too. Where iterations
    compute what no vector holds, such as their parts of one random word, a GPU keeps their results in
    registers and writes these as vectors.
    max_bytes: widest vector in memory. registers: also loops that touch register buffers alone (a CPU has
    vector arithmetic; a GPU only gains from wide memory accesses); then no value is wider than the vectors
    of a CPU that `ctx` names, whatever its dtype. Each lane computes what its iteration computed.
    """
    if max_bytes < 1:
        raise InputError(f"expected max_bytes of at least 1, got {max_bytes}")
    if registers and isinstance(ctx.hardware, CpuHardware):
        max_bytes = min(max_bytes, ctx.hardware.simd_lanes * itemsize("f32"))
    v = _Vectoriser(max_bytes, registers)
    body = v.block(func.body, launch_ranges(func))
    return func.with_body(body.with_ops((*v.allocs, *body.ops)) if v.allocs else body)


class _Vectoriser:
    def __init__(self, max_bytes: int, registers: bool) -> None:
        self.max_bytes, self.registers = max_bytes, registers
        self.allocs: list[Op] = []

    def block(self, block: Block, ranges: Ranges) -> Block:
        return block.with_ops(tuple(new for op in block.ops for new in self.op(op, ranges)))

    def op(self, op: Op, ranges: Ranges) -> list[Op]:
        if op.body is None:
            return [op]
        inner = body_ranges(op, ranges)
        if op.name == "thread.loop" and not any(o.body is not None for o in op.body.ops):
            if op.operands:
                return [op]
            wide = self.loop(op, inner)
            return self.moved_apart(op, inner) if wide is op and not self.registers else [wide]
        body = self.block(op.body, inner)
        return [op if body is op.body else replace(op, body=body)]

    def loop(self, op: Op, ranges: Ranges) -> Op:
        assert op.body is not None
        sizes = [itemsize(t.dtype) for t in _moved(op.body, loop_variable(op))]
        for lanes in sorted(LANES - {1}, reverse=True):
            if sizes and lanes * max(sizes) <= self.max_bytes and extent_of(op) % lanes == 0:
                wide = _Widener(loop_variable(op), lanes, ranges, self.registers).body(op.body)
                if wide is not None and not (self.registers and _widest_bytes(wide) > self.max_bytes):
                    return replace(op.with_attrs(extent=extent_of(op) // lanes), body=wide)
        return op

    def moved_apart(self, op: Op, ranges: Ranges) -> list[Op]:
        """The loop on registers, between loops that fill and write these by vectors, where that goes."""
        assert op.body is not None
        body, at = op.body, (Sym(loop_variable(op)),)
        stores = [o for o in body.ops if _writes(o) and o.operands[1].tensor.space == "global"]
        reads = [o for o in body.ops if o.name in ("thread.load", "thread.gather")]
        plain = all(o.level == "scalar" or _writes(o) or o in reads for o in body.ops)
        written = {o.operands[1] for o in body.ops if _writes(o)}
        if not stores or not plain or op["unroll"] != 1 or written & {o.operands[0] for o in reads}:
            return [op]
        inside: dict[Op, Op] = {}
        made: list[Value] = []
        loading, storing = [], Builder()
        for o in stores:
            made.append(kept := _registers(op, o.operands[1], "kept"))
            inside[o] = Op("thread.store", (o.operands[0], kept), (("at", at), ("mask", ())), loc=o.loc)
            with storing.at(o.loc):
                value = storing.value("thread.load", kept, at=at, hint=o.operands[0].hint)
                storing.append(o.with_operands((value, o.operands[1])))
        whole = replace(op, body=storing.block())
        wide = self.loop(whole, ranges)
        if wide is whole:
            return [op]
        for o in reads:
            if o.name != "thread.load" or o.operands[0].tensor.space == "reg":
                continue
            kept = _registers(op, o.operands[0], "read")
            one = Builder(o.loc)
            value = Value(o.result.type, o.result.hint)
            one.append(replace(o, results=(value,)))
            one.do("thread.store", value, kept, at=at)
            alone = replace(op, body=one.block())
            filled = self.loop(alone, ranges)
            if filled is not alone:
                made.append(kept)
                loading.append(filled)
                inside[o] = read_kept(o.result, kept, at, o.loc)
        self.allocs += [alloc_kept(v, op.loc) for v in made]
        computing = replace(op, body=body.with_ops(tuple(inside.get(o, o) for o in body.ops)))
        return [*loading, computing, wide]


def _registers(op: Op, like: Value, hint: str) -> Value:
    """Registers for an element of each iteration of a loop."""
    return Value(TensorType(like.tensor.dtype, (extent_of(op),), "reg"), hint)


def _writes(op: Op) -> bool:
    return op.name == "thread.store"


def _moved(body: Block, var: str) -> list[TensorType]:
    """The buffers that a loop over `var` reads or writes, but for those of which it reads one element."""
    return [
        v.tensor
        for o in body.ops
        if o.level == "thread"
        and not (o.name == "thread.load" and not any(mentions(e, var) for e in o.exprs("at")))
        for v in o.operands
        if isinstance(v.type, TensorType)
    ]


def _widest_bytes(block: Block) -> int:
    """Bytes of the widest vector that an op of a block gives; what it computes may be wider than memory."""
    types = [v.type for op in block.ops for v in op.results]
    vectors = (t for t in types if isinstance(t, ScalarType) and t.lanes > 1)
    return max((t.lanes * itemsize(t.dtype) for t in vectors), default=0)


class _Widener:
    """Rewrites one loop body for `lanes` iterations at a time, or finds that it cannot."""

    def __init__(self, var: str, lanes: int, ranges: Ranges, registers: bool) -> None:
        self.var, self.lanes, self.ranges, self.registers = var, lanes, ranges, registers
        self.new: dict[Value, Value] = {}
        self.b = Builder()
        self.places: dict[Value, set[tuple[Expr, ...]]] = {}
        self.written: set[Value] = set()
        self.memory = False
        self.gathered: set[Value] = set()
        self.first: dict[Value, int] = {}

    def body(self, body: Block) -> Block | None:
        self.producers = {r: op for op in body.ops for r in op.results}
        for op in body.ops:
            with self.b.at(op.loc):
                if not self.op(op):
                    return None
        if self.written & self.gathered:
            return None
        for v in self.written:
            if not all(self.apart(a, b) for a, b in combinations(self.places[v], 2)):
                return None  # another iteration might read or write what this one writes
        return self.b.block() if self.memory or self.registers else None

    def apart(self, first: tuple[Expr, ...], second: tuple[Expr, ...]) -> bool:
        """Return whether two accesses at any two of the lanes never touch the same element."""
        for e, f in zip(first, second, strict=True):
            distance = simplify(e - f, self.ranges)
            least = self.lanes if mentions(e, self.var) or mentions(f, self.var) else 1
            if isinstance(distance, int) and abs(distance) >= least:
                return True
        return False

    def op(self, op: Op) -> bool:
        if op.name in ("thread.load", "thread.store"):
            return self.access(op)
        if op.name == "thread.gather":
            return self.gather(op)
        if op.name == "scalar.index":
            return self.alike(op) if not mentions(op.expr("at"), self.var) else self.counted(op)
        if any(v in self.first for v in op.operands):
            return self.added(op)
        if op.level != "scalar" or not op_def(op.name).elementwise:
            return False
        operands = [self.new.get(v, v) for v in op.operands]
        (result,) = op.results
        results = self.b.emit(op.name, operands, op.attributes, hint=result.hint)
        self.new[result] = results[0]
        return True

    def access(self, op: Op) -> bool:
        load = op.name == "thread.load"
        if not load and op.operands[0] in self.first:
            return False
        buffer = op.operands[0 if load else 1]
        at = op.exprs("at")
        self.places.setdefault(buffer, set()).add(at)
        if not load:
            self.written.add(buffer)
        varying = any(mentions(e, self.var) for e in at)
        if not varying and not any(mentions(e, self.var) for m in mask_of(op) for e in m):
            return load and self.alike(op)
        if not varying or not self.unit_stride(buffer, at) or not all(map(self.whole, mask_of(op))):
            return False
        if load and (op.result.type != ScalarType(buffer.tensor.dtype)):
            return False
        self.memory |= buffer.tensor.space != "reg"
        wide = map_indices(op, lambda e: substitute(e, {self.var: Sym(self.var) * self.lanes}))
        if load:
            attrs = {**dict(wide.attrs), "lanes": self.lanes}
            (self.new[op.result],) = self.b.emit(op.name, op.operands, attrs, hint=op.result.hint)
            return True
        value = self.new.get(op.operands[0], op.operands[0])
        if isinstance(value.type, ScalarType) and value.type.lanes == 1:
            value = self.b.value("scalar.broadcast", value, lanes=self.lanes)
        self.b.emit(op.name, (value, buffer), dict(wide.attrs))
        return True

    def gather(self, op: Op) -> bool:
        """Elements at consecutive offsets, of which the first is a multiple of the lanes."""
        buffer, offset = op.operands
        if any(mentions(e, self.var) for m in mask_of(op) for e in m):
            return False
        self.gathered.add(buffer)
        if offset not in self.first:
            return not self._vector(offset) and self.alike(op)
        if self.first[offset] % self.lanes or op.result.type != ScalarType(buffer.tensor.dtype):
            return False
        self.memory = True
        attrs = {**dict(op.attrs), "lanes": self.lanes}
        operands = (buffer, self.new[offset])
        (self.new[op.result],) = self.b.emit(op.name, operands, attrs, hint=op.result.hint)
        return True

    def counted(self, op: Op) -> bool:
        """A number that grows by one from lane to lane: the first lane's, and a factor of it."""
        form = coefficients(op.expr("at"), [self.var], self.ranges)
        if form is None or form[0].get(self.var) != 1:
            return False
        self.first[op.result] = multiple_of(form[1], self.ranges)
        wide = map_indices(op, lambda e: substitute(e, {self.var: Sym(self.var) * self.lanes}))
        (self.new[op.result],) = self.b.emit(op.name, (), dict(wide.attrs), hint=op.result.hint)
        return True

    def added(self, op: Op) -> bool:
        """The sum of a number that grows by one from lane to lane and one that all lanes share."""
        growing = [v for v in op.operands if v in self.first]
        shared = [v for v in op.operands if v not in self.first]
        if op.name != "scalar.add" or len(growing) != 1 or self._vector(shared[0]):
            return False
        self.first[op.result] = gcd(self.first[growing[0]], self.factor(shared[0]))
        operands = [self.new.get(v, v) for v in op.operands]
        (self.new[op.result],) = self.b.emit(op.name, operands, op.attributes, hint=op.result.hint)
        return True

    def factor(self, v: Value) -> int:
        """A number that divides an integer value, as far as the ops of this loop show."""
        op = self.producers.get(v)
        if op is None:
            return 1
        if op.name == "scalar.const":
            return int(op.number("value"))
        if op.name == "scalar.index":
            return multiple_of(op.expr("at"), self.ranges)
        if op.name == "scalar.cast" and self._integer(op.operands[0]):
            return self.factor(op.operands[0])
        if op.name == "scalar.mul":
            return prod(map(self.factor, op.operands))
        return gcd(*map(self.factor, op.operands)) if op.name == "scalar.add" else 1

    @staticmethod
    def _integer(v: Value) -> bool:
        return isinstance(v.type, ScalarType) and v.type.dtype in ("i32", "i64", "index")

    def _vector(self, v: Value) -> bool:
        """Whether the lanes of a value may differ."""
        new = self.new.get(v, v)
        return not isinstance(new.type, ScalarType) or new.type.lanes != 1

    def alike(self, op: Op) -> bool:
        """A value that all lanes share."""
        operands = tuple(self.new.get(v, v) for v in op.operands)
        results = (Value(op.result.type, op.result.hint),)
        (self.new[op.result],) = self.b.append(replace(op, operands=operands, results=results))
        return True

    def unit_stride(self, buffer: Value, at: tuple[Expr, ...]) -> bool:
        """Consecutive elements of the last dimension, starting at a multiple of the lanes in every row."""
        t = buffer.tensor
        if any(mentions(e, self.var) for e in at[:-1]) or not t.rows_of(self.lanes):
            return False
        form = coefficients(at[-1], [self.var], self.ranges)
        if form is None or form[0].get(self.var) != 1:
            return False
        return multiple_of(form[1], self.ranges) % self.lanes == 0

    def whole(self, component: tuple[Expr, Expr, Expr]) -> bool:
        """A condition that is the same for all lanes of a vector."""
        e, low, high = component
        if not any(mentions(x, self.var) for x in component):
            return True
        form = coefficients(e, [self.var], self.ranges)
        if (
            form is None
            or form[0].get(self.var) != 1
            or not isinstance(low, int)
            or not isinstance(high, int)
        ):
            return False
        return all(x % self.lanes == 0 for x in (multiple_of(form[1], self.ranges), low, high))
