"""Attention that several kernels compute one after another, as the one kernel it is."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir import Block, Builder, Func, Level, Module, Op, Pairs, Ref, Value
from tilewright.libraries.matching.attention import attentions_in
from tilewright.libraries.matching.constants import KernelConstants, facts_in
from tilewright.measuring.kernel_program import estimate_of
from tilewright.passes.kernels.contract.template import CONTRACT
from tilewright.passes.rewriting.values import use_counts
from tilewright.passes.tensor.chains.merge import merged, reshapes_filled
from tilewright.passes.tensor.share_kernels import kernel_text

#: kernels that attention is looked for in, at most
MAX_KERNELS = 4


@dataclass(frozen=True, eq=False)
class Group:
    """Calls of kernels whose results only the next of them reads.

    kernels: those called, in order. whole: one kernel that computes the same; its parameters are what
    `wiring` says: per kernel and parameter the position in those of the whole, or -1 - i for the result of
    kernel i. sites: the calls in @main, with the arguments of the whole kernel there.
    """

    kernels: tuple[Func, ...]
    whole: Func
    wiring: tuple[tuple[int, ...], ...]
    sites: tuple[tuple[Op, ...], ...]
    arguments: tuple[tuple[Value, ...], ...]

    @property
    def chosen(self) -> str:
        """The parameters of the kernels as text."""
        return str([f.get("params") for f in self.kernels])

    def constants(self, known: Mapping[str, Collection[int]]) -> tuple[int, ...]:
        """Positions of the whole kernel's parameters that are constants at every site."""
        found = {
            at: p in known[f.name]
            for f, places in zip(self.kernels, self.wiring, strict=True)
            for p, at in enumerate(places)
            if at >= 0
        }
        return tuple(sorted({at for at, constant in found.items() if constant} | set(facts_in(self.whole))))

    def program(self) -> Module:
        """A module whose @main calls the kernels."""
        params = tuple(Value(p.type, p.hint) for p in self.whole.params)
        b = Builder()
        results: list[Value] = []
        for f, places in zip(self.kernels, self.wiring, strict=True):
            operands = [params[at] if at >= 0 else results[-1 - at] for at in places]
            results += b.emit("tensor.call", operands, {"callee": Ref(f.name)}, types=f.result_types)
        b.emit("tensor.return", results[-1:])
        main = Func(Level.TENSOR, "main", Block(params, tuple(b.ops)), self.kernels[-1].result_types)
        unique = {f.name: f for f in self.kernels}
        return Module(self.whole.name, (*unique.values(), main))

    def call(self, site: tuple[Op, ...]) -> Op:
        """The call of the whole kernel in the place of the last one of a site."""
        at = next(i for i, s in enumerate(self.sites) if s is site)
        return replace(site[-1].with_attrs(callee=Ref(self.whole.name)), operands=self.arguments[at])


def attention_groups(module: Module) -> list[Group]:
    """Attention in two to `MAX_KERNELS` kernels; calls that compute the same are sites of one group."""
    kernels = {f.name: f for f in module.funcs if f.name != "main"}
    known, uses = KernelConstants(module), use_counts(module.main.body)
    returned = set(module.main.body.ops[-1].operands)
    producer = {
        op.result: op
        for op in module.main.body.ops
        if op.name == "tensor.call" and len(op.results) == 1 and uses[op.result] == 1
        and op.result not in returned
    }  # fmt: skip
    by_text: dict[str, Group] = {}
    names = set(kernels)
    for op in module.main.body.ops:
        ref = op.get("callee")
        if not isinstance(ref, Ref) or len(op.results) != 1 or not _contracts([kernels[ref.name]]):
            continue
        for calls in _ending_in((op,), producer):
            found = _group(calls, kernels, known)
            if found is None:
                continue
            key = f"{[f.name for f in found.kernels]} {kernel_text(found.whole)}"
            if key in by_text:
                first = by_text[key]
                by_text[key] = replace(
                    first, sites=(*first.sites, *found.sites), arguments=(*first.arguments, *found.arguments)
                )
            else:
                by_text[key] = replace(found, whole=_named(found.whole, names))
            break
    return list(by_text.values())


def _ending_in(calls: tuple[Op, ...], producer: Mapping[Value, Op]) -> Iterator[tuple[Op, ...]]:
    """Chains of calls, each reading the one before, the shortest first."""
    chains = [calls]
    for _ in range(MAX_KERNELS - 1):
        chains = [
            (producer[v], *chain)
            for chain in chains
            for v in dict.fromkeys(chain[0].operands)
            if v in producer
        ]
        yield from chains


def _contracts(kernels: Sequence[Func]) -> int:
    return sum(op.name == "tensor.contract" for f in kernels for op in f.body.ops)


def _group(calls: tuple[Op, ...], kernels: dict[str, Func], known: KernelConstants) -> Group | None:
    called = [kernels[str(op["callee"].name)] for op in calls]  # type: ignore[union-attr]
    if _contracts(called) < 2 or _exponentials(called) < 1 or reshapes_filled(calls, kernels):
        return None
    whole, arguments, _ = merged(calls, kernels, set(calls[-1].results), f"{called[-1].name}_attention")
    whole = known.computed_in(whole, arguments)
    # Products around it are better off as kernels of their own.
    ways = attentions_in(whole)
    if not ways or _contracts(called) > sum(op.name == "tensor.contract" for op in ways[0].ops):
        return None
    made = {op.result: -1 - i for i, op in enumerate(calls)}
    place = {(v, p.type): i for i, (v, p) in enumerate(zip(arguments, whole.params, strict=True))}
    wiring = tuple(
        tuple(made[v] if v in made else place[v, p.type] for v, p in zip(op.operands, f.params, strict=True))
        for op, f in zip(calls, called, strict=True)
    )
    cost = called[-1].get("cost")
    if isinstance(cost, Pairs):
        cost = Pairs.of({**cost.as_dict(), "estimate_s": sum(map(estimate_of, called))})
    whole = whole.with_attrs(skeleton=CONTRACT.name, cost=cost)
    return Group(tuple(called), whole, wiring, (calls,), (tuple(arguments),))


def _exponentials(kernels: Sequence[Func]) -> int:
    bodies = (op.body for f in kernels for op in f.body.ops if op.body is not None)
    return sum(inner.name == "scalar.exp" for body in bodies for inner in body.ops)


def _named(whole: Func, names: set[str]) -> Func:
    name, number = whole.name, 0
    while name in names:
        number += 1
        name = f"{whole.name}_{number}"
    names.add(name)
    return replace(whole, name=name)
