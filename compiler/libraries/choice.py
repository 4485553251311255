"""Choice by measurement between generated kernels and those of libraries, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tqdm import tqdm

from tilewright.codegen.builders.cache import cache_key
from tilewright.ir import Func, Module, Op
from tilewright.libraries.arbitration import arbitrated_libraries
from tilewright.libraries.candidates import FINDERS, LibraryDevice
from tilewright.libraries.comparison import Compared, LibraryComparisons, standing_alone
from tilewright.libraries.fusion_groups import FusionGroup, fusion_groups_of, with_fused_kernels
from tilewright.libraries.matching.constants import KernelConstants
from tilewright.libraries.matching.region_facts import replacing, without_counts, won_by
from tilewright.libraries.program import inlined
from tilewright.libraries.records import LibraryBook
from tilewright.libraries.weights import with_constant_weights
from tilewright.measuring.budget import Budget, Turns
from tilewright.measuring.kernel_program import (
    alone,
    bound_of,
    constants_of,
    occurrences_of,
    seconds_of,
    subject_text,
)
from tilewright.measuring.measurer import Measurer
from tilewright.runtime.errors import DeviceMissingError

T = TypeVar("T")

#: of the budget, what the search among generated kernels takes where libraries compete
SEARCH_SHARE = 0.75
#: of what is left then, the share of the comparisons; the rest is for the replays of the network
COMPARISONS_SHARE = 0.8
#: what a library may save at least where comparisons share their time: a share of a kernel's seconds, however
#: near its bound the model sees it, and seconds
LEAST_GAIN = 0.1
LEAST_S = 1e-6


def facts_without_measurement() -> dict[str, Any]:
    """What is told of libraries that may compete where nothing is measured."""
    reason = 'tune="model" measures nothing; a library kernel is taken where it is measured to be faster'
    return {"unavailable": dict.fromkeys(FINDERS, reason), "compared": []}


class LibraryChoice:
    """Puts library kernels in the place of generated ones where they are measured to be faster.

    streams: the policy with which the network is replayed with and without them; None compares kernels alone.
    `facts` says what was compared and won, once `choose` has run.
    """

    def __init__(
        self,
        measurer: Measurer,
        budget: Budget | None = None,
        *,
        progress: bool | None = None,
        streams: str | None = None,
    ) -> None:
        self.measurer, self.progress, self.streams = measurer, progress, streams
        self.budget = budget or Budget()
        self.facts: dict[str, Any] = {}

    @property
    def possible(self) -> bool:
        """Whether the device runs libraries at all."""
        return isinstance(self.measurer.device, LibraryDevice)

    def choose_without_report(self, program: Module, budget: Budget) -> Module:
        """A small program with the winners in it: no bar is drawn, and reports do not hear of it."""
        other = LibraryChoice(self.measurer, budget, progress=False)
        return other.choose(program)

    def choose(self, module: Module) -> Module:
        """The module with the winners: tensor level, kernels outlined, parameters chosen.

        Devices that run no libraries, and libraries that are not installed, leave it as it is: see `facts`.
        """
        device = self.measurer.device
        if not isinstance(device, LibraryDevice):
            reason = f"{device.name} runs no libraries"
            self.facts = {"unavailable": dict.fromkeys(FINDERS, reason), "compared": [], **won_by(module)}
            return module
        missing: dict[str, str] = {}
        book = LibraryBook(self.measurer, _versions(device, missing))
        comparisons = LibraryComparisons(self.measurer, device, book, missing)
        limit = self.budget if self.streams is None else self.budget.share(COMPARISONS_SHARE)
        rows: list[Compared] = []
        groups = self._fusion_groups(module, comparisons, limit, rows)
        module = with_fused_kernels(module, list(groups))
        generated = {w.whole.name: w.program() for w in groups}
        found = self._kernels(module, comparisons, limit, rows, generated)
        found |= {w.whole.name: c for w, c in groups.items()}
        sizes = {w.whole.name: len(w.sites[0]) for w in groups}
        programs = {
            n: replacing(c.program, sizes.get(n, 1)) for n, c in found.items() if c.program is not None
        }
        told = self._in_network(module, programs, found, generated)
        chosen = with_constant_weights(inlined(module, {**generated, **programs}))
        self.facts = {"unavailable": missing, "compared": [c.row() for c in rows], **told, **won_by(chosen)}
        return without_counts(chosen)

    def _in_network(
        self,
        module: Module,
        programs: dict[str, Module],
        found: Mapping[str, Compared],
        generated: Mapping[str, Module],
    ) -> dict[str, Any]:
        """Take out of `programs` what the whole network is faster without; what was compared, for reports.

        generated: the programs of kernels that stand for several, where no library computes them.
        """
        alike: dict[int, list[str]] = {}
        for name in (n for n, c in found.items() if n in programs):
            alike.setdefault(id(found[name]), []).append(name)
        if self.streams is None or not alike:
            return {}
        groups = sorted(alike.values(), key=lambda g: -found[g[0]].occurrences * found[g[0]].generated_s)
        verdict = arbitrated_libraries(
            module,
            {n: programs[n] for g in groups for n in g},
            groups,
            lambda some: with_constant_weights(inlined(module, {**generated, **some})),
            self.measurer,
            self.budget,
            self.streams,
        )
        for name in verdict.refused:
            programs.pop(name)
            found[name].program = None
        return {
            "in_network": {
                "isolated_s": verdict.isolated_s,
                "arbitrated_s": verdict.arbitrated_s,
                "compared": verdict.compared,
                "refused": verdict.refused,
            }
        }

    def _bar(self, kernels: Sequence[T], unit: str) -> Iterable[T]:
        hidden = not (sys.stderr.isatty() if self.progress is None else self.progress)
        return tqdm(kernels, desc="libraries", unit=unit, file=sys.stderr, disable=hidden)

    def _fusion_groups(
        self, module: Module, comparisons: LibraryComparisons, limit: Budget, rows: list[Compared]
    ) -> dict[FusionGroup, Compared]:
        """What several kernels compute together, where one call of a library is faster than all of them."""
        constants, calls = constants_of(module), occurrences_of(module)
        weights = {w: sum(_gain(_called(module, site)) for site in w.sites) for w in fusion_groups_of(module)}
        groups = sorted(weights, key=lambda w: -weights[w])
        others = [calls[f.name] * _gain([f]) for f in module.funcs if f.name in calls]
        turns = Turns(limit, [*weights.values(), *others])
        by_subject: dict[str, Compared] = {}
        won: dict[FusionGroup, Compared] = {}
        replaced: set[int] = set()
        for w in self._bar(groups, "group"):
            turn = turns.take(weights[w])
            ops = {id(op) for site in w.sites for op in site}
            if ops & replaced:
                continue
            at = w.constants(constants)
            subject = cache_key(subject_text(w.whole, at), w.chosen)
            if subject in by_subject:
                by_subject[subject].occurrences += len(w.sites)
            else:
                generated = standing_alone(w.program(), at)
                found = comparisons.compared(subject, w.whole, generated, at, len(w.sites), turn)
                if found is None:
                    continue
                by_subject[subject] = found
                rows.append(found)
            if by_subject[subject].program is not None:
                won[w] = by_subject[subject]
                replaced |= ops
        return won

    def _kernels(
        self,
        module: Module,
        comparisons: LibraryComparisons,
        limit: Budget,
        rows: list[Compared],
        done: Collection[str],
    ) -> dict[str, Compared]:
        """By kernel name what was measured, those first that a library may save most time of.

        Kernels that are equal but for names are measured once.
        """
        constants, calls, known = constants_of(module), occurrences_of(module), KernelConstants(module)
        found: dict[str, Compared] = {}
        by_subject: dict[str, Compared] = {}
        kernels = [f for f in module.funcs if f.name in calls and f.name not in done]
        weights = {f.name: calls[f.name] * _gain([f]) for f in kernels}
        kernels.sort(key=lambda f: -weights[f.name])
        turns = Turns(limit, weights.values())
        for f in self._bar(kernels, "kernel"):
            turn = turns.take(weights[f.name])
            at, told = constants[f.name], known.computed_in(f)
            subject = cache_key(subject_text(told, at), str(f.get("params")))
            if subject in by_subject:
                by_subject[subject].occurrences += calls[f.name]
            else:
                compared = comparisons.compared(subject, told, alone(f, at), at, calls[f.name], turn)
                if compared is None:
                    continue
                by_subject[subject] = compared
                rows.append(compared)
            found[f.name] = by_subject[subject]
        return found


def _versions(device: LibraryDevice, missing: dict[str, str]) -> dict[str, str]:
    """Versions of the libraries that are installed; why others do not compete goes to `missing`."""
    found = {}
    for provider in FINDERS:
        try:
            found[provider] = device.library_version(provider)
        except DeviceMissingError as error:
            missing[provider] = str(error)
    return found


def _called(module: Module, site: tuple[Op, ...]) -> list[Func]:
    """The kernels that the calls of a site are of."""
    callees: list[Any] = [op["callee"] for op in site]
    return [module[callee.name] for callee in callees]


def _gain(kernels: Sequence[Func]) -> float:
    """Seconds that one call of a library may save of kernels in turn: what is above the largest bound."""
    seconds = sum(map(seconds_of, kernels))
    bound = max(bound_of(f) for f in kernels)
    return max(seconds - bound, LEAST_GAIN * seconds, LEAST_S)
