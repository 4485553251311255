"""Pass choose-saved: what of the forward pass the backward pass reads stored, and what it computes again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from tilewright.costmodel import Hardware, load_hardware
from tilewright.ir import Func, InputError, Level, Module, Op, Value, show
from tilewright.ir.facts import Elements
from tilewright.ir.opdef import facts_of
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.backward_pass import RECOMPUTED
from tilewright.passes.analysis.memory_headroom import MEMORY_BUDGET
from tilewright.passes.graph.recompute.boundary import Boundary
from tilewright.passes.graph.recompute.copies import with_copies
from tilewright.passes.graph.recompute.kernel_view import (
    KernelView,
    bytes_per_s,
    forward_alone,
    kernel_view,
)
from tilewright.passes.graph.recompute.parts import in_parts
from tilewright.passes.graph.recompute.saving_costs import is_map, saving_problem
from tilewright.passes.graph.recompute.saving_problem import (
    SavingProblem,
    cheapest,
    cheapest_within,
    fewest_bytes,
    hull,
)
from tilewright.passes.graph.recompute.segments import segment_inputs
from tilewright.passes.rewriting.values import readers

#: the attribute of @main that says how to choose, where it is there
CHECKPOINT = "checkpoint"
#: cuts that follow each other, each with what the kernels of the one before store
ROUNDS = 3
#: numbers of segments that are tried for a budget of memory; `blocks` takes the one of the lowest peak
SEGMENTS = (1, 2, 4, 8, 16)
#: forward ops up to which segments are tried without a budget too
FEW_OPS = 200
#: share by which estimates of whole steps differ from what is measured, about: within it the model does not
#: say which choice is faster
ESTIMATE_ERROR = 0.15
#: per cent of memory that one per cent of time is worth within that error
TIME_WORTH = 6
#: share of the time that a step without a budget gives for less memory, twice that at most where kernels
#: take longer than their writes, and bytes below which a value is not worth a choice
THRIFT, LARGE_BYTES = 0.012, 1 << 20
#: choices between two corners of the hull that are lowered to find the cheapest one within a budget
STEPS = 4


@register_pass(Level.GRAPH, requires={"shapes-known"})
def choose_saved(
    module: Module,
    ctx: PassContext,
    *,
    checkpoint: Literal["auto", "none", "blocks"] = "auto",
    memory_budget: int = 0,
    factors: Literal["", "tf32", "split"] = "",
) -> Module:
    """Compute forward values again in the backward pass where that takes less time than saving them.

    rewrite: %a = graph.exp(%x); %y = graph.dense(%a, %w); ...; %g = graph.matmul(%dy, %a)
        -->  %a = graph.exp(%x); %y = graph.dense(%a, %w); ...; %b = graph.exp(%x); %g = graph.matmul(%dy, %b)

    Functions without a backward pass (attribute `loss`) stay as they are. checkpoint: `auto` takes the choice
    of the least seconds by the cost model, which is one minimum cut, or saves everything; of choices whose
    seconds differ by less than the model's error, one that takes much less memory (`TIME_WORTH`). `none`
    saves everything. `blocks` keeps what the blocks of the network hand on and computes their insides again,
    in as many blocks as give the lowest peak of memory. memory_budget: bytes of parameters, state, constants
    and everything else on the device at most, 0 for any number: the choice of the least seconds that keeps to
    it. Attributes of the function with these names come before the options. factors: what float32 factors
    will be allowed (passes `allow-tf32` and `allow-split`), which the estimates are to know.

    Raises InputError where no choice keeps to the budget; it says the least bytes that one needs.
    """
    main = module.main
    if main.level is not Level.GRAPH or main.get(RECOMPUTED) is not None:
        return module
    if not Boundary.of(main).needed:
        return module
    mode, budget = main.get(CHECKPOINT, checkpoint), main.get(MEMORY_BUDGET, memory_budget)
    if mode not in ("auto", "none", "blocks"):
        raise InputError(f"expected checkpoint auto, none or blocks, got {mode!r}", where=f"@{main.name}")
    if type(budget) is not int or budget < 0:
        raise InputError(f"expected memory_budget in bytes, got {budget!r}", where=f"@{main.name}")
    if mode == "none" and not budget:
        return module
    hardware = ctx.hardware or load_hardware(ctx.target)
    whole = main.without_attr(MEMORY_BUDGET)
    if budget:
        choices = _choices_of(_Asked(show(Module("m", (whole,))), hardware, factors, whole, ctx))
        choices.apart = frozenset()  # what an earlier budget found out about the stored values of its choices
    else:
        choices = _Choices(whole, hardware, ctx, factors)
    if mode == "none":
        choice = choices.everything
        if choice.view.peak_bytes > budget:
            raise choices.too_small(budget, choice.view.peak_bytes)
    elif mode == "blocks":
        choice = choices.within(budget, choices.by_segments())
    elif budget:
        choice = choices.within(budget, choices.for_budget(budget))
    else:
        choice = choices.balanced()
    func = choice.func
    if (asked := main.get(MEMORY_BUDGET)) is not None:
        func = func.with_attrs(**{MEMORY_BUDGET: asked})
    return module.with_funcs(tuple(func if f is main else f for f in module.funcs))


@dataclass(frozen=True)
class _Asked:
    """A function whose choices are asked for; equal text has equal choices."""

    text: str
    hardware: Hardware
    factors: str
    func: Func = field(compare=False)
    ctx: PassContext = field(compare=False)


@lru_cache(maxsize=1)
def _choices_of(asked: _Asked) -> _Choices:
    """The choices of the latest function with a budget: a plan may ask for several budgets in a row."""
    return _Choices(asked.func, asked.hardware, asked.ctx, asked.factors)


@dataclass(frozen=True, eq=False)
class _Choice:
    """A function with copies, its kernels, and the forward ops whose copies become kernels of their own."""

    func: Func
    view: KernelView
    apart: frozenset[Op]


def _worth(choice: _Choice) -> float:
    """Return the cost of a choice in time and memory together; see `TIME_WORTH`."""
    return choice.view.seconds**TIME_WORTH * choice.view.peak_bytes


def _chains(problem: SavingProblem[Value], again: frozenset[int]) -> list[frozenset[int]]:
    """Ops that are computed again, those together of which one reads the other."""
    chains: dict[int, frozenset[int]] = {}
    for i in sorted(again):
        makers = {problem.maker[v] for v in problem.ops[i].reads} & again
        chain = frozenset((i,)).union(*(chains[m] for m in makers))
        chains |= dict.fromkeys(chain, chain)
    return list(dict.fromkeys(chains.values()))


class _Choices:
    """Choices for one function, each lowered to kernels at most once."""

    def __init__(self, whole: Func, hardware: Hardware, ctx: PassContext, factors: str) -> None:
        self.hardware, self.ctx, self.factors = hardware, ctx, factors
        self.func = func = in_parts(whole)
        self.boundary = boundary = Boundary.of(func)
        self._readers = readers(func.body)
        self.everything = self._of(whole)
        self._seen: dict[frozenset[Op], _Choice] = {frozenset(): self.everything}
        self.separate = self._of(func.with_attrs(**{RECOMPUTED: 0}))  # no kernel stores both passes' values
        forward = kernel_view(forward_alone(func, boundary), hardware, ctx)
        self.stored, self.beside = forward.stored, forward.beside
        self.apart: frozenset[Op] = frozenset()

    def choice(self, again: frozenset[Op]) -> _Choice:
        """The function that computes these ops again."""
        if again not in self._seen:
            func, originals = with_copies(self.func, self.boundary, again)
            self._seen[again] = self._of(func, originals)
        return self._seen[again]

    def _of(self, func: Func, originals: Mapping[Op, Op] = MappingProxyType({})) -> _Choice:
        view = kernel_view(func, self.hardware, self.ctx)
        return _Choice(func, view, frozenset(originals[op] for op in view.stored if op in originals))

    def problem(self, kept: frozenset[Value] = frozenset()) -> SavingProblem[Value]:
        """The problem by what is known of stored values."""
        return saving_problem(
            self.func,
            self.boundary,
            self.hardware,
            self.ctx,
            stored=self.stored,
            apart=self.apart,
            beside=self.beside,
            kept=kept,
            factors=self.factors,
        )

    def ops(self, again: frozenset[int]) -> frozenset[Op]:
        """Ops of a solution."""
        return frozenset(self.boundary.ops[i] for i in again)

    def candidates(self) -> Iterator[_Choice]:
        """Choices without a budget, to be judged by the kernels of the whole step.

        The cuts that follow each other, saving everything, and, of small functions, whose seconds are
        boundaries of kernels more than traffic, what only saves inputs of segments.
        """
        yield from (self.everything, self.separate)
        before = None
        for _ in range(ROUNDS):
            again = self.ops(cheapest(self.problem()))
            if again == before:
                break
            choice = self.choice(again)
            yield choice
            before = again
            self.apart |= choice.apart
        if len(self.boundary.ops) <= FEW_OPS:
            yield from self.by_segments()

    def fastest(self) -> _Choice:
        """The candidate of the least seconds."""
        return min(self.candidates(), key=lambda c: c.view.seconds)

    def balanced(self) -> _Choice:
        """Of the candidates about as fast as the fastest, the one whose memory is worth its time."""
        candidates = list(self.candidates())
        most = (1 + ESTIMATE_ERROR) * min(c.view.seconds for c in candidates)
        equal = [c for c in candidates if c.view.seconds <= most]
        best = min(equal, key=_worth)
        thrifty = self.thrifty(best)
        if thrifty is not None and thrifty.view.seconds <= (1 + 2 * THRIFT) * best.view.seconds:
            return min(best, thrifty, key=_worth)
        return best

    def thrifty(self, best: _Choice) -> _Choice | None:
        """A choice that computes more again that maps alone give: the largest arrays, while there is time.

        What one product of the backward pass reads is written by the kernel of maps that reads what it is
        made of, and so takes the time of a write. None where nothing large is left.
        """
        first = next((again for again, choice in self._seen.items() if choice is best), frozenset())
        kept = frozenset(r for op in self.boundary.ops if not is_map(op) for r in op.results)
        problem = self.problem(kept)
        number = {op: i for i, op in enumerate(self.boundary.ops)}
        before = frozenset(number[op] for op in first)
        more = cheapest(problem, best.view.seconds / (TIME_WORTH * best.view.peak_bytes)) - before
        rate = bytes_per_s(self.hardware, sum(v.tensor.nbytes for v in self.boundary.makes))
        left_s = THRIFT * best.view.seconds
        again = before
        for chain in sorted(_chains(problem, more), key=lambda c: -self._stored_bytes(c, best)):
            nbytes = self._stored_bytes(chain, best)
            if nbytes >= LARGE_BYTES and nbytes / rate <= left_s and self._read_by_one_product(chain):
                left_s -= nbytes / rate
                again |= chain
        return self.choice(self.ops(problem.useful(again))) if again > before else None

    def _read_by_one_product(self, chain: frozenset[int]) -> bool:
        """Return whether what a chain makes is read by one product of the backward pass, and else by maps."""
        made = {r for i in chain for r in self.boundary.ops[i].results}
        forward = frozenset(self.boundary.ops)
        read = (op for v in made for op in self._readers.get(v, ()) if op not in forward and not is_map(op))
        return [facts_of(op.name).elements for op in read] == [Elements.CONTRACTS]

    def _stored_bytes(self, chain: frozenset[int], choice: _Choice) -> int:
        """Bytes of the results of ops that the kernels of a choice store."""
        ops = [self.boundary.ops[i] for i in chain]
        return sum(r.tensor.nbytes for op in ops if op in choice.view.stored for r in op.results)

    def by_segments(self) -> Iterator[_Choice]:
        """Choices that save the inputs of segments and compute all else again."""
        for count in SEGMENTS:
            kept = segment_inputs(self.func, self.boundary, count)
            yield self.choice(self.ops(fewest_bytes(self.problem(kept))))

    def for_budget(self, budget: int) -> Iterator[_Choice]:
        """Choices that may keep to a budget; the fastest of all alone where it does."""
        fastest = self.fastest()
        yield fastest
        if fastest.view.peak_bytes <= budget:
            return
        yield self.separate
        problems = [self.problem(segment_inputs(self.func, self.boundary, n)) for n in SEGMENTS]
        smallest = [self.choice(self.ops(fewest_bytes(p))) for p in problems]
        yield from smallest
        # Segmentations differ at their smallest choices alone, so two are searched: that of the lowest peak,
        # and that whose smallest choice is the fastest one that fits.
        fitting = [i for i, c in enumerate(smallest) if c.view.peak_bytes <= budget]
        if fitting:
            lowest = min(fitting, key=lambda i: smallest[i].view.peak_bytes)
            quickest = min(fitting, key=lambda i: smallest[i].view.seconds)
            for i in dict.fromkeys((lowest, quickest)):
                yield from self._along(problems[i], budget)

    def _along(self, problem: SavingProblem[Value], budget: int) -> Iterator[_Choice]:
        """The cheapest corner of the hull within the budget, found by halving, and choices before it."""
        corners = hull(problem)
        low, high = 0, len(corners) - 1  # corner `high`, the smallest choice, fits
        while low < high:
            middle = (low + high) // 2
            choice = self.choice(self.ops(corners[middle]))
            yield choice
            if choice.view.peak_bytes <= budget:
                high = middle
            else:
                low = middle + 1
        if high == 0:
            return
        fits, over = problem.nbytes(corners[high]), problem.nbytes(corners[high - 1])
        for _ in range(STEPS):
            middle = (fits + over) // 2
            again = cheapest_within(problem, middle, corners)
            if again is None or again == corners[high] or fits >= over:
                return
            choice = self.choice(self.ops(again))
            yield choice
            if choice.view.peak_bytes <= budget:
                fits = middle
            else:
                over = middle

    def within(self, budget: int, choices: Iterator[_Choice]) -> _Choice:
        """The fastest of the choices that keep to a budget; of the lowest peak without one."""
        seen = list(choices)
        least = min(seen, key=lambda c: (c.view.peak_bytes, c.view.seconds))
        if not budget:
            return least
        fitting = [c for c in seen if c.view.peak_bytes <= budget]
        if not fitting:
            raise self.too_small(budget, least.view.peak_bytes)
        return min(fitting, key=lambda c: c.view.seconds)

    def too_small(self, budget: int, least: int) -> InputError:
        """The error for a budget that no choice keeps to."""
        return InputError(
            f"expected a memory budget of at least {least} bytes ({least / 2**20:.1f} MiB), the least that "
            f"this step needs on the device, got {budget}",
            where=f"@{self.func.name}",
        )
