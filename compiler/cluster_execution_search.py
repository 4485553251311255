"""Which division of a network over a few devices is fastest, among those that can be executed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tilewright.cluster_execution_division import Division
from tilewright.cluster_execution_parts import part_of
from tilewright.cluster_execution_prediction import RankTimes, predict
from tilewright.cluster_execution_work import OpSeconds, timed_model, unit_starts
from tilewright.costmodel.cluster.machine import Cluster
from tilewright.costmodel.cluster.network_model import NetworkModel
from tilewright.costmodel.cluster.search import search
from tilewright.costmodel.cluster.training import Training
from tilewright.executable import clear_errors
from tilewright.ir import InputError, Module, TilewrightError, WorkError
from tilewright.runtime.communication.communicator import AnyCommunicator

#: configurations that the cluster model ranks first and that are priced from the ranks' modules
PRICED = 8
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

    seconds: of its ops. sizes: of those of the network for fewer samples, where these were measured.
    """

    module: Module
    name: str
    cluster: Cluster
    seconds: OpSeconds
    precision: str
    least_weight_bytes: int
    sizes: Mapping[int, OpSeconds] = field(default_factory=dict)

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

    ranks: predicted times, empty where `why` tells that it cannot be executed (or that it was not priced).
    """

    row: Mapping[str, Any]
    division: Division
    ranks: tuple[RankTimes, ...] = ()
    why: str = ""

    @property
    def predicted_s(self) -> float:
        """Seconds of the slowest rank; infinite for one that is not priced."""
        return max((r.total_s for r in self.ranks), default=float("inf"))


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
            found.append(Candidate(row, _division(row, model, starts, problem.least_weight_bytes)))
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


def priced(problem: Problem, candidate: Candidate) -> Candidate:
    """The candidate with the times of its ranks' modules, or why they cannot be made."""
    division = candidate.division
    try:
        parts = [part_of(problem.module, division, rank) for rank in range(division.devices)]
        seconds = problem.sizes.get(problem.samples(division), problem.seconds)
        ranks = predict(parts, division, seconds, problem.cluster.intra)
    except TilewrightError as error:
        return Candidate(candidate.row, division, why=str(error))
    return Candidate(candidate.row, division, tuple(ranks))


def best_division(
    problem: Problem, wanted: Wanted, communicator: AnyCommunicator | None = None, most: int = PRICED
) -> tuple[Candidate, list[Candidate]]:
    """The fastest that can be executed, and all candidates, the first `most` of them priced.

    The cluster model's ranking decides which are priced; the modules of their ranks decide which is fastest,
    and nothing that has no such modules is planned. Where none of the first can be executed the next are
    priced. communicator: its ranks share the pricing, each calls this with the same arguments.
    Raises as `candidates`, and WorkError where nothing can be executed.
    """
    found = candidates(problem, wanted)
    for begin in range(0, len(found), most):
        chunk = _shared_pricing(problem, found[begin : begin + most], communicator)
        found[begin : begin + most] = chunk
        best = min(chunk, key=lambda c: c.predicted_s)
        if best.ranks:
            return best, found
    raise WorkError(f"no division of {problem.name} can be executed; the first: {found[0].why}")


def _shared_pricing(
    problem: Problem, chunk: Sequence[Candidate], communicator: AnyCommunicator | None
) -> list[Candidate]:
    if communicator is None:
        return [priced(problem, candidate) for candidate in chunk]
    own = range(communicator.rank, len(chunk), communicator.size)
    told = {i: _told(priced(problem, chunk[i])) for i in own}
    with clear_errors():
        texts = communicator.gather_texts(json.dumps(told), doing="comparing divisions")
    known = {int(i): row for text in texts for i, row in json.loads(text).items()}
    return [
        Candidate(c.row, c.division, tuple(map(RankTimes, known[i]["ranks"])), known[i]["why"])
        for i, c in enumerate(chunk)
    ]


def _told(candidate: Candidate) -> dict[str, Any]:
    return {"ranks": [r.components_s for r in candidate.ranks], "why": candidate.why}
