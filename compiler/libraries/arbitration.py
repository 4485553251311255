"""Library kernels that won alone against the generated ones they replace, in the replay of the network.

A library kernel starts no earlier than its predecessors end, and leaves epilogues to other kernels: alone it
may be faster and in the network not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from tilewright.codegen.builders.cache import cache_key
from tilewright.compilation.planning import library_kernels
from tilewright.ir import Module
from tilewright.measuring.budget import Budget
from tilewright.measuring.measurer import Measurer
from tilewright.measuring.network_replays import in_turns, planned_streams, random_inputs
from tilewright.measuring.network_validation import is_better, median
from tilewright.measuring.plan_swap import network_plan
from tilewright.passes.tensor.share_kernels import kernel_text
from tilewright.runtime.interface.device import LoadedPlan
from tilewright.runtime.streams.assignment import with_streams
from tilewright.tuning.database.records import Choice

#: seconds that it may take where there is no budget
LIMIT_S = 40.0

#: per kernel the program that a library computes it by
Programs = Mapping[str, Module]
#: seconds of replays of the network with two sets of programs, taken in turns
Compare = Callable[[Programs, Programs], tuple[list[float], list[float]]]


@dataclass
class InNetwork:
    """The programs that stay, the kernels whose library was refused, and replays with all and at the end."""

    programs: dict[str, Module]
    refused: list[str] = field(default_factory=list)
    compared: int = 0
    isolated_s: float | None = None
    arbitrated_s: float | None = None


def arbitrate_libraries(
    programs: Programs, groups: Sequence[Sequence[str]], pairs: Compare, budget: Budget
) -> InNetwork:
    """Leave out what makes the network slower: first all, if that is faster without any, then one by one.

    groups: names of kernels that share a program, those that take most time first. What was left out with all
    may come back alone.
    """
    found = InNetwork(dict(programs))
    together = [[n for g in groups for n in g]] if len(groups) > 1 else []
    for names in (*together, *groups):
        if budget.over:
            break
        trial = {n: p for n, p in found.programs.items() if n not in names}
        if len(trial) == len(found.programs):
            trial |= {n: programs[n] for n in names}
        old, new = pairs(found.programs, trial)
        found.compared += 1
        if found.isolated_s is None:
            found.isolated_s = found.arbitrated_s = median(old)
        if is_better(new, old):
            found.programs, found.arbitrated_s = trial, median(new)
    found.refused = [n for g in groups for n in g if n not in found.programs]
    return found


def arbitrated_libraries(
    module: Module,
    programs: Programs,
    groups: Sequence[Sequence[str]],
    finished: Callable[[Programs], Module],
    measurer: Measurer,
    budget: Budget,
    streams: str,
) -> InNetwork:
    """`arbitrate_libraries` on the device, or what an earlier run of it came to.

    module: the network without libraries. finished: the network with some programs in it. streams: the policy
    that replays are timed with.
    """
    subject = _subject(module, programs)
    known = measurer.database.choice(measurer.key(subject))
    recalled = None if known is None else _recalled(known.record, programs)
    if recalled is not None:
        return recalled
    limit = budget if budget.seconds is not None else Budget(LIMIT_S)
    with _Replays(module, finished, measurer, streams) as replays:
        found = arbitrate_libraries(programs, groups, replays.pairs, limit)
    if found.arbitrated_s and not limit.over:
        record = json.dumps({"refused": found.refused, "s": [found.isolated_s, found.arbitrated_s]})
        measurer.database.put_choice(measurer.key(subject), Choice(record, int(time.time())))
    return found


def _subject(module: Module, programs: Programs) -> str:
    texts = [kernel_text(f) for f in module.funcs]
    texts += [n + k.to_json() for n, p in sorted(programs.items()) for k in library_kernels(p).values()]
    return "library:" + cache_key("in the network", *texts)


def _recalled(record: str, programs: Programs) -> InNetwork | None:
    data = json.loads(record)
    refused, times = data.get("refused"), data.get("s")
    if not isinstance(refused, list) or not all(isinstance(n, str) and n in programs for n in refused):
        return None
    if not isinstance(times, list) or len(times) != 2 or not all(type(s) is float and s > 0 for s in times):
        return None
    kept = {n: p for n, p in programs.items() if n not in refused}
    return InNetwork(kept, refused, 0, *times)


class _Replays(ExitStack):
    """The network with the two last sets of programs, loaded."""

    def __init__(
        self, module: Module, finished: Callable[[Programs], Module], measurer: Measurer, streams: str
    ) -> None:
        super().__init__()
        self._inputs, self._finished = random_inputs(module), finished
        self._measurer, self._streams = measurer, streams
        self._loaded: dict[frozenset[str], LoadedPlan] = {}
        self.callback(self._unload, frozenset())

    def pairs(self, old: Programs, new: Programs) -> tuple[list[float], list[float]]:
        """See `Compare`."""
        self._unload(frozenset((frozenset(old), frozenset(new))))
        return in_turns(self._load(old), self._load(new), self._inputs)

    def _load(self, programs: Programs) -> LoadedPlan:
        key = frozenset(programs)
        if key not in self._loaded:
            module, target = self._finished(programs), self._measurer.target
            found = network_plan(module, target)
            plan = with_streams(found.plan, planned_streams(module, found.plan, target, self._streams))
            self._loaded[key] = self._measurer.device.load(plan, found.constants)
        return self._loaded[key]

    def _unload(self, kept: frozenset[frozenset[str]]) -> None:
        for key in [k for k in self._loaded if k not in kept]:
            self._loaded.pop(key).close()
