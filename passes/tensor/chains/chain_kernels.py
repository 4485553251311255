"""Joins kernels that feed each other into chains: intermediates stay in shared memory, where it pays."""

from __future__ import annotations

from collections import Counter
from functools import partial

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import Func, InputError, Level, Module
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.kernels.registry import chosen_template, joined_templates
from tilewright.passes.tensor.chains.candidates import ChainCandidate, ChainSearch
from tilewright.passes.tensor.chains.taken import disjoint, with_chains
from tilewright.passes.tensor.joins.estimates import alone_s

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
    useful = partial(_possible, only=only)
    candidates = ChainSearch(module, model.choose, model.seconds, useful, _may_grow, _in_registers)
    worthwhile = [
        c for c in candidates.all()
        if _selected(anchors(c.chosen), only) and _taken(c, when, attention)
    ]  # fmt: skip
    first = _in_registers if attention == "always" else None
    return with_chains(module, disjoint(worthwhile, first))


def _selected(names: str, only: str) -> bool:
    return any(text in names for text in only.split("+"))


def _possible(ops: Counter[str], only: str) -> bool:
    """Return whether a chain of kernels with these ops can have the anchors that are asked for."""
    needed = (Counter(f"tensor.{name}" for name in text.split("-") if name) for text in only.split("+"))
    return any(n <= ops for n in needed)


def _taken(c: ChainCandidate, when: str, attention: str) -> bool:
    """Return whether a chain is asked for, or pays."""
    if when == "always" or (attention == "always" and _in_registers(c.chosen)):
        return True
    return estimate_of(c.chosen) < CLEARLY * c.separate_s


def anchors(kernel: Func) -> str:
    """The ops that shape the stages of a chain, in order: `contract-reduce-map-contract`."""
    joined = chosen_template(kernel).joined
    return "" if joined is None else joined.anchors(kernel)


def choose_joined(kernel: Func, hardware: Hardware, attention: str = "auto") -> Func | None:
    """The kernel as the template of joined kernels that the model finds fastest; None where none is legal.

    attention: templates that keep intermediates in registers are taken `always` where one is legal, `never`,
    or `auto`.
    """
    options = []
    for _, joined in joined_templates():
        if attention == "never" and joined.keeps_registers:
            continue
        chosen = joined.choose(kernel, hardware)
        if chosen is not None and attention == "always" and joined.keeps_registers:
            return chosen
        options += [chosen] if chosen is not None else []
    return min(options, key=estimate_of, default=None)


def _may_grow(kernel: Func) -> bool:
    """Return whether a kernel that no template takes could be a part of one that is taken."""
    return any(joined.may_grow(kernel) for _, joined in joined_templates())


def _in_registers(kernel: Func) -> bool:
    joined = chosen_template(kernel).joined
    return joined is not None and joined.keeps_registers


class _Model:
    """Choices and estimates, one per different kernel; estimates are remembered by the estimator."""

    def __init__(self, ctx: PassContext, hardware: Hardware, attention: str = "auto") -> None:
        self.ctx, self.hardware, self.attention = ctx, hardware, attention
        self.chosen: dict[str, Func | None] = {}

    def choose(self, kernel: Func) -> Func | None:
        """The chain this kernel becomes, in its canonical dimensions."""
        text = kernel_text(kernel)
        if text not in self.chosen:
            canonical = self.ctx.estimator.canonical(kernel, self.ctx)
            self.chosen[text] = choose_joined(canonical, self.hardware, self.attention)
        return self.chosen[text]

    def seconds(self, kernel: Func) -> float:
        """Estimated seconds of a kernel as it would run on its own; 0 where nothing estimates it."""
        return alone_s(kernel, self.ctx, self.hardware)
