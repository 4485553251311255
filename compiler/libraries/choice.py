"""Library kernels in the place of generated ones where they are measured to be faster."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from tqdm import tqdm

from tilewright.codegen.builders.cache import cache_key
from tilewright.compilation.planning import library_kernels
from tilewright.ir import Func, Module, Op
from tilewright.ir.tensor.ops import callee_of
from tilewright.libraries.candidates import FINDERS, LibraryDevice
from tilewright.libraries.comparison import Compared, LibraryComparisons, timed_program
from tilewright.libraries.fusion_groups import FusionGroup, fusion_groups_of, with_fused_kernels
from tilewright.libraries.matching.constants import KernelConstants
from tilewright.libraries.program import inlined
from tilewright.libraries.report import replacing, without_counts, won_by
from tilewright.libraries.weights import with_constant_weights
from tilewright.measuring.budget import Budget, Turns
from tilewright.measuring.kernel_program import constants_of, kernel_program, occurrences_of, subject_text
from tilewright.measuring.measurer import Measurer
from tilewright.measuring.network_replays import (
    NetworkPlan,
    NetworkReplays,
    network_plan,
    planned_streams,
    random_inputs,
)
from tilewright.measuring.network_validation import Choices, validated
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import bound_of, seconds_of, text_of
from tilewright.tuning.database.records import StoredChoice

T = TypeVar("T")

#: of the budget, the share of the comparisons; the rest is for the replays of the network
COMPARISONS_SHARE = 0.8
#: seconds that the replays may take where there is no budget
REPLAYS_S = 40.0
#: what a library may save at least where comparisons share their time: a share of a kernel's seconds, however
#: near its bound the model sees it, and seconds
LEAST_GAIN = 0.1
LEAST_S = 1e-6


def with_faster_libraries(program: Module, measurer: Measurer, budget: Budget) -> Module:
    """A small program with the library kernels that are faster; no bar is drawn, and no report says so."""
    return LibraryChoice(measurer, budget, progress=False).choose(program)


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
        """True where the device runs libraries at all."""
        return isinstance(self.measurer.device, LibraryDevice)

    def choose(self, module: Module) -> Module:
        """The module with the winners: tensor level, kernels outlined, parameters chosen.

        Devices that run no libraries, and libraries that are not installed, leave it as it is: see `facts`.
        """
        device = self.measurer.device
        if not isinstance(device, LibraryDevice):
            reason = f"{device.name} runs no libraries"
            self.facts = {"unavailable": dict.fromkeys(FINDERS, reason), "compared": [], **won_by(module)}
            return module
        limit = self.budget if self.streams is None else self.budget.share(COMPARISONS_SHARE)
        comparing = _Comparing(LibraryComparisons(self.measurer, device), limit, self._bar)
        groups = comparing.groups(module)
        module = with_fused_kernels(module, list(groups))
        generated = {group.fused.name: group.program() for group in groups}
        compared = comparing.kernels(module, generated)
        compared |= {group.fused.name: c for group, c in groups.items()}
        sizes = {group.fused.name: len(group.kernels) for group in groups}
        programs = {
            n: replacing(c.program, sizes.get(n, 1)) for n, c in compared.items() if c.program is not None
        }

        def network(some: Mapping[str, Module]) -> Module:
            return with_constant_weights(inlined(module, {**generated, **some}))

        in_network = self._in_network(module, programs, compared, network)
        chosen = network(programs)
        self.facts = {
            "unavailable": comparing.comparisons.missing,
            "compared": [c.row() for c in comparing.rows],
            **in_network,
            **won_by(chosen),
        }
        return without_counts(chosen)

    def _in_network(
        self,
        module: Module,
        programs: dict[str, Module],
        compared: Mapping[str, Compared],
        network: Callable[[Mapping[str, Module]], Module],
    ) -> dict[str, Any]:
        """Take out of `programs` what the whole network is faster without; what was compared, for reports.

        network: the module with some of the programs.
        """
        equal: dict[int, list[str]] = {}
        for name in (n for n in compared if n in programs):
            equal.setdefault(id(compared[name]), []).append(name)
        if self.streams is None or not equal:
            return {}
        groups = sorted(
            equal.values(), key=lambda g: -compared[g[0]].occurrences * compared[g[0]].generated_s
        )
        facts = validated_libraries(
            module, programs, groups, network, self.measurer, self.budget, self.streams
        )
        for name in facts["refused"]:
            programs.pop(name)
            compared[name].program = None
        return {"in_network": facts}

    def _bar(self, kernels: Sequence[T], unit: str) -> Iterable[T]:
        hidden = not (sys.stderr.isatty() if self.progress is None else self.progress)
        return tqdm(kernels, desc="libraries", unit=unit, file=sys.stderr, disable=hidden)


class _Comparing:
    """The comparisons of one network, those first that a library may save most time of.

    Kernels that are equal but for names are measured once; `rows` has what was measured.
    """

    def __init__(
        self,
        comparisons: LibraryComparisons,
        limit: Budget,
        bar: Callable[[Sequence[Any], str], Iterable[Any]],
    ) -> None:
        self.comparisons, self.rows = comparisons, list[Compared]()
        self._limit, self._bar = limit, bar
        self._by_subject: dict[str, Compared] = {}

    def groups(self, module: Module) -> dict[FusionGroup, Compared]:
        """The groups of kernels that one call of a library is faster than."""
        constants, calls = constants_of(module), occurrences_of(module)
        weights = {g: sum(_gain(_called(module, s)) for s in g.sites) for g in fusion_groups_of(module)}
        others = [calls[f.name] * _gain([f]) for f in module.funcs if f.name in calls]
        turns = Turns(self._limit, [*weights.values(), *others])
        won: dict[FusionGroup, Compared] = {}
        replaced: set[int] = set()
        for group in self._bar(sorted(weights, key=lambda g: -weights[g]), "group"):
            turn = turns.take(weights[group])
            calls_of_group = {id(op) for site in group.sites for op in site}
            if calls_of_group & replaced:
                continue
            at = group.constants(constants)
            generated = partial(timed_program, group.program(), at)
            compared = self._compared(group.fused, group.chosen, generated, at, len(group.sites), turn)
            if compared is not None and compared.program is not None:
                won[group] = compared
                replaced |= calls_of_group
        return won

    def kernels(self, module: Module, done: Collection[str]) -> dict[str, Compared]:
        """By name what was measured of the other kernels."""
        constants, calls, known = constants_of(module), occurrences_of(module), KernelConstants(module)
        by_name: dict[str, Compared] = {}
        kernels = [f for f in module.funcs if f.name in calls and f.name not in done]
        weights = {f.name: calls[f.name] * _gain([f]) for f in kernels}
        turns = Turns(self._limit, weights.values())
        for f in self._bar(sorted(kernels, key=lambda f: -weights[f.name]), "kernel"):
            turn = turns.take(weights[f.name])
            at, kernel = constants[f.name], known.computed_in(f)
            generated = partial(kernel_program, f, at)
            result = self._compared(kernel, text_of(f), generated, at, calls[f.name], turn)
            if result is not None:
                by_name[f.name] = result
        return by_name

    def _compared(
        self,
        kernel: Func,
        chosen: str,
        generated: Callable[[], Module],
        at: Collection[int],
        calls: int,
        turn: Budget,
    ) -> Compared | None:
        """Compare a kernel whose parameters are `chosen`, or recall an equal one."""
        subject = cache_key(subject_text(kernel, at), chosen)
        if subject in self._by_subject:
            self._by_subject[subject].occurrences += calls
            return self._by_subject[subject]
        compared = self.comparisons.compared(subject, kernel, generated, at, calls, turn)
        if compared is not None:
            self._by_subject[subject] = compared
            self.rows.append(compared)
        return compared


def validated_libraries(
    module: Module,
    programs: Mapping[str, Module],
    groups: Sequence[Sequence[str]],
    network: Callable[[Mapping[str, Module]], Module],
    measurer: Measurer,
    budget: Budget,
    streams: str,
) -> dict[str, Any]:
    """Validate library kernels in replays of the network, or recall an earlier run; gives facts for reports.

    `refused` names the kernels whose programs make the network slower: first all are left out, if that is
    faster, then one group after another. module: the network without libraries. groups: names of kernels that
    share a program, those that take most time first. network: the module with some programs in it. streams:
    the policy that replays are timed with.
    """
    texts = [kernel_text(f) for f in module.funcs]
    texts += [n + k.to_json() for n, p in sorted(programs.items()) for k in library_kernels(p).values()]
    key = measurer.key("library:" + cache_key("in the network", *texts))
    known = measurer.database.choice(key)
    recalled = None if known is None else _recalled(known.record, programs)
    if recalled is not None:
        return recalled
    limit = budget if budget.seconds is not None else Budget(REPLAYS_S)

    def plan_of(choices: Choices) -> NetworkPlan:
        taken = {n: programs[n] for group in groups if choices[group[0]] for n in group}
        some, target = network(taken), measurer.target
        made = network_plan(some, target)
        return made.on_streams(planned_streams(some, made.plan, target, streams))

    with NetworkReplays(plan_of, measurer.device, random_inputs(module)) as replays:
        validation = validated(*library_changes(groups), replays.pairs, limit)
    refused = [n for group in groups if not validation.chosen[group[0]] for n in group]
    if validation.arbitrated_s and not limit.over:
        record = json.dumps({"refused": refused, "s": [validation.isolated_s, validation.arbitrated_s]})
        measurer.database.put_choice(key, StoredChoice(record, int(time.time())))
    times = {"isolated_s": validation.isolated_s, "arbitrated_s": validation.arbitrated_s}
    return {**times, "compared": validation.compared, "refused": refused}


def library_changes(groups: Sequence[Sequence[str]]) -> tuple[Choices, list[Choices]]:
    """All groups (by their first kernel) computed by libraries (1), and the changes that are worth a trial.

    Each group is left out (0), or taken again where all were left out.
    """
    names = [group[0] for group in groups]
    one_by_one = [{name: taken} for name in names for taken in (0, 1)]
    return dict.fromkeys(names, 1), [dict.fromkeys(names, 0), *one_by_one]


def _recalled(record: str, programs: Mapping[str, Module]) -> dict[str, Any] | None:
    data = json.loads(record)
    refused, times = data.get("refused"), data.get("s")
    if not isinstance(refused, list) or not all(isinstance(n, str) and n in programs for n in refused):
        return None
    if not isinstance(times, list) or len(times) != 2 or not all(type(s) is float and s > 0 for s in times):
        return None
    return {"isolated_s": times[0], "arbitrated_s": times[1], "compared": 0, "refused": refused}


def _called(module: Module, site: tuple[Op, ...]) -> list[Func]:
    """The kernels that the calls of a site are of."""
    return [module[callee_of(op)] for op in site]


def _gain(kernels: Sequence[Func]) -> float:
    """Seconds that one call of a library may save of kernels in turn: what is above the largest bound."""
    seconds = sum(map(seconds_of, kernels))
    bound = max(bound_of(f) for f in kernels)
    return max(seconds - bound, LEAST_GAIN * seconds, LEAST_S)
