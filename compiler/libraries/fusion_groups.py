"""Kernels that several of a network compute together, which a library may compute with one call."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from tilewright.ir import Func, Module, Op, Ref
from tilewright.libraries.groups import attention_groups
from tilewright.libraries.parts import parts_of


class FusionGroup(Protocol):
    """Kernels whose calls follow each other in @main, and the one kernel that computes the same."""

    @property
    def whole(self) -> Func:
        """The one kernel."""
        ...

    @property
    def sites(self) -> tuple[tuple[Op, ...], ...]:
        """The calls in @main that it may take the place of."""
        ...

    @property
    def chosen(self) -> str:
        """The parameters of the kernels as text."""
        ...

    def constants(self, known: Mapping[str, Collection[int]]) -> tuple[int, ...]:
        """Positions of the whole kernel's parameters that are constants at every site."""
        ...

    def program(self) -> Module:
        """A module whose @main calls the kernels."""
        ...

    def call(self, site: tuple[Op, ...]) -> Op:
        """The call of the whole kernel in the place of a site."""
        ...


def fusion_groups_of(module: Module) -> Iterator[FusionGroup]:
    """Attention, then sums in parts; those may share calls with each other."""
    yield from attention_groups(module)
    yield from parts_of(module)


def with_fused_kernels(module: Module, chosen: Collection[FusionGroup]) -> Module:
    """The module that calls the whole kernels at their sites; no two of them may share a call."""
    last = {id(site[-1]): (w, site) for w in chosen for site in w.sites}
    dropped = {id(op) for w in chosen for site in w.sites for op in site[:-1]}
    ops: list[Op] = []
    for op in module.main.body.ops:
        if id(op) in last:
            whole, site = last[id(op)]
            op = whole.call(site)
        if id(op) not in dropped:
            ops.append(op)
    entry = module.main.with_body(module.main.body.with_ops(tuple(ops)))
    called = {op.get("callee") for op in ops}
    kept = [f for f in module.funcs if f.name != "main" and Ref(f.name) in called]
    return module.with_funcs((*kept, *(w.whole for w in chosen), entry))
