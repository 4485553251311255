"""Pass order-kernels: kernels run in an order that keeps few bytes alive.

Which order of a given dependency graph has the lowest peak is NP-hard to say (Sethi, Complete register
allocation problems, 1975), so several orders are made and the best one is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heapify, heappop, heappush
from itertools import pairwise

from tilewright.ir import Block, Func, Level, Module, Op, Ref, Value
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.memory_headroom import joined_arrays, overwritten_operands


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def order_kernels(module: Module, ctx: PassContext, *, share: float = 0.95, above: int = 1 << 20) -> Module:
    """Order the calls of @main for a lower peak of memory.

    rewrite:  %a = call(%x); %b = call(%y); %c = call(%a); %d = call(%b); %e = call(%c, %d)
        -->   %a = call(%x); %c = call(%a); %b = call(%y); %d = call(%b); %e = call(%c, %d)
              where %a is larger than %c

    A new order is taken where its peak is at most `share` of that of the order before, and none is looked for
    where at most `above` bytes are alive. What reads state stays before the kernel that writes its new value,
    and communications keep their order.
    """
    calls = [op for op in module.main.body.ops if op.name in ("tensor.call", COMMUNICATE)]
    after = calls_before(module.main, calls)
    # The order as it is, but for readers of state that come behind what writes it.
    valid = in_order(after, lambda step: (step,))
    steps = steps_of(module, [calls[i] for i in valid], _renumbered(after, valid))
    before = steps.peak_bytes(range(len(calls)))
    if before <= above:
        return module
    order = least_memory_order(steps)
    if steps.peak_bytes(order) > share * before:
        return module
    body = reordered(module.main, [calls[valid[i]] for i in order])
    return module.with_funcs(tuple(f.with_body(body) if f is module.main else f for f in module.funcs))


def calls_before(main: Func, calls: Sequence[Op]) -> list[set[int]]:
    """Per call those that must run before it, by number."""
    makers: dict[Value, frozenset[int]] = {}  # of the parts of a joined array there are several
    number = {op: i for i, op in enumerate(calls)}
    after: list[set[int]] = []
    for op in main.body.ops[:-1]:
        before = frozenset[int]().union(*(makers.get(v, ()) for v in op.operands))
        if op in number:
            after.append(set(before))
            before = frozenset((number[op],))
        makers.update(dict.fromkeys(op.results, before))
    communications = [i for i, op in enumerate(calls) if op.name == COMMUNICATE]
    for earlier, later in pairwise(communications):
        after[later].add(earlier)
    followers: list[set[int]] = [set() for _ in calls]
    for i, before_it in enumerate(after):
        for b in before_it:
            followers[b].add(i)
    readers: dict[Value, list[int]] = {}
    for i, op in enumerate(calls):
        for v in dict.fromkeys(op.operands):
            readers.setdefault(v, []).append(i)
    returned = main.body.ops[-1].operands
    for p, r in main.updates:
        for writer in makers.get(returned[r], ()):
            for reader in readers.get(main.params[p], ()):
                if reader != writer and not reaches(followers, writer, reader):
                    after[writer].add(reader)
                    followers[reader].add(writer)
    return after


def reaches(followers: Sequence[set[int]], first: int, last: int) -> bool:
    """Return whether a step runs before another one in every order; followers: of each step, by number."""
    seen, line = {first}, [first]
    while line:
        new = followers[line.pop()] - seen
        if last in new:
            return True
        seen |= new
        line += new
    return False


def _renumbered(after: Sequence[set[int]], order: Sequence[int]) -> list[frozenset[int]]:
    place = {i: k for k, i in enumerate(order)}
    return [frozenset(place[b] for b in after[i]) for i in order]


def steps_of(module: Module, calls: Sequence[Op], after: Sequence[frozenset[int]]) -> Steps:
    """The calls as steps. Parameters, constants and new values of state have memory of their own."""
    main = module.main
    whole = joined_arrays(main)
    returned = main.body.ops[-1].operands
    state = {returned[r] for _, r in main.updates}
    made = {r for op in main.body.ops if op.name != "tensor.constant" for r in op.results} - state
    numbers: dict[Value, int] = {}
    touches, overwrites = [], []
    for op in calls:
        values = [whole.get(v, v) for v in (*op.operands, *op.results) if v in made]
        touches.append(tuple(numbers.setdefault(v, len(numbers)) for v in dict.fromkeys(values)))
        ref = op.get("callee")
        over = overwritten_operands(op, module[ref.name], whole) if isinstance(ref, Ref) else []
        overwrites.append(tuple(numbers[v] for v in over if v in numbers))
    kept = frozenset(numbers[v] for v in (whole.get(v, v) for v in returned) if v in numbers)
    return Steps(touches, [v.tensor.nbytes for v in numbers], after, kept, overwrites)


def reordered(main: Func, calls: Sequence[Op]) -> Block:
    """The body of @main with its calls in this order, each join behind what it joins."""
    known = set(calls)
    *others, end = (op for op in main.body.ops if op not in known)
    ops: list[Op] = []
    there = set(main.params)

    def add(new: Sequence[Op]) -> None:
        ops.extend(new)
        there.update(r for op in new for r in op.results)

    add([op for op in others if not op.operands])
    joins = [op for op in others if op.operands]  # in order, so that joins of joins come behind them
    for call in calls:
        add([call])
        for join in list(joins):
            if there.issuperset(join.operands):
                add([join])
                joins.remove(join)
    return main.body.with_ops((*ops, end))


@dataclass(frozen=True)
class Steps:
    """Steps in a valid order. touches: per step the arrays it reads or writes; nbytes: of each array.

    after: per step those that run before it, by number. kept: arrays that hold their bytes to the end.
    overwrites: per step the arrays whose place a result of equal size takes, where nobody reads them later.
    """

    touches: Sequence[tuple[int, ...]]
    nbytes: Sequence[int]
    after: Sequence[frozenset[int]]
    kept: frozenset[int]
    overwrites: Sequence[tuple[int, ...]]

    @cached_property
    def followers(self) -> list[list[int]]:
        """Per step those that wait for it."""
        out: list[list[int]] = [[] for _ in self.after]
        for step, before in enumerate(self.after):
            for b in before:
                out[b].append(step)
        return out

    @cached_property
    def uses(self) -> list[int]:
        """Per array the number of steps that touch it; one more where it is kept."""
        out = [int(v in self.kept) for v in range(len(self.nbytes))]
        for touched in self.touches:
            for v in touched:
                out[v] += 1
        return out

    def alive_bytes(self, order: Sequence[int]) -> list[int]:
        """Bytes that are alive during each step of an order."""
        run = _Run(self)
        return [run.step(i) for i in order]

    def peak_bytes(self, order: Sequence[int]) -> int:
        """The most that is alive during one step of an order."""
        return max(self.alive_bytes(order), default=0)


class _Run:
    """Steps that have run: what is alive behind them."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.left = list(steps.uses)
        self.alive = [False] * len(steps.nbytes)
        self.alive_bytes = 0

    def change(self, step: int) -> int:
        """Bytes by which a step changes what is alive behind it."""
        nbytes, total = self.steps.nbytes, 0
        for v in self.steps.touches[step]:
            if self.left[v] == 1:
                total -= nbytes[v] if self.alive[v] else 0
            elif not self.alive[v]:
                total += nbytes[v]
        return total

    def step(self, step: int) -> int:
        """Run a step; the bytes that are alive during it."""
        nbytes = self.steps.nbytes
        touched = self.steps.touches[step]
        for v in touched:
            if not self.alive[v]:
                self.alive[v] = True
                self.alive_bytes += nbytes[v]
        over = [nbytes[v] for v in self.steps.overwrites[step] if self.left[v] == 1]
        during = self.alive_bytes - max(over, default=0)
        for v in touched:
            self.left[v] -= 1
            if not self.left[v]:
                self.alive[v] = False
                self.alive_bytes -= nbytes[v]
        return during


def in_order(after: Sequence[Collection[int]], key: Callable[[int], tuple[int, ...]]) -> list[int]:
    """An order of steps, each behind those in `after`: the ready step of the least key, again and again."""
    waits = [len(a) for a in after]
    followers: list[list[int]] = [[] for _ in after]
    for step, before in enumerate(after):
        for b in before:
            followers[b].append(step)
    ready = [(key(i), i) for i, n in enumerate(waits) if not n]
    heapify(ready)
    order = []
    while ready:
        _, i = heappop(ready)
        order.append(i)
        for f in followers[i]:
            waits[f] -= 1
            if not waits[f]:
                heappush(ready, (key(f), f))
    return order


def least_memory_order(steps: Steps) -> list[int]:
    """The order of the lowest peak among a few, the given one among them; that one where none is lower."""
    given = list(range(len(steps.touches)))
    best, least = given, steps.peak_bytes(given)
    late = _late(steps)
    place = {step: i for i, step in enumerate(late)}
    heights = _heights(steps)
    orders: tuple[Callable[[], list[int]], ...] = (
        lambda: late,
        lambda: _ended_early(steps, place.__getitem__),
        lambda: _ended_early(steps, lambda step: -heights[step]),
        lambda: _depth_first(steps),
    )
    for make in orders:
        order = make()
        peak = steps.peak_bytes(order)
        if peak < least:
            best, least = order, peak
    return best


def _late(steps: Steps) -> list[int]:
    """The given order, with steps that make more than they end right before the first that waits for them."""
    run = _Run(steps)
    grows = []
    for i in range(len(steps.touches)):
        grows.append(run.change(i) > 0)
        run.step(i)
    # A key is the place of a step in the given order, then how far before that step this one stands.
    keys: list[tuple[int, int]] = [(i, 0) for i in range(len(grows))]
    for i in reversed(range(len(grows))):
        if grows[i] and steps.followers[i]:
            place, before = min(keys[f] for f in steps.followers[i])
            keys[i] = (place, before - 1)
    return in_order(steps.after, lambda step: (*keys[step], step))


def _heights(steps: Steps) -> list[int]:
    """Per step the length of the longest chain of steps that waits for it."""
    out = [0] * len(steps.after)
    for i in reversed(range(len(out))):
        out[i] = 1 + max((out[f] for f in steps.followers[i]), default=0)
    return out


def _depth_first(steps: Steps) -> list[int]:
    """What the latest step made ready runs next: one part of a batch to its end, then the other one."""
    waits = [len(a) for a in steps.after]
    stack = [i for i in reversed(range(len(waits))) if not waits[i]]
    out: list[int] = []
    while stack:
        out.append(stack.pop())
        for f in sorted(steps.followers[out[-1]], reverse=True):
            waits[f] -= 1
            if not waits[f]:
                stack.append(f)
    return out


def _ended_early(steps: Steps, key: Callable[[int], int]) -> list[int]:
    """As soon as they are ready, steps after which no more is alive than before; else the least key.

    So does a step whose result makes such steps ready that end more than it adds: a gradient and the update
    of its weight.
    """
    run = _Run(steps)
    waits = [len(a) for a in steps.after]
    ready = {i for i, n in enumerate(waits) if not n}
    out: list[int] = []

    def take(i: int) -> None:
        out.append(i)
        run.step(i)
        ready.discard(i)
        for f in steps.followers[i]:
            waits[f] -= 1
            if not waits[f]:
                ready.add(f)

    while ready:
        changes = {i: run.change(i) + _behind(steps, run, waits, i) for i in ready}
        i = min(ready, key=lambda i: (changes[i], key(i), i))
        if changes[i] > 0:
            i = min(ready, key=lambda i: (key(i), i))
        take(i)
    return out


def _behind(steps: Steps, run: _Run, waits: Sequence[int], step: int) -> int:
    """Bytes that steps which wait for this one alone end of what it adds; at most nothing."""
    added = {v for v in steps.touches[step] if not run.alive[v]}
    total = 0
    for f in steps.followers[step]:
        if waits[f] != 1:
            continue
        change = 0
        for v in steps.touches[f]:
            left = run.left[v] - (v in steps.touches[step])
            here = run.alive[v] or v in added
            if left == 1:
                change -= steps.nbytes[v] if here else 0
            elif not here:
                change += steps.nbytes[v]
        total += min(change, 0)
    return total
