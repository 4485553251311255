"""Pairs of products of which the second multiplies the finished rows of the first, as calls of @main."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

from tilewright.costmodel import Hardware
from tilewright.ir import Func, Module, Op, Value
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes import PassContext
from tilewright.passes.analysis.constant_params import WEIGHTS
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.chained.choice import choose_chained
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.tensor.chains.candidates import ChainCandidate
from tilewright.passes.tensor.joins.estimates import alone_s
from tilewright.passes.tensor.joins.merge import (
    joinable_kernels,
    kernel_of,
    merged,
    reshapes_filled,
)

#: the kernel is taken where its estimate is below this share of those of its parts
CLEARLY = 0.95


def product_pairs(
    module: Module, ctx: PassContext, hardware: Hardware, *, legal: bool
) -> list[ChainCandidate]:
    """Pairs that share no call, those of the largest gain first. legal: also those that do not pay."""
    choice = _Choice(module, ctx, hardware)
    pairs = [p for p in choice.pairs() if legal or estimate_of(p.chosen) < CLEARLY * p.separate_s]
    taken: list[ChainCandidate] = []
    for pair in sorted(pairs, key=lambda p: -p.gain_s):
        used = {id(op) for other in taken for op in other.calls}
        free = not used & {id(op) for op in pair.calls}
        if free and in_order(module, [*taken, pair]) is not None:
            taken.append(pair)
    return taken


class _Choice:
    """Finds pairs, and asks for the kernels that they could be."""

    def __init__(self, module: Module, ctx: PassContext, hardware: Hardware) -> None:
        self.ctx, self.hardware = ctx, hardware
        self.ops = module.main.body.ops
        self.kernels = {
            name: f for name, f in joinable_kernels(module).items() if _is_product(f)
        }  # fmt: skip
        self.constants = {op.result for op in self.ops if op.name == "tensor.constant"}
        self.producer = {r: op for op in self.ops if self._joins(op) for r in op.results}
        self.readers: dict[Value, list[Op]] = {}
        for op in self.ops:
            for v in dict.fromkeys(op.operands):
                self.readers.setdefault(v, []).append(op)

    def _joins(self, op: Op) -> bool:
        return kernel_of(op, self.kernels) is not None

    def pairs(self) -> Iterator[ChainCandidate]:
        """Every pair that is legal, by the second call."""
        for op in self.ops:
            if not self._joins(op):
                continue
            producers = [self.producer[v] for v in op.operands if v in self.producer]
            for first in dict.fromkeys(producers):
                if (pair := self._pair(first, op)) is not None:
                    yield pair

    def _pair(self, first: Op, second: Op) -> ChainCandidate | None:
        calls = (first, second)
        if reshapes_filled(calls, self.kernels):
            return None
        outputs = {r for c in calls for r in c.results if c is second or self._read_outside(r, calls)}
        kernel, arguments, returned = merged(calls, self.kernels, outputs, f"{callee_of(second)}_chained")
        kernel = self._marked(kernel, arguments)

        def choose() -> Func | str:
            return choose_chained(self.ctx.estimator.canonical(kernel, self.ctx), self.hardware)

        # Both passes that look at pairs ask for the same kernels.
        question = ("chained", kernel_text(kernel), self.hardware, self.ctx.target)
        chosen = self.ctx.estimator.remembered(question, choose)
        if isinstance(chosen, str):
            return None
        chosen = replace(chosen, name=kernel.name)
        return ChainCandidate(
            calls, chosen, tuple(arguments), tuple(returned), sum(map(self._alone_s, calls))
        )

    def _read_outside(self, result: Value, calls: Sequence[Op]) -> bool:
        return any(op not in calls for op in self.readers.get(result, ()))

    def _alone_s(self, call: Op) -> float:
        kernel = self._marked(self.kernels[callee_of(call)], call.operands)
        return alone_s(kernel, self.ctx, self.hardware)

    def _marked(self, kernel: Func, arguments: Sequence[Value]) -> Func:
        """The kernel with the positions of its constant parameters, which can be stored in any order."""
        constant = tuple(i for i, v in enumerate(arguments) if v in self.constants)
        return kernel.with_attrs(**{WEIGHTS: constant})


def _is_product(kernel: Func) -> bool:
    """Return whether a kernel has one product, and nothing beside it but maps."""
    names = [op.name for op in kernel.body.ops[:-1]]
    return names.count("tensor.contract") == 1 and {*names} <= {"tensor.contract", "tensor.map"}


def in_order(module: Module, pairs: Sequence[ChainCandidate]) -> list[Op | ChainCandidate] | None:
    """The ops of @main with pairs in place of their calls, each behind what it reads; None where none is.

    What two calls read through another one that reads the first of them stands in the way, and so do pairs
    that read one another's results. Otherwise the order stays as it is, pairs where their second calls were.
    """
    pair_of = {id(op): pair for pair in pairs for op in pair.calls}
    ops = module.main.body.ops
    position = {id(op): i for i, op in enumerate(ops)}
    nodes: dict[int, Op | ChainCandidate] = {}
    place: dict[int, int] = {}
    for op in ops:
        pair = pair_of.get(id(op))
        place[id(op)] = position[id(op if pair is None else pair.calls[1])]
        nodes[place[id(op)]] = op if pair is None else pair
    writer = {r: place[id(op)] for op in ops for r in op.results}
    reads = {n: set[int]() for n in nodes}
    for op in ops:
        reads[place[id(op)]] |= {writer[v] for v in op.operands if v in writer} - {place[id(op)]}
    readers: dict[int, list[int]] = {n: [] for n in nodes}
    for n, before in reads.items():
        for other in before:
            readers[other].append(n)
    missing = {n: len(before) for n, before in reads.items()}
    ready = [n for n, count in missing.items() if not count]
    heapify(ready)
    out: list[Op | ChainCandidate] = []
    while ready:
        n = heappop(ready)
        out.append(nodes[n])
        for reader in readers[n]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return out if len(out) == len(nodes) else None
