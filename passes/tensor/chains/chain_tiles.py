"""Pass chain-tiles: products and windows that read what the one before finished become one kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import Attr, Func, Level, Module, Pairs
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.chain_tiles.choice import choose_chain_tiles
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.tensor.chains.candidates import ChainCandidate, ChainSearch
from tilewright.passes.tensor.chains.product_pairs import product_pairs
from tilewright.passes.tensor.chains.taken import disjoint, with_chains
from tilewright.passes.tensor.joins.estimates import alone_s

#: a chain is taken where its estimate is below this share of those of its kernels
CLEARLY = 0.9
#: attribute of @main that says which chains were looked at, and what became of each
CHAINS = "chains"


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def chain_tiles(
    module: Module, ctx: PassContext, *, when: Literal["auto", "always", "never"] = "auto"
) -> Module:
    """Make one kernel of products on tensor cores and windows between them, tile by tile of the last result.

    rewrite:  %h = call(%x, %w, callee = @expand); %d = call(%h, %v, callee = @depthwise);
              %y = call(%d, %p, %x, callee = @project)
        -->   %y = call(%x, %w, %v, %p, callee = @project_chain)

    What lies between them stays in shared memory, with its halo, and where the last one is a product a part
    of its channels at a time. Legality follows from index sets (`passes/kernels/chain_tiles/view.py`):
    nothing names a network. when: `auto` where the estimate is below nine tenths of that of the kernels
    apart, `always` where legal, `never`. What became of each chain, or why there is none, is said in an
    attribute of @main that `explain` prints.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or isinstance(hardware, CpuHardware):
        return module
    choice = _Choice(ctx, hardware)
    search = ChainSearch(module, choice.choose, choice.seconds, _possible, marked=True)
    found = _beside_pairs(list(search.all()), module, ctx, hardware)
    worthwhile = [c for c in found if when == "always" or estimate_of(c.chosen) < CLEARLY * c.separate_s]
    taken = disjoint(worthwhile)
    return _with_facts(with_chains(module, taken), choice, found, taken)


def _beside_pairs(
    found: Sequence[ChainCandidate], module: Module, ctx: PassContext, hardware: Hardware
) -> list[ChainCandidate]:
    """Candidates whose kernels apart take what they take where products share rows (`chain-products`)."""
    pairs = product_pairs(module, ctx, hardware, legal=False) if found else []
    out = []
    for c in found:
        calls = set(map(id, c.calls))
        lost = sum(p.gain_s for p in pairs if calls & set(map(id, p.calls)))
        out.append(replace(c, separate_s=c.separate_s - lost))
    return out


def _possible(ops: Counter[str]) -> bool:
    """Return whether kernels with these ops can have products or windows behind each other."""
    return ops["tensor.contract"] > 0 and ops["tensor.contract"] + ops["tensor.window"] > 1


class _Choice:
    """Choices and estimates, one per different kernel, and why kernels were refused, by name."""

    def __init__(self, ctx: PassContext, hardware: Hardware) -> None:
        self.ctx, self.hardware = ctx, hardware
        self.chosen: dict[str, Func | str] = {}
        self.refused: dict[str, str] = {}

    def choose(self, kernel: Func) -> Func | None:
        """The chain that a kernel becomes, in its canonical dimensions; None where it is refused."""
        text = kernel_text(kernel)
        if text not in self.chosen:
            self.chosen[text] = choose_chain_tiles(
                self.ctx.estimator.canonical(kernel, self.ctx), self.hardware
            )
        chosen = self.chosen[text]
        if isinstance(chosen, str):
            self.refused.setdefault(kernel.name, chosen)
            return None
        return replace(chosen, name=kernel.name)

    def seconds(self, kernel: Func) -> float:
        """Estimated seconds of a kernel as it would run on its own; 0 where nothing estimates it."""
        return alone_s(kernel, self.ctx, self.hardware)


def _with_facts(
    module: Module, choice: _Choice, found: Sequence[ChainCandidate], taken: Sequence[ChainCandidate]
) -> Module:
    """The module whose @main says what became of the chains that were looked at (`CHAINS`)."""
    facts: list[Pairs] = []
    kept = set(map(id, taken))
    for c in found:
        said: dict[str, Attr] = {"kernels": " > ".join(map(callee_of, c.calls)), "taken": id(c) in kept}
        said |= {"estimate_s": estimate_of(c.chosen), "separate_s": c.separate_s}
        facts.append(Pairs.of(said))
    ended = {c.chosen.name for c in found}
    for name, reason in choice.refused.items():
        if name not in ended:
            facts.append(Pairs.of({"kernels": name, "taken": False, "reason": reason}))
    if not facts:
        return module
    main = module.main.with_attrs(**{CHAINS: tuple(dict.fromkeys(facts))})
    return module.with_funcs(tuple(main if f is module.main else f for f in module.funcs))
