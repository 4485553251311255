"""Puts calls of chains in place of the calls that they join: of candidates those that share none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from tilewright.ir import Block, Func, Module, Op, Ref, Value
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.tensor.chains.candidates import ChainCandidate


def disjoint(
    candidates: Iterable[ChainCandidate], preferred: Callable[[Func], bool] | None = None
) -> list[ChainCandidate]:
    """Candidates that share no call, by their gain: of the preferred ones first, then of others."""
    taken: list[ChainCandidate] = []
    used: set[int] = set()

    def rank(c: ChainCandidate) -> tuple[bool, float]:
        return preferred is not None and not preferred(c.chosen), -c.gain_s

    for c in sorted(candidates, key=rank):
        calls = set(map(id, c.calls))
        if not calls & used:
            used |= calls
            taken.append(c)
    return taken


def with_chains(module: Module, taken: Sequence[ChainCandidate]) -> Module:
    """The module with each candidate's calls replaced by one, where the last of them was."""
    if not taken:
        return module
    last = {id(c.calls[-1]): c for c in taken}
    gone = {id(op) for c in taken for op in c.calls}
    names = {f.name for f in module.funcs}
    kernels: list[Func] = []
    ops: list[Op] = []
    for op in module.main.body.ops:
        if id(op) in last:
            c = last[id(op)]
            kernel = replace(c.chosen, name=numbered(c.chosen.name, names))
            names.add(kernel.name)
            kernels.append(kernel)
            ops.append(_call(kernel, c.arguments, c.returned, op))
        elif id(op) not in gone:
            ops.append(op)
    called = {callee_of(op) for op in ops if op.name == "tensor.call"}
    main = module.main.with_body(Block(module.main.params, tuple(ops)))
    remaining = [
        main if f is module.main else f for f in module.funcs if f.name in called or f is module.main
    ]
    return module.with_funcs((*kernels, *remaining))


def _call(kernel: Func, arguments: Sequence[Value], returned: Sequence[Value], old: Op) -> Op:
    return Op(
        "tensor.call", tuple(arguments), (("callee", Ref(kernel.name)),), tuple(returned), None, old.loc
    )
