"""Pass pack-masks: masks that kernels hand on to kernels are stored as words of bits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from math import inf
from typing import Literal

import numpy as np

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import (
    Block,
    Builder,
    Expr,
    Func,
    Level,
    Module,
    Op,
    Sym,
    TensorType,
    Value,
    scalar_body,
    structured,
)
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.opdef import op_def
from tilewright.ir.scalar_code import Scalar, Scalars
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import callee_of, dims, fills, ranges_of, reads
from tilewright.ir.types import numpy_dtype
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import decision_of, has_parameters
from tilewright.passes.kernels.registry import template_of
from tilewright.passes.rewriting.values import copied_ops

#: neighbours along the last dimension in a word, the first in its lowest bit
BITS = 32


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def pack_masks(module: Module, ctx: PassContext, *, when: Literal["auto", "always"] = "auto") -> Module:
    """Store a mask in words of 32 bits, where the kernels that read it keep a word for several elements.

    rewrite:  %m = call(%seed, callee = @draw) : bool[.., n]; call(%m, callee = @use)
        -->   %w = call(%seed, callee = @draw) : u32[.., n / 32], whose map computes 32 neighbours and puts
              them into one word; call(%w, callee = @use), which reads %w[.., k // 32] >> k % 32

    A mask is what a kernel of maps alone computes and only other kernels read. The elements are the same: a
    bit is computed as its element was, and what neighbours have in common (a call of a random number
    generator) is computed once for a word, which is itself the result where its bits are the elements. With
    `auto` the seconds of all kernels that touch the mask decide, by the model, on GPUs: where a word is not
    made of several neighbours in an array, and all readers are of templates that read a word once for the
    elements of a thread in it (`KernelTemplate.choose_for_words`).
    With `always` none of this is asked.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "auto" and isinstance(hardware, CpuHardware):
        return module
    network = _Network(module, ctx)
    for op in module.main.body.ops:
        if op.name == "tensor.call":
            network.pack(op, always=when == "always")
    return network.finished()


class _Network:
    """The kernels and calls of a module while its masks become words."""

    def __init__(self, module: Module, ctx: PassContext) -> None:
        self.module, self.ctx = module, ctx
        self.hardware = ctx.hardware or load_hardware(ctx.target)
        self.kernels = {f.name: f for f in module.funcs}
        self.words: dict[Value, Value] = {}
        self.calls = Counter(callee_of(op) for op in module.main.body.ops if op.name == "tensor.call")
        self.readers: dict[Value, list[Op]] = {}
        for op in module.main.body.ops:
            for v in dict.fromkeys(op.operands):
                self.readers.setdefault(v, []).append(op)

    def pack(self, call: Op, *, always: bool) -> None:
        """Store the result of a call in words, if it is a mask and that takes less time."""
        readers = [r for v in call.results for r in self.readers.get(v, ())]
        maker = self.kernels[callee_of(call)]
        if not _makes_a_mask(maker) or not readers or any(r.name != "tensor.call" for r in readers):
            return
        if any(self.calls[callee_of(c)] != 1 for c in (call, *readers)):
            return
        (mask,) = call.results
        old = [maker, *(self.kernels[callee_of(r)] for r in readers)]
        new = [_in_words(maker)]
        for reader, kernel in zip(readers, old[1:], strict=True):
            places = [i for i, v in enumerate(reader.operands) if v is mask]
            changed = _chosen(_reading_words(kernel, places), self.hardware)
            if changed is None:
                return
            new.append(changed)
        if not always and (_reads_apart(new[0]) or not self._worth(old, new)):
            return
        self.kernels.update((f.name, f) for f in new)
        self.words[mask] = Value(new[0].result_types[0], mask.hint)

    def _worth(self, old: Sequence[Func], new: Sequence[Func]) -> bool:
        """Return whether the maker and the readers of a mask take less time with words of it."""
        return all(map(has_parameters, new[1:])) and sum(map(self._seconds, new)) < sum(
            map(self._seconds, old)
        )

    def _seconds(self, kernel: Func) -> float:
        """Seconds of a kernel by the model."""
        key: Hashable = ("words", kernel_text(kernel), self.ctx.hardware, self.ctx.target)

        def answer() -> float:
            try:
                decision = decision_of(self.ctx.estimator.kernel(kernel, self.ctx))
            except (InputError, UnsupportedError):
                return inf
            return inf if decision is None or decision.cost is None else decision.cost.estimate_s

        return self.ctx.estimator.remembered(key, answer)

    def finished(self) -> Module:
        """The module as it is now."""
        if not self.words:
            return self.module
        main = self.module.main
        ops = []
        for op in main.body.ops:
            operands = tuple(self.words.get(v, v) for v in op.operands)
            results = tuple(self.words.get(v, v) for v in op.results)
            ops.append(replace(op, operands=operands, results=results))
        self.kernels[main.name] = main.with_body(main.body.with_ops(tuple(ops)))
        return self.module.with_funcs(tuple(self.kernels[f.name] for f in self.module.funcs))


def _makes_a_mask(kernel: Func) -> bool:
    """Return whether maps alone make one array of truth values, in rows of whole words."""
    (*ops, returned) = kernel.body.ops
    if len(returned.operands) != 1 or not all(op.name == "tensor.map" for op in ops):
        return False
    t = returned.operands[0].tensor
    whole = t.dtype == "bool" and bool(t.shape) and t.shape[-1] % BITS == 0
    unfilled = all(f is None for op in ops for f in fills(op))
    return whole and unfilled and returned.operands[0] not in kernel.params


def _reads_apart(kernel: Func) -> bool:
    """Return whether a word is made of several elements of one array, which vectors would read otherwise."""
    (made,) = kernel.body.ops[:-1]
    last = next(reversed(dims(made, "par")))
    moving = [
        v for v, at in zip(made.operands, reads(made), strict=True) if any(last in symbols(e) for e in at)
    ]
    return len(set(moving)) < len(moving)


def _in_words(kernel: Func) -> Func:
    """The kernel that makes a mask with 32 neighbours of it in each word."""
    (*ops, returned) = kernel.body.ops
    (mask,) = returned.operands
    *outer, last = mask.tensor.shape
    names = [f"i{d}" for d in range(len(outer) + 1)]
    par = dict(zip(names, (*outer, last // BITS), strict=True))

    def at_word() -> tuple[_Point, list[tuple[Expr, ...]]]:
        """An empty body, and the places of the elements of a word."""
        point = _Point(ops, {n: (0, size - 1) for n, size in par.items()}, mask.hint)
        point.b.loc = ops[-1].loc
        last = (simplify(Sym(names[-1]) * BITS + bit, point.ranges) for bit in range(BITS))
        return point, [(*map(Sym, names[:-1]), e) for e in last]

    point, places = at_word()
    word = point.word_of([point.element(mask, at) for at in places])
    if word is None:
        point, places = at_word()
        word = _gathered(point, mask, places)
    point.b.do("scalar.yield", word)
    b = Builder(ops[-1].loc)
    (words,) = structured(
        b, "tensor.map", list(point.operands), par=par, reads=list(point.places),
        body=point.b.block(point.params), types=[TensorType("u32", tuple(par.values()))], hint=mask.hint,
    )  # fmt: skip
    b.do("tensor.return", words)
    return replace(kernel, body=Block(kernel.params, tuple(b.ops)), result_types=(words.type,))


def _gathered(point: _Point, mask: Value, places: Sequence[tuple[Expr, ...]]) -> Value:
    """The word whose bits are the elements of a mask at these places, put together one by one."""
    s = Scalars(point.b)
    nothing = s.const(0, "u32")
    word = nothing
    for bit, at in enumerate(places):
        part = Scalar(point.b, point.element(mask, at)).select(s.const(1 << bit, "u32"), nothing)
        word = part if bit == 0 else word.apply("bit_or", part)
    return word.value


class _Point:
    """Elements of values that maps compute, written at points into one body; what is the same once.

    operands, places, params: arrays that the body reads, where, and its parameters for them.
    """

    def __init__(self, ops: Sequence[Op], ranges: Mapping[str, tuple[int, int]], hint: str) -> None:
        self.makers = {v: op for op in ops for v in op.results}
        self.ranges, self.hint = dict(ranges), hint
        self.b = Builder()
        self.operands: list[Value] = []
        self.places: list[tuple[Expr, ...]] = []
        self.params: list[Value] = []
        self._elements: dict[tuple[Value, tuple[Expr, ...]], Value] = {}
        self._written: dict[Hashable, Value] = {}
        self._known: dict[Value, np.ndarray] = {}

    def element(self, value: Value, at: tuple[Expr, ...]) -> Value:
        """The element of a value at an index."""
        key = (value, at)
        if key not in self._elements:
            maker = self.makers.get(value)
            self._elements[key] = self._read(value, at) if maker is None else self._made(maker, value, at)
        return self._elements[key]

    def word_of(self, held: Sequence[Value]) -> Value | None:
        """The word whose bits, in order, are all that these truth values are; None where they are more."""
        made = {op.result: op for op in self.b.ops}
        found = [_bit(made, v, self._known) for v in held]
        words = {f[0] for f in found if f is not None}
        in_order = [f[1] for f in found if f is not None] == list(range(BITS))
        return words.pop() if in_order and len(words) == 1 else None

    def _read(self, value: Value, at: tuple[Expr, ...]) -> Value:
        _, (param,) = scalar_body([value.tensor.dtype])
        self.operands.append(value)
        self.places.append(at)
        self.params.append(param)
        return param

    def _made(self, op: Op, value: Value, at: tuple[Expr, ...]) -> Value:
        assert op.body is not None
        env = dict(zip(dims(op, "par"), at, strict=True))
        new: dict[Value, Value] = {}
        for param, operand, place in zip(op.body.params, op.operands, reads(op), strict=True):
            new[param] = self.element(operand, tuple(self._at(e, env) for e in place))
        for inner in op.body.ops[:-1]:
            self._write(inner, env, new)
        return new[op.body.ops[-1].operands[op.results.index(value)]]

    def _at(self, e: Expr, env: Mapping[str, Expr]) -> Expr:
        return simplify(substitute(e, env), self.ranges)

    def _write(self, op: Op, env: Mapping[str, Expr], new: dict[Value, Value]) -> None:
        """Append a scalar op, unless an equal one is there or its result is known."""
        if op.name == "scalar.index":
            op = op.with_attrs(at=self._at(op.expr("at"), env))
        operands = tuple(new[v] for v in op.operands)
        if op.name == "scalar.select" and operands[0] in self._known:
            new[op.result] = operands[1] if self._known[operands[0]] else operands[2]
            return
        key = (op.name, op.attrs, op.result.type, operands)
        if key not in self._written:
            self._written[key] = self._fresh(op, operands)
        new[op.result] = self._written[key]

    def _fresh(self, op: Op, operands: tuple[Value, ...]) -> Value:
        known = self._value_of(op, operands)
        if known is not None:
            self._known[result := self._constant(op, known)] = known
            return result
        (copy,) = copied_ops([op], dict(zip(op.operands, operands, strict=True)))
        self.b.append(copy)
        return copy.result

    def _constant(self, op: Op, known: np.ndarray) -> Value:
        return self.b.value("scalar.const", value=known.item(), dtype=op.result.type.dtype)

    def _value_of(self, op: Op, operands: tuple[Value, ...]) -> np.ndarray | None:
        """The result of an op that depends on no point; None where it does."""
        if op.name == "scalar.index":
            at = op.expr("at")
            return np.asarray(at).astype(numpy_dtype(str(op["dtype"]))) if isinstance(at, int) else None
        run = op_def(op.name).evaluate
        if run is None or len(op.results) != 1 or any(v not in self._known for v in operands):
            return None
        return np.asarray(run([self._known[v] for v in operands], op.attributes)[0])


def _bit(
    made: Mapping[Value, Op], value: Value, known: Mapping[Value, np.ndarray]
) -> tuple[Value, int] | None:
    """The word of 32 bits and the number of its bit that a truth value is; None for others."""
    parts = []
    for name, second in (("scalar.ne", 0), ("scalar.bit_and", 1), ("scalar.shr", None)):
        op = made.get(value)
        if op is None or op.name != name or op.operands[1] not in known:
            return None
        parts.append(int(known[op.operands[1]]))
        if second is not None and parts[-1] != second:
            return None
        value = op.operands[0]
    return (value, parts[-1]) if value.type.dtype == "u32" else None


def _reading_words(kernel: Func, places: Sequence[int]) -> Func | None:
    """The kernel whose parameters at `places`, a mask, are words; None where it is read in another way."""
    shape = kernel.params[places[0]].tensor.shape
    t = TensorType("u32", (*shape[:-1], shape[-1] // BITS))
    new = {kernel.params[i]: Value(t, kernel.params[i].hint) for i in places}
    ops = []
    for op in kernel.body.ops:
        if not new.keys() & set(op.operands):
            ops.append(op)
            continue
        changed = _op_reading_words(op, new)
        if changed is None:
            return None
        ops.append(changed)
    params = tuple(new.get(p, p) for p in kernel.params)
    return replace(kernel, body=Block(params, tuple(ops)))


def _chosen(kernel: Func | None, hardware: Hardware) -> Func | None:
    """The kernel with parameters for what it reads now, where it had some; None where there are none."""
    if kernel is None or not has_parameters(kernel):
        return kernel
    template = template_of(kernel)
    if template is None or template.choose_for_words is None:
        return None
    return template.choose_for_words(kernel, hardware)


def _op_reading_words(op: Op, new: Mapping[Value, Value]) -> Op | None:
    """An op that takes bits of words in place of elements; None where it has no body to do so in."""
    if op.body is None or "reads" not in op.attributes or len(reads(op)) != len(op.operands):
        return None
    if any(v in new and fill is not None for v, fill in zip(op.operands, fills(op), strict=True)):
        return None
    ranges, at = ranges_of(op), [tuple(r) for r in reads(op)]
    b, params, known = Builder(op.loc), list(op.body.params), dict[Value, Value]()
    s = Scalars(b)
    for i, v in enumerate(op.operands):
        if v not in new:
            continue
        *outer, inner = at[i]
        at[i] = (*outer, simplify(inner // BITS, ranges))
        _, (param,) = scalar_body(["u32"])
        word = Scalar(b, param).apply("shr", s.index(simplify(inner % BITS, ranges), "u32"))
        held = word.apply("bit_and", s.const(1, "u32")).apply("ne", s.const(0, "u32"))
        known[params[i]] = held.value
        params[i] = param
    body = Block(tuple(params), (*b.ops, *copied_ops(op.body.ops, known)))
    operands = tuple(new.get(v, v) for v in op.operands)
    return replace(op.with_attrs(reads=tuple(at)), operands=operands, body=body)
