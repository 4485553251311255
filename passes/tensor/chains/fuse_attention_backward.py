"""Pass fuse-attention-backward: gradients of attention compute weights again instead of storing them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import Block, Func, InputError, Level, Module, Op, Ref, Value
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.kernels.pair_sums.choice import choose_pair_sums
from tilewright.passes.kernels.pair_sums.view import pair_view
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.tensor.chains.attention_masks import with_computed_masks
from tilewright.passes.tensor.joins.estimates import alone_s
from tilewright.passes.tensor.joins.merge import merged, reshapes_filled

#: kernels that one of the new ones is made of, at most
MAX_KERNELS = 7
#: calls between a sum and the exponentials of its weights, at most
MOST_STEPS = 2
#: the new kernels are taken where their estimates are below this share of those of the old ones
CLEARLY = 0.9
WHEN = ("auto", "always", "never")


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def fuse_attention_backward(module: Module, ctx: PassContext, *, when: str = "auto") -> Module:
    """Make kernels of sums over pairs of queries and keys, each of which computes its weights by itself.

    rewrite:  %p = call(%q, %k, %lse, callee = @weights); %s = call(%g, %v, %p, %d, callee = @slopes)
              %dq = call(%s, %k, callee = @c0); %dk = call(%s, %q, callee = @c1);
              %dv = call(%p, %g, callee = @c2)
        -->   %dq = call(%q, %k, %lse, %g, %v, %d, callee = @c0_pairs)
              %dk, %dv = call(%q, %k, %lse, %g, %v, %d, callee = @c1_pairs)

    Several sums read the weights, so no chain may hold them; here every new kernel computes them again. What
    each is made of follows from terms (`passes/analysis/pair_sums.py`): nothing names attention. All sums
    that read the same weights are rewritten, or none. when: `auto` where the estimates of the new kernels are
    below 0.9 of the old ones', `always` where legal, `never`.
    """
    if when not in WHEN:
        raise InputError(f"expected when among {', '.join(WHEN)}, got {when!r}")
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or isinstance(hardware, CpuHardware):
        return module
    search = _Search(module, ctx, hardware)
    taken = [group for group in search.groups() if when == "always" or search.pays(group)]
    return search.replaced([made for group in taken for made in group]) if taken else module


@dataclass(frozen=True)
class _Sums:
    """Calls of @main that could be one kernel of sums over pairs: those whose results it gives come last."""

    calls: tuple[Op, ...]
    ends: tuple[Op, ...]
    chosen: Func
    arguments: tuple[Value, ...]
    returned: tuple[Value, ...]


class _Search:
    """Finds such kernels in a module of outlined kernels."""

    def __init__(self, module: Module, ctx: PassContext, hardware: Hardware) -> None:
        self.module, self.ctx, self.hardware = module, ctx, hardware
        # what other passes already decided about a kernel or a call would be lost
        self.kernels = {f.name: f for f in module.funcs if f.name != "main" and not f.attrs}
        self.ops = module.main.body.ops
        self.position = {id(op): i for i, op in enumerate(self.ops)}
        self.producer = {r: op for op in self.ops if op.name == "tensor.call" for r in op.results}
        self.constants = {op.result: str(op["name"]) for op in self.ops if op.name == "tensor.constant"}
        self.readers: dict[Value, list[Op]] = {}
        for op in self.ops:
            for v in op.operands:
                self.readers.setdefault(v, []).append(op)
        self.names: dict[str, tuple[frozenset[str], bool]] = {}
        self.known: dict[str, Func | None] = {}
        self.together: dict[int, tuple[Op, ...]] = {}  # calls whose results one kernel gives

    # -- single sums -----------------------------------------------------------------------------------------
    def _free(self, call: Op | None) -> bool:
        """Return whether a call may be part of such a kernel: it maps and multiplies, nothing else."""
        if call is None or call.name != "tensor.call" or [name for name, _ in call.attrs] != ["callee"]:
            return False
        kernel = self.kernels.get(callee_of(call))
        return kernel is not None and self._ops_of(kernel)[0] <= {"tensor.contract", "tensor.map"}

    def _ops_of(self, kernel: Func) -> tuple[frozenset[str], bool]:
        """The names of a kernel's ops, and whether one of them takes exponentials."""
        if kernel.name not in self.names:
            ops = kernel.body.ops[:-1]
            powers = any(o.name == "scalar.exp" for op in ops if op.body is not None for o in op.body.ops)
            self.names[kernel.name] = frozenset(op.name for op in ops), powers
        return self.names[kernel.name]

    def _above(self, calls: Sequence[Op]) -> Op | None:
        """The free call that these read from which it is the fewest calls up to exponentials; the latest of
        several.
        """
        inside = set(map(id, calls))
        found = (self.producer.get(v) for op in calls for v in op.operands)
        steps = {p: s for p in found if p is not None and id(p) not in inside
                 if (s := self._steps_to_powers(p, MOST_STEPS)) is not None}  # fmt: skip
        return min(steps, key=lambda p: (steps[p], -self.position[id(p)]), default=None)

    def _steps_to_powers(self, call: Op, most: int) -> int | None:
        """Calls up from a free call to one that takes exponentials; None where there are more than `most`."""
        if not self._free(call):
            return None
        if self._ops_of(self.kernels[callee_of(call)])[1]:
            return 0
        if not most:
            return None
        above = (self.producer.get(v) for v in call.operands)
        found = (self._steps_to_powers(p, most - 1) for p in above if p is not None)
        least = min((s for s in found if s is not None), default=None)
        return None if least is None else least + 1

    def _sums_of(self, end: Op) -> _Sums | None:
        """The sums that a call gives, with the calls above it that make its weights."""
        if not self._free(end) or "tensor.contract" not in self._ops_of(self.kernels[callee_of(end)])[0]:
            return None
        calls = [end]
        while len(calls) < MAX_KERNELS:
            above = self._above(calls)
            if above is None:
                return None
            calls = sorted([*calls, above], key=lambda op: self.position[id(op)])
            if any(self._ops_of(self.kernels[callee_of(c)])[1] for c in calls):
                made = self._made(calls, (end,))
                if made is not None:
                    return made
        return None

    def _made(self, calls: Sequence[Op], ends: tuple[Op, ...]) -> _Sums | None:
        """The calls as one kernel that gives the results of `ends`, with its parameters; None where none."""
        if reshapes_filled(calls, self.kernels):
            return None
        outputs = {r for op in ends for r in op.results}
        kernel, arguments, returned = merged(calls, self.kernels, outputs, f"{callee_of(ends[0])}_pairs")
        if pair_view(kernel) is None:
            return None
        kernel, arguments = with_computed_masks(kernel, arguments, self._array)
        text = kernel_text(kernel)
        if text not in self.known:
            canonical = self.ctx.estimator.canonical(kernel, self.ctx)
            self.known[text] = choose_pair_sums(canonical, self.hardware)
        chosen = self.known[text]
        if chosen is None:
            return None
        return _Sums(tuple(calls), ends, chosen, tuple(arguments), tuple(returned))

    def _array(self, v: Value) -> np.ndarray | None:
        """The data of a constant that the module holds."""
        name = self.constants.get(v, "")
        return np.asarray(self.module.constants[name]) if name in self.module.constants else None

    # -- groups ----------------------------------------------------------------------------------------------
    def groups(self) -> Iterator[list[_Sums]]:
        """Sums that read the same weights, as few kernels as are legal and faster; all of them, or none."""
        singles = [s for s in map(self._sums_of, self.ops) if s is not None]
        while singles:
            group, inside = [singles.pop(0)], set()
            while True:
                inside = {id(c) for s in group for c in s.calls}
                more = [s for s in singles if inside & {id(c) for c in s.calls}]
                if not more:
                    break
                group += more
                singles = [s for s in singles if s not in more]
            ends = {id(e) for s in group for e in s.ends}
            inner = {id(c): c for s in group for c in s.calls if id(c) not in ends}
            readers = (x for c in inner.values() for r in c.results for x in self.readers.get(r, ()))
            if all(id(x) in inside for x in readers):
                yield self._joined(group)

    def _joined(self, group: list[_Sums]) -> list[_Sums]:
        """The group with two kernels made one where that is legal and faster."""
        for one, other in combinations(group, 2):
            calls = {id(c): c for c in (*one.calls, *other.calls)}
            ordered = sorted(calls.values(), key=lambda op: self.position[id(op)])
            ends = tuple(sorted((*one.ends, *other.ends), key=lambda op: self.position[id(op)]))
            if self._needs_itself(ordered, ends):
                continue
            both = self._made(ordered, ends)
            apart = estimate_of(one.chosen) + estimate_of(other.chosen)
            if both is not None and estimate_of(both.chosen) < apart:
                self.together.update((id(op), ends) for op in ends)
                return self._joined([both, *(s for s in group if s not in (one, other))])
        return group

    def _needs_itself(self, calls: Sequence[Op], ends: Sequence[Op]) -> bool:
        """Return whether one of the calls waits, over others, for a result of the kernel made of them."""
        inside = set(map(id, calls))
        seen: set[int] = set()
        todo = [x for op in ends for r in op.results for x in self.readers.get(r, ())]
        while todo:
            for op in self.together.get(id(x := todo.pop()), (x,)):
                if id(op) in inside:
                    return True
                if id(op) not in seen:
                    seen.add(id(op))
                    todo += [x for r in op.results for x in self.readers.get(r, ())]
        return False

    def pays(self, group: Sequence[_Sums]) -> bool:
        """Return whether the new kernels are clearly faster than the old ones."""
        old = {id(c): c for s in group for c in s.calls}
        separate = sum(alone_s(self.kernels[callee_of(c)], self.ctx, self.hardware) for c in old.values())
        return sum(estimate_of(s.chosen) for s in group) < CLEARLY * separate

    # -- rewriting -------------------------------------------------------------------------------------------
    def replaced(self, taken: Sequence[_Sums]) -> Module:
        """The module with the calls of these kernels in place of the old ones, where the last of each was.

        What reads a result that was there earlier follows them.
        """
        module = self.module
        at = {id(s.ends[-1]): s for s in taken}
        gone = {id(c) for s in taken for c in s.calls}
        names = {f.name for f in module.funcs}
        kernels: list[Func] = []
        ops: list[Op] = []
        for op in self.ops:
            if id(op) in at:
                made = at[id(op)]
                kernel = replace(made.chosen, name=numbered(made.chosen.name, names))
                names.add(kernel.name)
                kernels.append(kernel)
                attrs = (("callee", Ref(kernel.name)),)
                ops.append(Op("tensor.call", made.arguments, attrs, made.returned, None, op.loc))
            elif id(op) not in gone:
                ops.append(op)
        called = {callee_of(op) for op in ops if op.name == "tensor.call"}
        main = module.main.with_body(Block(module.main.params, in_order(module.main.params, ops)))
        rest = [main if f is module.main else f for f in module.funcs if f.name in called or f is module.main]
        return module.with_funcs((*kernels, *rest))


def in_order(params: Sequence[Value], ops: Sequence[Op]) -> tuple[Op, ...]:
    """The ops in their order, but for those that read what is made later: they follow it."""
    made = set(params)
    ordered: list[Op] = []
    waiting: list[Op] = []
    for op in ops:
        waiting.append(op)
        while (ready := next((x for x in waiting if made.issuperset(x.operands)), None)) is not None:
            waiting.remove(ready)
            ordered.append(ready)
            made.update(ready.results)
    assert not waiting, "a call reads what no call makes"
    return tuple(ordered)
