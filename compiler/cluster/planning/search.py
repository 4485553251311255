"""The search for the fastest division of a network over a few devices, among those that can be executed.

Seconds of kernels of fewer samples are measured for some sizes, bounded and interpolated between: with more
samples an op takes no less time, and no more time per sample. So between two measured sizes the whole
network takes at least what the smaller one takes, and at least its share of the larger one's seconds; the
line between the two keeps both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tilewright.cluster.planning.op_seconds import (
    OpSeconds,
    seconds_by_location,
    timed_model,
    unit_starts,
    with_batch,
)
from tilewright.cluster.planning.parallel_plan import ParallelPlan
from tilewright.cluster.planning.parts import part_of
from tilewright.cluster.planning.prediction import RankTimes, predict
from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.costmodel.cluster.inputs.network import NetworkModel
from tilewright.costmodel.cluster.inputs.training import Training
from tilewright.costmodel.cluster.modes.search import search
from tilewright.ir import Func, InputError, Module, TilewrightError, UnsupportedError, WorkError
from tilewright.runtime.communication.communicator import AnyCommunicator

#: where seconds come from: these kernels were measured; lie between such, or below; their share of larger
#: ones, as the network cannot be had for so few samples; the record's rates
Basis = Literal["measured", "estimated", "shares", "record"]


@dataclass(frozen=True)
class SizeSeconds:
    """Seconds of ops of kernels of one size; `least_share` of them is needed for all that is known."""

    ops: OpSeconds
    basis: Basis
    total_s: float
    least_share: float = 1.0


@dataclass(frozen=True)
class SizeTable:
    """Seconds of a network's ops by the number of samples that its kernels compute at once.

    module: the whole network. known: measured seconds, those of its own batch among them; or the record's.
    """

    module: Module
    known: Mapping[int, OpSeconds]
    _found: dict[int, SizeSeconds] = field(default_factory=dict, repr=False, compare=False)

    def with_measured(self, samples: int, seconds: OpSeconds) -> SizeTable:
        """With one size more."""
        return SizeTable(self.module, {**self.known, samples: seconds})

    def of(self, samples: int) -> SizeSeconds:
        """For kernels of `samples` samples, at most the network's batch."""
        if samples not in self._found:
            self._found[samples] = self._of(samples)
        return self._found[samples]

    def slowness(self, samples: int) -> float:
        """Time of a sample in kernels of this size, in times of one in the whole batch; 1 if unknown."""
        whole = max(self.known)
        total_s, batch_s = self.of(samples).total_s, self.of(whole).total_s
        return total_s * whole / (samples * batch_s) if batch_s else 1.0

    def _of(self, samples: int) -> SizeSeconds:
        larger = min(size for size in self.known if size >= samples)
        upper = self.known[larger]
        share = samples / larger
        if not upper.by_location:
            return SizeSeconds(upper, "record", share * _total(upper))
        if larger == samples:
            return SizeSeconds(upper, "measured", _total(upper))
        try:
            func = with_batch(self.module, samples).main
        except (InputError, UnsupportedError):
            return SizeSeconds(upper, "shares", share * _total(upper))
        work = seconds_by_location(func, upper.rates)
        smaller = max((size for size in self.known if size < samples), default=0)
        least_s, ops = share * _total(upper), upper
        if smaller:
            lower = self.known[smaller]
            least_s = max(least_s, _total(lower))
            ops = _between(lower, upper, (samples - smaller) / (larger - smaller), work)
        total_s = sum(seconds * ops.factors.get(loc, 1.0) for loc, seconds in work.items())
        return SizeSeconds(ops, "estimated", total_s, min(1.0, least_s / total_s) if total_s else 1.0)


def _between(lower: OpSeconds, upper: OpSeconds, share: float, work: Mapping[str, float]) -> OpSeconds:
    """Seconds by location at `share` of the way from one size to the other; `work`: by the rates, there."""

    def at(a: float, b: float) -> float:
        return (1 - share) * a + share * b

    seconds = {loc: at(lower.by_location.get(loc, 0.0), upper.by_location.get(loc, 0.0)) for loc in work}
    return replace(
        upper,
        factors={loc: seconds[loc] / work[loc] for loc in work if work[loc]},
        overhead_share=at(lower.overhead_share, upper.overhead_share),
        by_location=seconds,
    )


def _total(seconds: OpSeconds) -> float:
    return sum(seconds.by_location.values())


#: the most promising configurations, which are priced from the ranks' modules
PRICED = 8
#: a division that may be faster by less than this share is not worth a measurement
WORTH = 0.02
_ALL = 1 << 20


@dataclass(frozen=True)
class RequestedShape:
    """The numbers of a division that the user fixed, 0 where the search may choose."""

    dp: int = 0
    tp: int = 0
    p: int = 0
    micro_batches: int = 0

    def takes(self, row: Mapping[str, Any]) -> bool:
        """Return True for a configuration that has the fixed numbers."""
        shape = {"dp": self.dp, "wp": self.tp, "p": self.p, "micro_batches": self.micro_batches}
        return all(not number or row[name] == number for name, number in shape.items())


@dataclass(frozen=True)
class PlanningProblem:
    """A graph-level network (after the graph passes, the batch in front of its first input) on a cluster.

    seconds: of its ops.
    """

    module: Module
    name: str
    cluster: Cluster
    seconds: OpSeconds
    precision: str
    least_weight_bytes: int

    def samples(self, division: ParallelPlan) -> int:
        """Return the number of samples that a kernel of a division computes at once."""
        return self.batch // (division.dp * division.micro_batches)

    @property
    def batch(self) -> int:
        """Samples of one run."""
        params = self.module.main.params
        if not params or not params[0].tensor.shape:
            raise InputError(f"expected a network whose first input has a batch in front, got {self.name}")
        return params[0].tensor.shape[0]


@dataclass(frozen=True)
class PlanCandidate:
    """A configuration: the cluster model's row, and what its ranks' modules say.

    samples: of its kernels. ranks: predicted times, empty where `why` tells that it cannot be executed (or
    that it was not priced). basis: of these times. least_share: of them, what is known to be needed.
    """

    row: Mapping[str, Any]
    division: ParallelPlan
    samples: int
    ranks: tuple[RankTimes, ...] = ()
    why: str = ""
    basis: Basis = "record"
    least_share: float = 1.0

    @property
    def predicted_s(self) -> float:
        """Seconds of the slowest rank; infinite for one that is not priced."""
        return max((r.total_s for r in self.ranks), default=float("inf"))

    @property
    def least_s(self) -> float:
        """Seconds below which it cannot come: less compute makes it faster by no more than its share."""
        return self.least_share * self.predicted_s


def candidates(problem: PlanningProblem, wanted: RequestedShape) -> list[PlanCandidate]:
    """Return the feasible candidates of the corrected model (inference, all in memory), fastest first.

    Raises InputError where what is wanted uses another number of devices, WorkError with the reasons where
    nothing is feasible.
    """
    cluster, batch = problem.cluster, problem.batch
    shape = (wanted.dp, wanted.tp, wanted.p)
    if all(shape) and wanted.dp * wanted.tp * wanted.p != cluster.devices:
        raise InputError(
            f"expected dp x wp x p = {cluster.devices}, the number of devices, "
            f"got {' x '.join(map(str, shape))}"
        )
    model = timed_model(problem.module.main, problem.name, problem.seconds, cluster, problem.precision)
    training = Training(
        name="inference",
        batch=batch,
        micro_batches=tuple(n for n in range(1, batch + 1) if batch % n == 0),
        schedules=("IM",),
        phase="inference",
        precision=problem.precision,
    )
    result = search(cluster, model, training, top=_ALL)
    starts = unit_starts(problem.module.main)
    feasible = []
    for row in map(_with_micro_batches(batch), result.rows()):
        if wanted.takes(row) and (row["p"] > 1 or row["micro_batches"] == 1):
            division = _division(row, model, starts, problem.least_weight_bytes)
            feasible.append(PlanCandidate(row, division, problem.samples(division)))
    if not feasible:
        evaluation = result.evaluation
        rows = map(_with_micro_batches(batch), map(evaluation.row, range(len(evaluation.configurations))))
        reasons = dict.fromkeys(why for row in rows if wanted.takes(row) for why in row["infeasible"])
        sentence = "; ".join(reasons) or "there is no such configuration"
        raise WorkError(f"no division of {problem.name} over {cluster.devices} devices as asked: {sentence}")
    return feasible


def _with_micro_batches(batch: int) -> Any:
    def row(configuration: dict[str, Any]) -> dict[str, Any]:
        return {
            **configuration,
            "micro_batches": batch // max(configuration["dp"] * configuration["micro_batch"], 1),
        }

    return row


def _division(row: Mapping[str, Any], model: NetworkModel, starts: Sequence[int], least: int) -> ParallelPlan:
    cuts = tuple(starts[unit] for unit in model.cuts(row["p"])[1:-1])
    return ParallelPlan(row["dp"], row["wp"], row["p"], row["micro_batches"], cuts, least)


@dataclass(frozen=True)
class SearchOutcome:
    """The chosen candidate, all candidates, and the seconds known of the network's sizes.

    open_: how many divisions rest on estimates and may be faster, by more than `WORTH`.
    """

    best: PlanCandidate
    found: Sequence[PlanCandidate]
    sizes: SizeTable
    open_: int


def best_division(
    problem: PlanningProblem,
    shape: RequestedShape,
    communicator: AnyCommunicator | None = None,
    measure: Callable[[int], OpSeconds] | None = None,
    most_sizes: int = 0,
    most: int = PRICED,
) -> SearchOutcome:
    """The fastest that can be executed, among those whose kernels' sizes are measured.

    measure: seconds of the ops of the network for so many samples; it is asked, up to `most_sizes` times, for
    the size of the best division that is not measured, as long as such a one may be faster than the best
    measured one. An estimate that is too low thus leads to a measurement, not to a plan. Where nothing
    measured can be executed, or nothing may be measured, estimates are compared.
    communicator: its ranks share the pricing, each calls this with the same arguments.
    Raises as `candidates`, and WorkError where nothing can be executed.
    """
    search = _Search(problem, candidates(problem, shape), communicator, most)
    measurements = 0
    while True:
        search.price()
        rivals = search.rivals(search.sure_s)
        if measure is None or measurements >= most_sizes or not rivals:
            break
        size = min(rivals, key=lambda c: c.predicted_s).samples
        search.sizes = search.sizes.with_measured(size, measure(size))
        measurements += 1
    sure = [c for c in search.found if c.basis != "estimated"] if most_sizes else search.found
    best = min(sure, key=lambda c: c.predicted_s, default=search.found[0])
    if not best.ranks:
        best = min(search.found, key=lambda c: c.predicted_s)
    others = [c for c in search.rivals(best.predicted_s) if c is not best]
    return SearchOutcome(best, search.found, search.sizes, len(others))


@dataclass
class _Search:
    """Candidates in the order of the cluster model, the most promising of them priced.

    made: of those, the functions of all ranks, by rank that prices them, or why there are none.
    """

    problem: PlanningProblem
    found: list[PlanCandidate]
    communicator: AnyCommunicator | None
    most: int
    made: dict[int, list[Func] | str] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = SizeTable(self.problem.module, {self.problem.batch: self.problem.seconds})

    @property
    def sure_s(self) -> float:
        """Seconds of the best division that rests on no estimate; infinite without one."""
        return min((c.predicted_s for c in self.found if c.basis != "estimated"), default=float("inf"))

    def rivals(self, best_s: float) -> list[PlanCandidate]:
        """Those that rest on estimates and may be faster by a share that is worth a measurement."""
        estimated = (c for c in self.found if c.ranks and c.basis == "estimated")
        return [c for c in estimated if c.least_s < (1 - WORTH) * best_s]

    def price(self) -> None:
        """Price the first ones by the cluster model, whose times know nothing of the size of kernels.

        Where none of them can be executed, the next ones; what was priced before is priced anew.
        Raises WorkError where nothing can be executed.
        """
        promise = [c.row["total_s"] * self.sizes.slowness(c.samples) for c in self.found]
        order = sorted(range(len(self.found)), key=promise.__getitem__)
        size = self.communicator.size if self.communicator is not None else 1
        for begin in range(0, len(order), self.most):
            for i in order[begin : begin + self.most]:
                self.owners.setdefault(i, len(self.owners) % size)
            self._price_known()
            if any(self.found[i].ranks for i in self.owners):
                return
        why = self.found[order[0]].why
        raise WorkError(f"no division of {self.problem.name} can be executed; the first: {why}")

    def _price_known(self) -> None:
        own = self.communicator.rank if self.communicator is not None else 0
        prices = json.dumps({i: self._priced(i) for i, owner in self.owners.items() if owner == own})
        texts = [prices]
        if self.communicator is not None:
            texts = self.communicator.gather_texts(prices, doing="comparing divisions")
        for text in texts:
            for i, row in json.loads(text).items():
                candidate = self.found[int(i)]
                size = self.sizes.of(candidate.samples)
                self.found[int(i)] = replace(
                    candidate,
                    ranks=tuple(map(RankTimes, row["ranks"])),
                    why=row["why"],
                    basis=size.basis,
                    least_share=size.least_share,
                )

    def _priced(self, i: int) -> dict[str, Any]:
        """Times of the ranks' functions, which are made once, or why they cannot be made."""
        candidate, problem = self.found[i], self.problem
        division = candidate.division
        try:
            if i not in self.made:
                parts = (part_of(problem.module, division, rank) for rank in range(division.devices))
                self.made[i] = [part.main for part in parts]
            made = self.made[i]
            if isinstance(made, str):
                return {"ranks": [], "why": made}
            ranks = predict(made, division, self.sizes.of(candidate.samples).ops, problem.cluster.intra)
        except TilewrightError as error:
            self.made[i] = str(error)
            return {"ranks": [], "why": str(error)}
        return {"ranks": [r.components_s for r in ranks], "why": ""}
