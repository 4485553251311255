"""Joins kernels that feed each other into chains: intermediates stay in shared memory, where it pays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import Block, Func, InputError, Level, Module, Op, Ref, UnsupportedError, Value
from tilewright.passes import PassContext, register_pass
from tilewright.passes.kernels.attention.choice import may_become_attention
from tilewright.passes.kernels.chain.choice import ChosenChain, choose_chain
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.kernels.registry import chosen_template
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.tensor.chains.candidates import ChainCandidate, ChainSearch
from tilewright.passes.tensor.chains.merge import callee_of
from tilewright.passes.tensor.share_kernels import kernel_text

#: a chain is taken where its estimate is below this share of the estimates of its kernels
CLEARLY = 0.9
WHEN = ("auto", "always", "never")


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def chain_kernels(
    module: Module, ctx: PassContext, *, when: str = "auto", only: str = "", attention: str = "auto"
) -> Module:
    """Make one kernel of several whose intermediates fit shared memory, block by block.

    rewrite:  %s = call(%q, %k, callee = @scores); %p = call(%s, callee = @softmax);
              %o = call(%p, %v, callee = @mix)   -->   %o = call(%q, %k, %v, callee = @mix_chain)

    Legality follows from index sets: the box of each intermediate that a block needs, walked back from its
    part of the result. when: `auto` where the model sees a gain of more than a tenth, `always` where legal,
    `never`. only: chains whose anchors, joined by `-`, contain this text, or one of several joined by `+`
    (`contract-reduce+reduce-reduce`: attention, and reductions after each other; the official pipeline looks
    for these two, since a search for all kinds takes longer to compile). attention: whether it is
    computed in registers on tensor cores: where the model finds that fastest, `always` where legal, `never`.
    """
    for name, value in (("when", when), ("attention", attention)):
        if value not in WHEN:
            raise InputError(f"expected {name} among {', '.join(WHEN)}, got {value!r}")
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or (when == "auto" and isinstance(hardware, CpuHardware)):
        return module
    model = _Model(ctx, hardware, attention)
    wanted = partial(_possible, only=only)
    candidates = ChainSearch(module, model.choose, model.seconds, wanted, may_become_attention)
    found = [
        c for c in candidates.all()
        if _wanted(anchors(c.chosen.kernel), only) and _taken(c, when, attention)
    ]  # fmt: skip
    taken = _disjoint(found, registers_first=attention == "always")
    return _replaced(module, taken) if taken else module


def _wanted(found: str, only: str) -> bool:
    return any(text in found for text in only.split("+"))


def _possible(ops: Counter[str], only: str) -> bool:
    """Whether a chain of kernels with these ops can have the anchors that are asked for."""
    needed = (Counter(f"tensor.{name}" for name in text.split("-") if name) for text in only.split("+"))
    return any(n <= ops for n in needed)


def _taken(c: ChainCandidate, when: str, attention: str) -> bool:
    """Whether a chain is asked for, or pays."""
    if when == "always" or (attention == "always" and chosen_template(c.chosen.kernel).keeps_registers):
        return True
    return c.chosen.estimate_s < CLEARLY * c.separate_s


def anchors(kernel: Func) -> str:
    """The ops that shape the stages of a chain, in order: `contract-reduce-map-contract`."""
    found = chosen_template(kernel).anchors
    return "" if found is None else found(kernel)


class _Model:
    """Choices and estimates, one per different kernel; estimates are remembered by the estimator."""

    def __init__(self, ctx: PassContext, hardware: Hardware, attention: str = "auto") -> None:
        self.ctx, self.hardware, self.attention = ctx, hardware, attention
        self.chosen: dict[str, ChosenChain | None] = {}

    def choose(self, kernel: Func) -> ChosenChain | None:
        """The chain this kernel becomes, in its canonical dimensions."""
        text = kernel_text(kernel)
        if text not in self.chosen:
            self.chosen[text] = choose_chain(
                self.ctx.estimator.canonical(kernel, self.ctx), self.hardware, self.attention
            )
        return self.chosen[text]

    def seconds(self, kernel: Func) -> float:
        """Estimated seconds of a kernel as it would run on its own; 0 where nothing estimates it."""

        def answer() -> float:
            try:
                seconds = estimate_of(self.ctx.estimator.kernel(kernel, self.ctx))
            except UnsupportedError:
                seconds = 0.0
            return seconds if seconds < inf else 0.0

        question = ("kernel", kernel_text(kernel), self.hardware, self.ctx.target)
        return self.ctx.estimator.remembered(question, answer)


def _disjoint(found: Sequence[ChainCandidate], *, registers_first: bool) -> list[ChainCandidate]:
    """Candidates that share no call: those with the largest gain first, of all or of those in registers."""
    taken: list[ChainCandidate] = []
    used: set[int] = set()

    def rank(c: ChainCandidate) -> tuple[bool, float]:
        return registers_first and not chosen_template(c.chosen.kernel).keeps_registers, -c.gain_s

    for c in sorted(found, key=rank):
        calls = set(map(id, c.calls))
        if not calls & used:
            used |= calls
            taken.append(c)
    return taken


def _replaced(module: Module, taken: Sequence[ChainCandidate]) -> Module:
    """The module with each candidate's calls replaced by one, where the last of them was."""
    last = {id(c.calls[-1]): c for c in taken}
    gone = {id(op) for c in taken for op in c.calls}
    names = {f.name for f in module.funcs}
    kernels: list[Func] = []
    ops: list[Op] = []
    for op in module.main.body.ops:
        if id(op) in last:
            c = last[id(op)]
            kernel = replace(c.chosen.kernel, name=numbered(c.chosen.kernel.name, names))
            names.add(kernel.name)
            kernels.append(kernel)
            ops.append(_call(kernel, c.arguments, c.returned, op))
        elif id(op) not in gone:
            ops.append(op)
    called = {callee_of(op) for op in ops if op.name == "tensor.call"}
    main = module.main.with_body(Block(module.main.params, tuple(ops)))
    kept = [main if f is module.main else f for f in module.funcs if f.name in called or f is module.main]
    return module.with_funcs((*kernels, *kept))


def _call(kernel: Func, arguments: Sequence[Value], returned: Sequence[Value], old: Op) -> Op:
    return Op(
        "tensor.call", tuple(arguments), (("callee", Ref(kernel.name)),), tuple(returned), None, old.loc
    )
