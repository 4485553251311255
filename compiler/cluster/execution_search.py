"""Which division of a network over a few devices is fastest, among those that can be executed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from tilewright.cluster.division import Division
from tilewright.cluster.execution_prediction import RankTimes, predict
from tilewright.cluster.parts import part_of
from tilewright.cluster.sizes import Basis, Sizes
from tilewright.cluster.work import OpSeconds, timed_model, unit_starts
from tilewright.costmodel.cluster.machine import Cluster
from tilewright.costmodel.cluster.network_model import NetworkModel
from tilewright.costmodel.cluster.search import search
from tilewright.costmodel.cluster.training import Training
from tilewright.ir import Func, InputError, Module, TilewrightError, WorkError
from tilewright.runtime.communication.communicator import AnyCommunicator

#: the most promising configurations, which are priced from the ranks' modules
PRICED = 8
#: a division that may be faster by less than this share is not worth a measurement
WORTH = 0.02
_ALL = 1 << 20


@dataclass(frozen=True)
class Wanted:
    """What was asked for: numbers of a division, 0 where the search may choose."""

    dp: int = 0
    wp: int = 0
    p: int = 0
    micro_batches: int = 0

    def takes(self, row: Mapping[str, Any]) -> bool:
        """Whether a configuration is as asked for."""
        return all(not wanted or row[name] == wanted for name, wanted in asdict(self).items())


@dataclass(frozen=True)
class Problem:
    """A graph-level network (after the graph passes, the batch in front of its first input) on a cluster.

    seconds: of its ops.
    """

    module: Module
    name: str
    cluster: Cluster
    seconds: OpSeconds
    precision: str
    least_weight_bytes: int

    def samples(self, division: Division) -> int:
        """How many samples a kernel of a division computes at once."""
        return self.batch // (division.dp * division.micro_batches)

    @property
    def batch(self) -> int:
        """Samples of one run."""
        params = self.module.main.params
        if not params or not params[0].tensor.shape:
            raise InputError(f"expected a network whose first input has a batch in front, got {self.name}")
        return params[0].tensor.shape[0]


@dataclass(frozen=True)
class Candidate:
    """A configuration: the cluster model's row, and what its ranks' modules say.

    samples: of its kernels. ranks: predicted times, empty where `why` tells that it cannot be executed (or
    that it was not priced). basis: of these times. least_share: of them, what is known to be needed.
    """

    row: Mapping[str, Any]
    division: Division
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


def candidates(problem: Problem, wanted: Wanted) -> list[Candidate]:
    """What the corrected cluster model (inference, everything in memory) finds feasible, fastest first.

    Raises InputError where what is wanted uses another number of devices, WorkError with the reasons where
    nothing is feasible.
    """
    cluster, batch = problem.cluster, problem.batch
    shape = (wanted.dp, wanted.wp, wanted.p)
    if all(shape) and wanted.dp * wanted.wp * wanted.p != cluster.devices:
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
    found = []
    for row in map(_with_micro_batches(batch), result.rows()):
        if wanted.takes(row) and (row["p"] > 1 or row["micro_batches"] == 1):
            division = _division(row, model, starts, problem.least_weight_bytes)
            found.append(Candidate(row, division, problem.samples(division)))
    if not found:
        evaluation = result.evaluation
        rows = map(_with_micro_batches(batch), map(evaluation.row, range(len(evaluation.configurations))))
        reasons = dict.fromkeys(why for row in rows if wanted.takes(row) for why in row["infeasible"])
        told = "; ".join(reasons) or "there is no such configuration"
        raise WorkError(f"no division of {problem.name} over {cluster.devices} devices as asked: {told}")
    return found


def _with_micro_batches(batch: int) -> Any:
    def row(found: dict[str, Any]) -> dict[str, Any]:
        return {**found, "micro_batches": batch // max(found["dp"] * found["micro_batch"], 1)}

    return row


def _division(row: Mapping[str, Any], model: NetworkModel, starts: Sequence[int], least: int) -> Division:
    cuts = tuple(starts[unit] for unit in model.cuts(row["p"])[1:-1])
    return Division(row["dp"], row["wp"], row["p"], row["micro_batches"], cuts, least)


@dataclass(frozen=True)
class Choice:
    """What was chosen, among what, and what is known of the network's sizes.

    open_: how many divisions rest on estimates and may be faster, by more than `WORTH`.
    """

    best: Candidate
    found: Sequence[Candidate]
    sizes: Sizes
    open_: int


def best_division(
    problem: Problem,
    wanted: Wanted,
    communicator: AnyCommunicator | None = None,
    measure: Callable[[int], OpSeconds] | None = None,
    most_sizes: int = 0,
    most: int = PRICED,
) -> Choice:
    """The fastest that can be executed, among those whose kernels' sizes are measured.

    measure: seconds of the ops of the network for so many samples; it is asked, up to `most_sizes` times, for
    the size of the best division that is not measured, as long as such a one may be faster than the best
    measured one. An estimate that is too low thus leads to a measurement, not to a plan. Where nothing
    measured can be executed, or nothing may be measured, estimates are compared.
    communicator: its ranks share the pricing, each calls this with the same arguments.
    Raises as `candidates`, and WorkError where nothing can be executed.
    """
    search = _Search(problem, candidates(problem, wanted), communicator, most)
    asked = 0
    while True:
        search.price()
        rivals = search.rivals(search.sure_s)
        if measure is None or asked >= most_sizes or not rivals:
            break
        size = min(rivals, key=lambda c: c.predicted_s).samples
        search.sizes = search.sizes.with_measured(size, measure(size))
        asked += 1
    sure = [c for c in search.found if c.basis != "estimated"] if most_sizes else search.found
    best = min(sure, key=lambda c: c.predicted_s, default=search.found[0])
    if not best.ranks:
        best = min(search.found, key=lambda c: c.predicted_s)
    others = [c for c in search.rivals(best.predicted_s) if c is not best]
    return Choice(best, search.found, search.sizes, len(others))


@dataclass
class _Search:
    """Candidates in the order of the cluster model, the most promising of them priced.

    made: of those, the functions of all ranks, by rank that prices them, or why there are none.
    """

    problem: Problem
    found: list[Candidate]
    communicator: AnyCommunicator | None
    most: int
    made: dict[int, list[Func] | str] = field(default_factory=dict)
    owners: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sizes = Sizes(self.problem.module, {self.problem.batch: self.problem.seconds})

    @property
    def sure_s(self) -> float:
        """Seconds of the best division that rests on no estimate; infinite without one."""
        return min((c.predicted_s for c in self.found if c.basis != "estimated"), default=float("inf"))

    def rivals(self, best_s: float) -> list[Candidate]:
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
        told = json.dumps({i: self._priced(i) for i, owner in self.owners.items() if owner == own})
        texts = [told]
        if self.communicator is not None:
            texts = self.communicator.gather_texts(told, doing="comparing divisions")
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
