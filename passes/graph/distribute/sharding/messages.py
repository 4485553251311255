"""The messages of a divided step: sums that wait together go together, and all go when they best do.

A sum that nothing reads before all of them are ready, as that of a gradient, may wait for others to share a
message with, whether all members get it or each its part. One that is read on the way goes at once, with
those that are ready by then. Parameters are gathered, several together where that pays, so long before they
are read as that takes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from tilewright.costmodel.links import Link
from tilewright.costmodel.op_work import Rates
from tilewright.ir.facts import Elements
from tilewright.ir.graph_ops.communication import ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER
from tilewright.ir.nodes import Func, Op, Value
from tilewright.ir.opdef import facts_of
from tilewright.passes.graph.distribute.sharding.joined_messages import joined_message, joins
from tilewright.passes.rewriting.values import replace_in_op

#: what ops do that are part of other kernels, or need none: they take no time of their own
_FREE = frozenset({Elements.MAPS, Elements.RESHAPES, Elements.CUTS, Elements.JOINS, Elements.KEEPS})
#: the share of calls and latencies in the time of a message below which more sums gain nothing
_CALL_SHARE = 0.1
#: numbers of sums, in program order, that share a message
Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Schedule:
    """The messages of a program in the model: how long they take, and how much of it computing hides.

    exposed_s: from the end of the op after which nothing but these sums is waited for to the last of them.
    """

    groups: Groups
    messages_s: float
    exposed_s: float


@dataclass(frozen=True)
class _Sum:
    """One sum: its number, the op after which its operand is there, and the first op that reads it.

    made: the position of what makes the operand; it may only map what was there after the op `ready`.
    """

    number: int
    op: Op
    ready: int
    made: int
    needed: int

    @property
    def nbytes(self) -> int:
        return self.op.operands[0].tensor.nbytes

    @property
    def kind(self) -> tuple[object, ...]:
        """Sums of one kind may share a message."""
        own = (self.op.name, self.op["ranks"], self.op.operands[0].tensor.dtype)
        return own if joins(self.op) else (*own, self.number)


def last_read_last(func: Func) -> Func:
    """The program with all that follows from sums on which no other message depends behind everything else.

    So such sums may wait for others, as those of gradients and of running statistics do.
    """
    ops = func.body.ops
    leading: set[Value] = set()  # what messages depend on
    for op in reversed(ops):
        if _communicates(op) or not leading.isdisjoint(op.results):
            leading.update(op.operands)
    following: set[Value] = set()
    behind: list[Op] = []
    before: list[Op] = []
    for op in ops[:-1]:
        if not following.isdisjoint(op.operands):
            following.update(op.results)
            behind.append(op)
            continue
        if op.name in (ALL_REDUCE, REDUCE_SCATTER) and op.result not in leading:
            following.add(op.result)
        before.append(op)
    return func.with_body(func.body.with_ops((*before, *behind, ops[-1])))


def scheduled(func: Func, rates: Rates, link: Link) -> Schedule:
    """The groups of sums of a program that end soonest by the model, in the order in which they are ready.

    Exact for messages of consecutive sums on a stream of their own: dynamic programming over where a message
    ends. One of n sums takes the seconds of a ring, and where n > 1 those of copying them together and apart.
    """
    sums = _sums(func)
    begins = _seconds(func, rates)
    last: dict[str, int] = {}
    for s in sums:
        last[s.op.name] = max(s.made, last.get(s.op.name, -1))
    waiting = [s for s in sums if s.needed > last[s.op.name]]
    groups: list[tuple[int, ...]] = _at_once([s for s in sums if s.needed <= last[s.op.name]])
    messages_s, end_s = 0.0, 0.0
    for kind in dict.fromkeys(s.kind for s in waiting):
        own = sorted((s for s in waiting if s.kind == kind), key=lambda s: (s.ready, s.number))
        sizes, ready_s = [s.nbytes for s in own], [begins[s.ready + 1] for s in own]
        chosen, taken, end = _messages(sizes, ready_s, _ring(own[0].op, link), rates)
        groups += [tuple(sorted(own[i].number for i in group)) for group in chosen]
        messages_s, end_s = messages_s + taken, max(end_s, end)
    backward_s = begins[max((s.ready for s in sums), default=-1) + 1]
    exposed = max(0.0, end_s - backward_s) if waiting else 0.0
    return Schedule(tuple(sorted(groups)), messages_s, exposed)


def _ring(op: Op, link: Link) -> Callable[[int], float]:
    """Seconds of a message such as `op`, by its bytes."""
    return partial(link.ring_s, op.name.removeprefix("graph."), len(op.integers("ranks")))


def _messages(
    nbytes: Sequence[int], ready_s: Sequence[float], ring: Callable[[int], float], rates: Rates
) -> tuple[list[range], float, float]:
    """Groups of messages that follow one another, given their bytes and when each is ready, in this order;
    the seconds of all of them, and the end of the last one.

    Of the groups that let the last message end soonest, those with the most members that still gain by it: a
    message as late as the model allows would come too late where the model is wrong.
    """
    sizes = [0, *accumulate(nbytes)]
    alone = [0.0, *accumulate(map(ring, nbytes))]

    def seconds(start: int, stop: int) -> float:
        moved = sizes[stop] - sizes[start]
        copied_s = 4 * moved / rates.bytes_per_s if stop - start > 1 else 0.0
        return ring(moved) + copied_s

    def end(start: int, stop: int) -> float:
        return max(ends[start], ready_s[stop - 1]) + seconds(start, stop)

    def pays(start: int, stop: int) -> bool:
        """Fewer messages take less time, and the calls are still a part of it without the first one."""
        if seconds(start, stop) > alone[stop] - alone[start]:
            return False
        return start + 1 == stop or call_s >= _CALL_SHARE * seconds(start + 1, stop)

    call_s = ring(0)
    ends = [0.0]  # of the first messages, by how many they are
    for stop in range(1, len(nbytes) + 1):
        ends.append(min(end(start, stop) for start in range(stop)))
    groups, stop, latest_s, taken_s = [], len(nbytes), ends[-1], 0.0
    while stop:
        timely = [s for s in range(stop) if end(s, stop) <= latest_s * (1 + 1e-12)]
        start = next((s for s in timely if pays(s, stop)), timely[-1])
        groups.append(range(start, stop))
        taken_s += seconds(start, stop)
        latest_s, stop = latest_s - seconds(start, stop), start
    return groups, taken_s, ends[-1]


def _at_once(sums: Sequence[_Sum]) -> list[tuple[int, ...]]:
    """Groups of sums that are read on the way: those that are ready before the first of them is read."""
    out: list[list[_Sum]] = []
    for s in sorted(sums, key=lambda s: (s.made, s.number)):
        group = next((g for g in out if g[0].kind == s.kind and s.made < min(o.needed for o in g)), None)
        if group is None:
            out.append([s])
        else:
            group.append(s)
    return [tuple(sorted(s.number for s in g)) for g in out]


def with_messages(func: Func, groups: Groups) -> Func:
    """The program with the sums of each group in one message, right behind the last of their operands."""
    sums = _sums(func)
    at: dict[int, list[list[_Sum]]] = {}
    for group in groups:
        own = [sums[n] for n in group]
        at.setdefault(max(s.made for s in own), []).append(own)
    moved = {s.op for s in sums}
    new: dict[Value, Value] = {}
    ops: list[Op] = []
    for position, op in enumerate((None, *func.body.ops), -1):
        if op is not None and op not in moved:
            ops.append(replace_in_op(op, new))
        for own in at.get(position, ()):
            ops += joined_message([s.op for s in own], new)
    return func.with_body(func.body.with_ops(tuple(ops)))


def gather_groups(func: Func, rates: Rates, link: Link) -> Groups:
    """The gathers of parameters, by number in program order, that share a message.

    The model looks back from the end: a message that brings what is read last goes last. Groups are those of
    sums in this order, so that the first message need not begin sooner than it would by itself.
    """
    begins = _seconds(func, rates)
    read = _first_reads(func)
    gathers = _gathers(func)
    out: list[tuple[int, ...]] = []
    kinds = {n: (op["ranks"], op.result.tensor.dtype) for n, op in enumerate(gathers) if joins(op)}
    for kind in dict.fromkeys(kinds.values()):
        own = sorted((n for n in kinds if kinds[n] == kind), key=lambda n: -read.get(gathers[n].result, 0))
        sizes = [gathers[n].result.tensor.nbytes for n in own]
        ready_s = [begins[-1] - begins[read.get(gathers[n].result, len(begins) - 1)] for n in own]
        chosen, _, _ = _messages(sizes, ready_s, _ring(gathers[own[0]], link), rates)
        out += [tuple(sorted(own[i] for i in group)) for group in chosen]
    return tuple(sorted(group for group in out if len(group) > 1))


def with_gathers(func: Func, groups: Groups) -> Func:
    """The program with the gathers of each group in one message, where the first of them was."""
    gathers, made = _gathers(func), {r: op for op in func.body.ops for r in op.results}
    own = {gathers[group[0]]: [gathers[n] for n in group] for group in groups}
    moved = {gathers[n] for group in groups for n in group}
    new: dict[Value, Value] = {}
    ops: list[Op] = []
    done: set[Op] = set()

    def bring(values: Sequence[Value]) -> None:
        """Have what makes these values in front: parameters, and what is made of them alone."""
        for op in (made[v] for v in values if v in made):
            if op not in done:
                bring(op.operands)
                done.add(op)
                ops.append(op)

    for op in func.body.ops:
        if op in own:
            bring([v for g in own[op] for v in g.operands])
            ops += joined_message(own[op], new)
        elif op not in moved and op not in done:
            done.add(op)
            ops.append(replace_in_op(op, new))
    return func.with_body(func.body.with_ops(tuple(ops)))


def _gathers(func: Func) -> list[Op]:
    """The messages that gather parameters, or what is made of them alone."""
    held = _held(func)
    return [op for op in func.body.ops if op.name == ALL_GATHER and op.operands[0] in held]


def _held(func: Func) -> set[Value]:
    """Parameters, and what is made of them and constants alone without time of its own."""
    held = set(func.params)
    for op in func.body.ops:
        free = op.name == "graph.constant" or (op.operands and facts_of(op.name).elements in _FREE)
        if free and held.issuperset(op.operands):
            held.update(op.results)
    return held


def _first_reads(func: Func) -> dict[Value, int]:
    """By value, the position of the first op that reads it."""
    read: dict[Value, int] = {}
    for i, op in enumerate(func.body.ops):
        for v in op.operands:
            read.setdefault(v, i)
    return read


def _sums(func: Func) -> list[_Sum]:
    """The sums over ranks of a program, in its order."""
    ops = func.body.ops
    made = {r: i for i, op in enumerate(ops) for r in op.results}
    read = _first_reads(func)
    there = _there(func)
    found = [
        op for op in ops if op.name == REDUCE_SCATTER or (op.name == ALL_REDUCE and op["reduction"] == "sum")
    ]
    return [
        _Sum(
            n,
            op,
            there.get(op.operands[0], -1),
            made.get(op.operands[0], -1),
            read.get(op.result, len(ops)),
        )
        for n, op in enumerate(found)
    ]


def _there(func: Func) -> dict[Value, int]:
    """By value, the position of the last op with time of its own that it waits for; -1 for none."""
    out = dict.fromkeys(func.params, -1)
    for position, op in enumerate(func.body.ops):
        free = facts_of(op.name).elements in _FREE
        after = max((out[v] for v in op.operands), default=-1) if free or not op.operands else position
        out.update((r, after) for r in op.results)
    return out


def _seconds(func: Func, rates: Rates) -> list[float]:
    """When each op begins, and the last one ends; maps are part of the kernels of others."""
    out = [0.0]
    for op in func.body.ops:
        elements = facts_of(op.name).elements
        free = elements in _FREE or elements is Elements.COMMUNICATES
        out.append(out[-1] + (0.0 if free else rates.compute_s(op)))
    return out


def message_order(func: Func, rates: Rates, link: Link) -> tuple[int, ...]:
    """The numbers, in program order, of all messages in the order in which they are to be sent."""
    messages = [op for op in func.body.ops if _communicates(op)]
    places = _places(func, rates, link)
    return tuple(sorted(range(len(messages)), key=lambda n: (places[messages[n]], n)))


def in_order(func: Func, order: Sequence[int], rates: Rates, link: Link) -> Func:
    """The program with its messages in this order, each no later than its place and before it is read."""
    ops = func.body.ops
    messages = [op for op in ops if _communicates(op)]
    places = _places(func, rates, link)
    waiting = [messages[n] for n in order]
    producers = {r: op for op in ops for r in op.results}
    out: list[Op] = []
    done: set[Op] = set()

    def append(last: Op) -> None:
        """Append an op behind all that it needs, and a message behind those before it."""
        stack = [last]
        while stack:
            op = stack[-1]
            needed = [p for v in op.operands if (p := producers.get(v)) is not None and p not in done]
            if _communicates(op) and waiting[0] is not op and op not in done:
                needed.append(waiting[0])
            if needed:
                stack.append(needed[-1])
                continue
            stack.pop()
            if op not in done:
                done.add(op)
                out.append(op)
                if _communicates(op):
                    waiting.pop(0)

    for position, op in enumerate(ops):
        while waiting and places[waiting[0]] <= position:
            append(waiting[0])
        if op not in done:
            append(op)
    return func.with_body(func.body.with_ops(tuple(out)))


def _places(func: Func, rates: Rates, link: Link) -> dict[Op, int]:
    """The position in the program before which each message goes."""
    ops = func.body.ops
    begins = _seconds(func, rates)
    there = _there(func)
    read, held = _first_reads(func), _held(func)
    out: dict[Op, int] = {}
    latest_s = begins[-1]
    for position, op in reversed(list(enumerate(ops))):
        if not _communicates(op):
            continue
        if op.name == ALL_GATHER and op.operands[0] in held:
            members = len(op.integers("ranks"))
            took = link.ring_s("all_gather", members, op.result.tensor.nbytes)
            latest_s = min(latest_s, begins[read.get(op.result, len(ops) - 1)]) - took
            out[op] = max(0, bisect_right(begins, latest_s) - 1)
        elif op.name in (REDUCE_SCATTER, ALL_REDUCE):
            out[op] = there[op.operands[0]] + 1
        else:
            out[op] = position
    return out


def _communicates(op: Op) -> bool:
    return facts_of(op.name).elements is Elements.COMMUNICATES
