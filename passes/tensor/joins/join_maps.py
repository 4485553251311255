"""Pass join-maps: short maps that need not wait for each other run as blocks of one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tilewright.costmodel import GpuHardware, load_hardware
from tilewright.ir import Func, InputError, Level, Module, Op, Ref, Value
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import POINTWISE
from tilewright.passes.analysis.memory_headroom import MEMORY_BUDGET
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.tensor.joins.estimates import alone_s
from tilewright.passes.tensor.joins.merge import is_plain, merged, reshapes_filled
from tilewright.passes.tensor.memory.order_kernels import calls_before, reordered, steps_of

#: a kernel is short where it takes at most as long as so many starts of kernels
SHORT_STARTS = 10
#: arrays that one launch reads and writes, at most: they are its arguments
MAX_ARRAYS = 96
WHEN = ("auto", "always", "never")


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def join_maps(module: Module, ctx: PassContext, *, when: str = "auto") -> Module:
    """Compute short maps of any shapes in one launch, each in blocks of its own.

    rewrite:  %a = call(%w, callee = @narrow_w); %y = call(%x, %a, callee = @product);
              %b = call(%v, callee = @narrow_v); %z = call(%y, %b, callee = @product)
        -->   %a, %b = call(%w, %v, callee = @narrow_w_maps); %y = call(%x, %a, callee = @product);
              %z = call(%y, %b, callee = @product)

    A launch takes a microsecond whatever it computes, and a step of training has hundreds of short ones:
    weights to 16 bits, statistics of norms, the ends of sums in parts, updates of weights. Those between
    which no path leads become one, at a place behind all that they read and before all that reads them. No
    more is alive at once than before. when: `auto` where the estimate of the joined kernel is below the sum
    of the others', on a GPU, except in a step with a budget of memory: where others overwrite an array that
    nobody needs any more, a joined launch takes one beside it; `always` where legal; `never`.
    """
    if when not in WHEN:
        raise InputError(f"expected when among {', '.join(WHEN)}, got {when!r}")
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or not isinstance(hardware, GpuHardware):
        return module
    if when == "auto" and module.main.get(MEMORY_BUDGET) is not None:
        return module
    kernels = {f.name: f for f in module.funcs if f.name != "main"}
    alone = {name: alone_s(f, ctx, hardware) for name, f in kernels.items() if _maps(f)}
    if when == "auto":
        alone = {n: s for n, s in alone.items() if s <= SHORT_STARTS * hardware.launch_floor_s}

    def pays(kernel: Func, calls: Sequence[Op]) -> bool:
        apart_s = sum(alone[callee_of(call)] for call in calls)
        return when == "always" or alone_s(kernel, ctx, hardware) < apart_s

    return _Search(module, set(alone), pays).module()


@dataclass(frozen=True)
class _Group:
    """Calls, by number, that become one in front of the call `at`."""

    members: tuple[int, ...]
    at: int


class _Search:
    """The calls of a module, more and more of which are joined."""

    def __init__(self, module: Module, short: set[str], pays: Callable[[Func, Sequence[Op]], bool]) -> None:
        self.current, self.short, self.pays = module, short, pays
        self.tried: set[Op] = set()
        self.names = {f.name for f in module.funcs}
        self.look()
        self.most_bytes = self.steps.peak_bytes(range(len(self.calls)))

    def look(self) -> None:
        """Note the order of the calls, and which must run before which."""
        main = self.current.main
        self.calls = [op for op in main.body.ops if op.name in ("tensor.call", COMMUNICATE)]
        self.before = [frozenset(b) for b in calls_before(main, self.calls)]
        self.steps = steps_of(self.current, self.calls, self.before)
        behind: list[list[int]] = [[] for _ in self.calls]
        for i, before in enumerate(self.before):
            for b in before:
                behind[b].append(i)
        #: places between calls: the call with the number of a place is the first one behind it
        self.earliest = [max(before, default=-1) + 1 for before in self.before]
        self.latest = [min(after, default=len(self.calls)) for after in behind]
        self.made = {r for op in self.calls for r in op.results}
        self.free = [i for i, op in enumerate(self.calls) if is_plain(op) and callee_of(op) in self.short]

    def module(self) -> Module:
        """The module with all that pays joined."""
        while any(self.take(first) for first in self.free if self.calls[first] not in self.tried):
            self.look()
        called = {callee_of(op) for op in self.calls if op.name == "tensor.call"}
        return self.current.with_funcs(
            tuple(f for f in self.current.funcs if f.name == "main" or f.name in called)
        )

    def take(self, first: int) -> bool:
        """Join the most calls with this one and those behind it; False where none can."""
        self.tried.add(self.calls[first])
        for group in sorted(self._groups(first), key=lambda g: -len(g.members)):
            calls = [self.calls[i] for i in group.members]
            order = self._order(group)
            if self._peak_bytes(group, order) <= self.most_bytes and self._replace(calls, order):
                return True
        return False

    def _groups(self, first: int) -> list[_Group]:
        """Calls that could run with this one, at places from the latest one to the next one.

        Beside all of them, those that keep the fewest bytes alive: half of them, a quarter and so on.
        """
        room = self.latest[first] - first
        found: dict[tuple[int, ...], _Group] = {}
        at = self.latest[first]
        while room > 0:
            members = [i for i in self.free if first <= i and self.earliest[i] <= at <= self.latest[i]]
            members = self._few(members)
            light = sorted(members, key=lambda i: (i != first, self._kept_bytes(i, at), i))
            while len(light) > 1:
                group = tuple(sorted(light))
                found.setdefault(group, _Group(group, at))
                light = light[: (len(light) + 1) // 2]
            room //= 2
            at = first + room + 1
        return list(found.values())

    def _kept_bytes(self, i: int, at: int) -> int:
        """Bytes of arrays of the arena that live longer where a call runs in front of this place."""
        op = self.calls[i]
        arrays = op.results if i >= at else (v for v in op.operands if v in self.made)
        return sum(v.tensor.nbytes for v in dict.fromkeys(arrays))

    def _few(self, members: Sequence[int]) -> list[int]:
        """The first of these calls, without those that others wait for, with few arrays in all."""
        arrays: set[Value] = set()
        out: list[int] = []
        for i in members:
            new = arrays | {*self.calls[i].operands, *self.calls[i].results}
            if len(new) > MAX_ARRAYS:
                break
            if self.before[i].isdisjoint(out):
                arrays = new
                out.append(i)
        return out

    def _order(self, group: _Group) -> list[int]:
        own = set(group.members)
        front = [i for i in range(group.at) if i not in own]
        return [*front, *group.members, *(i for i in range(group.at, len(self.calls)) if i not in own)]

    def _peak_bytes(self, group: _Group, order: Sequence[int]) -> int:
        """The most that is alive at once where one step touches what these do; it overwrites none of it."""
        touches, overwrites = list(self.steps.touches), list(self.steps.overwrites)
        all_touched = dict.fromkeys(v for i in group.members for v in touches[i])
        for i in group.members:
            touches[i], overwrites[i] = (), ()
        touches[group.members[0]] = tuple(all_touched)
        return replace(self.steps, touches=touches, overwrites=overwrites).peak_bytes(order)

    def _replace(self, calls: Sequence[Op], order: Sequence[int]) -> bool:
        """Put one call in the place of several that follow each other in an order; False if it is slower."""
        kernels = {f.name: f for f in self.current.funcs if f.name != "main"}
        if reshapes_filled(calls, kernels):
            return False
        outputs = {r for call in calls for r in call.results}
        name = numbered(f"{callee_of(calls[0])}_maps", self.names)
        kernel, arguments, returned = merged(calls, kernels, outputs, name, once=True)
        if not self.pays(kernel, calls):
            return False
        joined = calls[0].with_attrs(callee=Ref(name))
        joined = Op(joined.name, tuple(arguments), joined.attrs, tuple(returned), None, joined.loc)
        self.names.add(name)
        own = set(calls)
        body = reordered(self.current.main, [self.calls[i] for i in order])
        ops = tuple(joined if op is calls[0] else op for op in body.ops if op not in own or op is calls[0])
        main = self.current.main.with_body(body.with_ops(ops))
        self.current = self.current.with_funcs(
            (kernel, *(main if f.name == "main" else f for f in self.current.funcs))
        )
        return True


def _maps(kernel: Func) -> bool:
    """Return whether a kernel maps, and nothing is decided of it."""
    ops = kernel.body.ops[:-1]
    return bool(ops) and not kernel.attrs and {op.name for op in ops} <= POINTWISE
