"""A training step in the forms that its runs take: conditions on counters decided, what they rule out gone.

A step that accumulates gradients updates in every k-th run only, which `where` on the count of runs says. The
host knows the count before a run, and with it which form of the step has the same results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.ir import Block, Func, Module, Op, Value, interpret
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.decided import CONDITION, DECIDING, decided

#: state of so many bytes may be the host's
NUMBER_BYTES = 64
#: the value of every condition of a form, in the order of `HostState.conditions`
Form = tuple[bool, ...]


def host_state_names(main: Func) -> tuple[str, ...]:
    """Small state whose new values follow from such state and constants alone: counters, rates, seeds."""
    results = main.body.ops[-1].operands
    new = {main.params[i]: results[j] for i, j in main.updates}
    host = {s for s in new if s.tensor.nbytes <= NUMBER_BYTES}
    while True:
        known = _known(main, host)
        kept = {s for s in host if new[s] in known}
        if kept == host:
            return tuple(s.hint for s in new if s in host)
        host = kept


def _known(main: Func, host: Iterable[Value]) -> set[Value]:
    """The values that are made of `host` and constants alone."""
    known = set(host)
    for op in main.body.ops[:-1]:
        if all(v in known for v in op.operands):
            known.update(op.results)
    return known


@dataclass(frozen=True)
class HostState:
    """What the host computes of a step before a run: its host state, and conditions that choose a form.

    conditions: scalars of @main that decide, as conditions of `where`, what the host does not compute.
    only: the names that may be among the host's; all of them where it is None.
    """

    module: Module
    only: frozenset[str] | None = None

    @cached_property
    def names(self) -> tuple[str, ...]:
        found = host_state_names(self.module.main)
        return tuple(n for n in found if self.only is None or n in self.only)

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """The state itself, as parameters of @main."""
        names = set(self.names)
        return tuple(p for p in self.module.main.params if p.hint in names)

    @cached_property
    def conditions(self) -> tuple[Value, ...]:
        main = self.module.main
        known = _known(main, self.values)
        found: dict[Value, None] = {}
        for op in main.body.ops:
            if op.name not in DECIDING or op.result in known:
                continue
            for v in op.operands[:1] if op.name == "graph.where" else op.operands:
                if v in known and v.type == CONDITION:
                    found[v] = None
        return tuple(found)

    @cached_property
    def _next(self) -> Module:
        main = self.module.main
        results = main.body.ops[-1].operands
        new = {main.params[i]: results[j] for i, j in main.updates}
        outputs = (*(new[v] for v in self.values), *self.conditions)
        end = Op("graph.return", outputs)
        block = Block(self.values, (*main.body.ops[:-1], end))
        needed = live_ops(block)
        own = {v for op in needed for v in op.operands}
        block = Block(self.values, needed)
        types = tuple(v.type for v in outputs)
        assert own <= {*self.values, *(r for op in needed for r in op.results)}
        func = Func(main.level, "main", block, types)
        return Module("host", (func,), (), self.module.constants)

    def after(self, state: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], Form]:
        """The host state after a run that begins with `state`, and the form of this run."""
        results = interpret(self._next, *(state[n] for n in self.names))
        count = len(self.names)
        new = {n: np.asarray(r) for n, r in zip(self.names, results[:count], strict=True)}
        return new, tuple(bool(r) for r in results[count:])

    def decided(self, form: Form) -> Func:
        """@main where the conditions are what `form` says; values that both have are the same objects."""
        return decided(self.module.main, dict(zip(self.conditions, form, strict=True)))
