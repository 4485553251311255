"""The decision on a kernel, one attribute: its template, parameters, and what model and measurement say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from tilewright.costmodel.kernels.bound import Bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.ir import Attr, AttrRecord, Func, InputError, Pairs
from tilewright.ir.nodes import TypedAttr

#: the attribute of a kernel that holds its decision
DECISION = "decision"
MAX_THREADS = 1024
P = TypeVar("P", bound=AttrRecord)


@dataclass(frozen=True)
class KernelCost(AttrRecord):
    """Estimates of the cost model for a kernel, in seconds; one that was only measured has no limits.

    bound_s: the least that a launch takes whose data comes from DRAM; fraction_of_peak and limit are of it.
    warm_bound_s: the least that any launch takes, also one that finds its data in the L2: no measured time is
    below it.
    """

    estimate_s: float
    bound_s: float | None = None
    fraction_of_peak: float | None = None
    limit: str | None = None
    #: legal points that were compared
    considered: int | None = None
    warm_bound_s: float | None = None


@dataclass(frozen=True)
class MeasuredPoint:
    """Parameters that were measured, and the seconds of one launch by the model and on the device."""

    template: str
    parameters: AttrRecord
    estimate_s: float
    measured_s: float

    def pairs(self) -> Pairs:
        """The fields by name."""
        return Pairs.of({**vars(self), "parameters": self.parameters.pairs()})


@dataclass(frozen=True)
class KernelDecision(TypedAttr):
    """The choice for a kernel and its reason, printed `kernel<template: "map", parameters: (...), ...>`.

    parameters: of the class that the template states; None where a library is to be asked for the kernel.
    measured_s: seconds of one launch, where it was measured. candidates: what was measured for it.
    """

    attribute: ClassVar[str] = "kernel"

    template: str
    parameters: AttrRecord | None
    cost: KernelCost | None = None
    measured_s: float | None = None
    candidates: tuple[MeasuredPoint, ...] = ()

    def pairs(self) -> Pairs:
        """Return the names and values between the angle brackets."""
        found: dict[str, Attr] = {"template": self.template}
        if self.parameters is not None:
            found["parameters"] = self.parameters.pairs()
        if self.cost is not None:
            found["cost"] = self.cost.pairs()
        if self.measured_s is not None:
            found["measured_s"] = self.measured_s
        if self.candidates:
            found["candidates"] = tuple(c.pairs() for c in self.candidates)
        return Pairs.of(found)


def decision_of(kernel: Func) -> KernelDecision | None:
    """The decision on a kernel, at the tensor or the thread level; None where there is none yet."""
    found = kernel.get(DECISION)
    if found is None or isinstance(found, KernelDecision):
        return found
    raise InputError(f"expected kernel<...> in '{DECISION}', got {found!r}", where=f"@{kernel.name}")


def decided(
    kernel: Func, template: str, choice: ParameterChoice[Any], parameters: AttrRecord | None = None
) -> Func:
    """The kernel with a template, the parameters of a choice, and what the cost model says of them.

    parameters: those of the choice in the kernel's own dimensions, where these differ.
    """
    bound = choice.bound
    cost = KernelCost(
        choice.estimate_s,
        bound.seconds,
        float(bound.ub),
        bound.limit,
        choice.candidates_considered,
        bound.warm_s,
    )
    decision = KernelDecision(template, parameters or choice.parameters, cost)
    return kernel.with_attrs(**{DECISION: decision})


def decided_by_estimate(
    kernel: Func, template: str, space: Sequence[AttrRecord], seconds: Sequence[float], bound: Bound
) -> Func:
    """The kernel with the parameters of the least of these estimates; seconds: of each point."""
    best = min(range(len(space)), key=seconds.__getitem__)
    return decided(kernel, template, ParameterChoice(space[best], bound, seconds[best], len(space)))


def with_decision(kernel: Func, **changes: Any) -> Func:
    """The kernel with these fields of its decision changed."""
    return kernel.with_attrs(**{DECISION: replace(chosen_for(kernel), **changes)})


def with_parameters(kernel: Func, **changes: Any) -> Func:
    """The kernel with these fields of its parameters changed."""
    found: Any = _parameters(kernel)
    return with_decision(kernel, parameters=replace(found, **changes))


def parameters_of(kernel: Func, kind: type[P]) -> P:
    """The parameters of a kernel, known to be of this class; raises InputError, which names the kernel."""
    found = decision_of(kernel)
    if found is None or not isinstance(found.parameters, kind):
        got = None if found is None else found.parameters
        raise InputError(f"expected {kind.__name__} in its decision, got {got!r}", where=f"@{kernel.name}")
    return found.parameters


def chosen_for(kernel: Func) -> KernelDecision:
    """The decision on a kernel, known to have one; raises InputError, which names the kernel, otherwise."""
    found = decision_of(kernel)
    if found is None:
        raise InputError(f"expected a kernel with a '{DECISION}'", where=f"@{kernel.name}")
    return found


def text_of(kernel: Func) -> str:
    """The parameters of a kernel, `None` without any, as records and keys of tuning databases spell them."""
    return str(None if (p := _parameters(kernel)) is None else p.pairs())


def has_parameters(kernel: Func) -> bool:
    """Return whether the parameters of a kernel are chosen."""
    return _parameters(kernel) is not None


def _parameters(kernel: Func) -> AttrRecord | None:
    found = decision_of(kernel)
    return None if found is None else found.parameters


@contextmanager
def faults_of(kernel: Func) -> Iterator[None]:
    """Let InputErrors that are raised inside name the kernel."""
    try:
        yield
    except InputError as e:
        raise InputError(str(e), where=f"@{kernel.name}") from e


def check_threads(threads: int) -> None:
    """Raise InputError where a block would have too many threads."""
    if threads > MAX_THREADS:
        raise InputError(f"expected at most {MAX_THREADS} threads per block, got {threads}")


def cost_of(kernel: Func) -> KernelCost | None:
    """Return what the model says of a kernel; None where it says nothing."""
    found = decision_of(kernel)
    return None if found is None else found.cost


def estimate_of(kernel: Func) -> float:
    """Seconds of a kernel by the model; 0 where it says nothing."""
    cost = cost_of(kernel)
    return 0.0 if cost is None else cost.estimate_s


def bound_of(kernel: Func) -> float:
    """Seconds that a kernel takes at least by the model; 0 where it says nothing."""
    cost = cost_of(kernel)
    return 0.0 if cost is None else cost.bound_s or 0.0


def seconds_of(kernel: Func) -> float:
    """Seconds of a kernel as they were measured, else by the model."""
    found = decision_of(kernel)
    measured = None if found is None else found.measured_s
    return estimate_of(kernel) if measured is None else measured


def is_measured(kernel: Func) -> bool:
    """Return whether measurement decided on a kernel."""
    found = decision_of(kernel)
    return found is not None and bool(found.measured_s)


def undecided(kernel: Func, *, network: bool = False) -> Func:
    """The kernel without its decision, as the keys of tuning databases have its text.

    The decision was three to five attributes when these keys were made, which stand as `none` in them; those
    of a network name three of them for every function.
    """
    found = decision_of(kernel)
    names = ["skeleton", "params", "cost"] if network else []
    if found is not None and not network:
        given = (
            ("params", found.parameters),
            ("measured_s", found.measured_s),
            ("candidates", found.candidates),
        )
        left = [name for name, value in given if value not in (None, ())]
        names = ["skeleton", *left[: "params" in left], "cost", *left["params" in left :]]
    older: tuple[tuple[str, Attr], ...] = tuple((name, None) for name in names)
    if found is None:
        return replace(kernel, attrs=(*kernel.attrs, *older))
    attrs = (pair for k, v in kernel.attrs for pair in (older if k == DECISION else ((k, v),)))
    return replace(kernel, attrs=tuple(attrs))
