"""Pass stack-products: products of a training step that share a factor become one, over stacked others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt, prod

from tilewright.costmodel import GpuHardware, Hardware, load_hardware
from tilewright.ir import Builder, Func, Level, Op, Value
from tilewright.ir.facts import Elements
from tilewright.ir.opdef import facts_of
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.backward_pass import forward_ops, ops_before_boundary
from tilewright.passes.graph.products.sum_of_products import joined_values, seconds_beside, summed
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.values import replace_in_op

#: results of a tile of a product, and terms of a part of its sums, of which a multiprocessor has one at least
TILE_RESULTS, PART_OF_SUM = 128 * 128, 1024


@register_pass(Level.GRAPH, requires={"shapes-known"})
def stack_products(func: Func, ctx: PassContext, *, always: bool = False) -> Func:
    """Compute products with one common factor, whose other factors are no constants, at once.

    rewrite:  %0 = graph.dense(%x, %w); %1 = graph.dense(%x, %v)
        -->   %0 = graph.concatenate(%w, %v, axis = 0); %1 = graph.dense(%x, %0);
              %2 = graph.strided_slice(%1, ...); %3 = graph.strided_slice(%1, ...)
    rewrite:  %0 = graph.matmul(%g, %x, transpose_a = true); %1 = graph.matmul(%h, %x, transpose_a = true)
        -->   %0 = graph.concatenate(%g, %h, axis = 1); %1 = graph.matmul(%0, %x, transpose_a = true); ...

    Queries, keys and values of attention in a training step, whose weights are state, and the gradients by
    these weights. Products that the backward pass reads stay apart: its kernels bring factors from where
    arrays begin. Biases that follow each product are stacked as well. Only functions with a backward pass
    have such products; `merge-products` stacks constants. They are rewritten where the estimate of the
    product and of all copies is not above that of the products apart: what joins in place later takes less.
    What one of these products has stacked, others have for nothing, also sums of products of the backward
    pass (`sum-of-products`): the three kinds are looked at until nothing changes, and then those that stack
    the same values all at once. always: whatever the estimates say.
    """
    if not forward_ops(func):
        return func
    func = _stacked(func, ctx, always=always)
    for values in [] if always else _stacked_alike(func):
        together = _stacked(func, ctx, values)
        if together is not func and _gained(func, together, ctx) >= 0:
            func = together
    return func


def _stacked(
    func: Func, ctx: PassContext, values: Collection[frozenset[Value]] = (), *, always: bool = False
) -> Func:
    """The function with products stacked until nothing changes; what stacks such values does at any price."""
    while True:
        before = func
        func = _stacked_once(func, ctx, values, always=always)
        func = summed(func, ctx, values, always=always)
        if func is before:
            return func


def _stacked_alike(func: Func) -> list[list[frozenset[Value]]]:
    """Sets of values that several products would stack, those together that one sum of products has."""
    readers = _readers(func)
    stacked = [
        frozenset(m.op.operands[m.stacked] for m in g) for g in _groups(func, forward_ops(func), readers)
    ]
    times = Counter(stacked)
    found: list[list[frozenset[Value]]] = []
    for both in joined_values(func):
        times.update(set(both))
        found.append(list(dict.fromkeys(both)))
    alone = [[v] for v in dict.fromkeys(stacked) if not any(v in values for values in found)]
    return [values for values in (*found, *alone) if any(times[v] > 1 for v in values)]


def _gained(before: Func, after: Func, ctx: PassContext) -> float:
    """Seconds that a function takes less after products were stacked; slices are read where they lie.

    What makes the longest chain of products longer counts as much again, as for single groups, where these
    products leave room for others beside them.
    """
    seconds, returned = seconds_beside(before, ctx), set(after.body.ops[-1].operands)
    known, left = set(before.body.ops), set(after.body.ops)
    joined = {(op.operands, op.attrs): op for op in after.body.ops if op.name == "graph.concatenate"}
    new = [
        op
        for op in after.body.ops[:-1]
        if op not in known
        and (op.name != "graph.strided_slice" or op.result in returned)
        and (op.name != "graph.concatenate" or joined[op.operands, op.attrs] is op)
    ]
    old = [op for op in before.body.ops[:-1] if op not in left]
    both = Counter(map(_kind, old)) & Counter(map(_kind, new))  # they read other values, and take as long
    gained_s = seconds(_without(old, both)) - seconds(_without(new, both))
    hardware = ctx.hardware or load_hardware(ctx.target)
    if all(
        _fills(op, hardware) for op in _without(old, both) if facts_of(op.name).elements is Elements.CONTRACTS
    ):
        return gained_s
    longer_s = _Chains(after, _alone(seconds)).longest_s - _Chains(before, _alone(seconds)).longest_s
    return gained_s - max(0.0, longer_s)


def _fills(op: Op, hardware: Hardware) -> bool:
    """Whether a product leaves no multiprocessor to others: each has a tile, or a part of its sums."""
    tiles = op.result.tensor.size // TILE_RESULTS
    summed = prod(v.tensor.size for v in op.operands[:2]) // op.result.tensor.size
    parts = max(1, isqrt(summed) // PART_OF_SUM)
    return not isinstance(hardware, GpuHardware) or tiles * parts >= hardware.sm_count


def _kind(op: Op) -> tuple[object, ...]:
    return op.name, op.attrs, *(v.type for v in op.operands)


def _without(ops: Sequence[Op], kinds: Mapping[tuple[object, ...], int]) -> list[Op]:
    """The ops but for so many of each kind."""
    left = Counter(kinds)
    kept = []
    for op in ops:
        if left[_kind(op)]:
            left[_kind(op)] -= 1
        else:
            kept.append(op)
    return kept


def _readers(func: Func) -> Mapping[Value, list[Op]]:
    readers: dict[Value, list[Op]] = defaultdict(list)
    for op in func.body.ops:
        for v in op.operands:
            readers[v].append(op)
    return readers


def _stacked_once(
    func: Func, ctx: PassContext, values: Collection[frozenset[Value]], *, always: bool
) -> Func:
    """The function with groups of products as one product each."""
    forward = forward_ops(func)
    seconds = None if always else seconds_beside(func, ctx)
    chains: _Chains | None = None
    readers = _readers(func)
    starts: dict[Op, list[Op]] = {}
    replaced: dict[Value, Value] = {}
    read: set[Value] = set()
    for members in _groups(func, forward, readers):
        bias = all(m.bias is not None for m in members)
        needed = {v for m in members for v in m.reads(bias)}
        results = [m.results(bias)[0] for m in members]
        place = _place(func, needed, results, readers)
        if place is None or needed & set(replaced) or read & set(results):
            continue  # one waits for another; what depends on other groups is looked at in the next round
        b = Builder(members[0].op.loc)
        members = _in_known_order(func, members)
        made = _emitted(b, members, bias)
        if seconds is not None and frozenset(m.op.operands[m.stacked] for m in members) not in values:
            copies = _copies(func, members, bias, b.ops)
            new = [op for op in b.ops if op.name != "graph.strided_slice" or op in copies]
            if chains is None:
                chains = _Chains(func, _alone(seconds))
            new_s = seconds(new) + chains.longer_by_s([m.op for m in members])
            if new_s > seconds([op for m in members for op in m.ops(bias)]):
                continue
        replaced.update((m.results(bias)[0], v) for m, v in zip(members, made, strict=True))
        read |= needed
        starts.setdefault(place, []).extend(b.ops)
    if not replaced:
        return func
    ops: list[Op] = []
    for op in func.body.ops:
        ops += starts.get(op, ())
        ops.append(replace_in_op(op, replaced))
    block = func.body.with_ops(tuple(ops))
    return func.with_body(block.with_ops(live_ops(block)))


def _alone(seconds: Callable[[Sequence[Op]], float]) -> Callable[[Op], float]:
    """The seconds of one op."""
    return lambda op: seconds([op])


class _Chains:
    """Chains of products in a function: seconds that must pass before and behind each op."""

    def __init__(self, func: Func, seconds: Callable[[Op], float]) -> None:
        ops = func.body.ops
        self._own_s = {op: seconds(op) for op in ops if facts_of(op.name).elements is Elements.CONTRACTS}
        self._before_s = self._on_the_way(ops, lambda op: op.operands, lambda op: op.results)
        self._behind_s = self._on_the_way(ops[::-1], lambda op: op.results, lambda op: op.operands)
        self.longest_s = max((self._before_s[op] + self._behind_s[op] for op in ops), default=0.0)

    def longer_by_s(self, members: Sequence[Op]) -> float:
        """By how much the longest chain grows where all members wait for the last of them."""
        before_s = max(self._before_s[op] for op in members)
        longest_s = before_s + max(self._own_s.get(op, 0.0) + self._behind_s[op] for op in members)
        return max(0.0, longest_s - self.longest_s)

    def _on_the_way(
        self,
        ops: Sequence[Op],
        sources: Callable[[Op], Sequence[Value]],
        targets: Callable[[Op], Sequence[Value]],
    ) -> dict[Op, float]:
        """Per op the most seconds of products on a way of values to it, without its own."""
        at: dict[Value, float] = {}
        seconds = {}
        for op in ops:
            seconds[op] = max((at.get(v, 0.0) for v in sources(op)), default=0.0)
            reached = seconds[op] + self._own_s.get(op, 0.0)
            for v in targets(op):
                at[v] = max(reached, at.get(v, 0.0))
        return seconds


def _place(
    func: Func, needed: Collection[Value], results: Sequence[Value], readers: Mapping[Value, Sequence[Op]]
) -> Op | None:
    """The op before which all that a group reads is there; None where that is behind a reader of a result."""
    number = {op: i for i, op in enumerate(func.body.ops)}
    made = [i for op, i in number.items() if any(r in needed for r in op.results)]
    ready = 1 + max(made, default=-1)
    first = min((number[x] for r in results for x in readers.get(r, ())), default=-1)
    return func.body.ops[ready] if ready <= first else None


def _in_known_order(func: Func, members: Sequence[_Member]) -> list[_Member]:
    """The members in the order in which their stacked factors are joined already, where they are."""
    by_value = {m.op.operands[m.stacked]: m for m in members}
    for op in func.body.ops:
        same = op.name == "graph.concatenate" and len(op.operands) == len(by_value)
        if same and set(op.operands) == set(by_value):
            return [by_value[v] for v in op.operands]
    return list(members)


def _groups(
    func: Func, forward: Collection[Op], readers: Mapping[Value, Sequence[Op]]
) -> list[list[_Member]]:
    """Products of one form with one common factor, of one pass."""
    apart = ops_before_boundary(func)
    groups: dict[object, list[_Member]] = defaultdict(list)
    for op in func.body.ops:
        for m in _members(op, readers):
            key = op.name, op.attrs, m.common, op.operands[m.stacked].type, op in forward, op in apart
            groups[key].append(m)
    return [
        members
        for members in groups.values()
        if 1 < len(members) == len({m.op.operands[m.stacked] for m in members})
    ]


@dataclass(frozen=True, eq=False)
class _Member:
    """A product, which of its factors all of a group have and which is stacked, and the bias behind it."""

    op: Op
    stacked: int
    bias: Op | None

    @property
    def common(self) -> tuple[int, Value]:
        """The factor that all have, with its position."""
        return 1 - self.stacked, self.op.operands[1 - self.stacked]

    def ops(self, bias: bool) -> list[Op]:
        """The ops that the whole takes the place of."""
        return [self.op, *([self.bias] if bias and self.bias is not None else [])]

    def reads(self, bias: bool) -> list[Value]:
        """What these read from elsewhere."""
        return [v for op in self.ops(bias) for v in op.operands if v is not self.op.result or op is self.op]

    def results(self, bias: bool) -> tuple[Value, ...]:
        """What these give."""
        return self.ops(bias)[-1].results


def _members(op: Op, readers: Mapping[Value, Sequence[Op]]) -> list[_Member]:
    """An op as a product whose factor may be stacked along the columns of the result, or along its rows."""
    if op.name == "graph.dense":
        users = readers.get(op.result, ())
        bias = users[0] if len(users) == 1 and users[0].name == "graph.bias_add" else None
        if bias is not None:
            axis = bias.integer("axis") % op.result.tensor.rank
            wide = axis == op.result.tensor.rank - 1 and bias.operands[0] is op.result
            bias = bias if wide else None
        return [_Member(op, 1, bias)]
    if op.name == "graph.matmul" and op.result.tensor.rank == 2:
        return [_Member(op, 0, None)]
    return []


def _emitted(b: Builder, members: Sequence[_Member], bias: bool) -> list[Value]:
    """The results of all members, as slices of one product."""
    op = members[0].op
    stacked = [m.op.operands[m.stacked] for m in members]
    if op.name == "graph.dense":
        axis, out = 0, op.result.tensor.rank - 1
    else:
        axis, out = (1 if op["transpose_a"] else 0), 0
    joined = b.value("graph.concatenate", *stacked, axis=axis)
    operands = [joined, op.operands[1]] if members[0].stacked == 0 else [op.operands[0], joined]
    (whole,) = b.emit(op.name, operands, dict(op.attrs))
    if bias:
        biases = [m.bias.operands[1] for m in members if m.bias is not None]
        first = members[0].bias
        assert first is not None
        joined = b.value("graph.concatenate", *biases, axis=0)
        (whole,) = b.emit("graph.bias_add", [whole, joined], dict(first.attrs))
    values, start = [], 0
    for m in members:
        shape = m.op.result.tensor.shape
        begin = tuple(start if d == out else 0 for d in range(len(shape)))
        values.append(
            b.value("graph.strided_slice", whole, begin=begin, size=shape, strides=(1,) * len(shape))
        )
        start += shape[out]
    return values


def _copies(func: Func, members: Sequence[_Member], bias: bool, ops: Sequence[Op]) -> list[Op]:
    """The slices that must be copied: what the function returns lies in an array of its own."""
    returned = set(func.body.ops[-1].operands)
    slices = [op for op in ops if op.name == "graph.strided_slice"]
    return [op for op, m in zip(slices, members, strict=True) if any(r in returned for r in m.results(bias))]
