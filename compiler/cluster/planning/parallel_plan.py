"""The division of a network by a plan: replicas, parts of weights, stages, coordinates of ranks."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.compilation.option_values import LEAST_WEIGHT_BYTES
from tilewright.ir import InputError


@dataclass(frozen=True)
class RankCoordinates:
    """The coordinates of a rank: stage `stage` of replica `replica`, with part `part` of the weights."""

    stage: int
    replica: int
    part: int


@dataclass(frozen=True)
class ParallelPlan:
    """dp replicas share the samples, every weight is cut into wp parts, the ops into p stages.

    Ranks are numbered as in the cluster model: parts innermost, then replicas, then stages.
    cuts: positions in the body of @main of the ops that begin stages 1, 2, ...; of a network after the graph
    passes. A replica computes its samples in `micro_batches` parts one after another. Weights below
    `least_weight_bytes` stay whole.
    """

    dp: int = 1
    tp: int = 1
    p: int = 1
    micro_batches: int = 1
    cuts: tuple[int, ...] = ()
    least_weight_bytes: int = LEAST_WEIGHT_BYTES

    def __post_init__(self) -> None:
        if min(self.dp, self.tp, self.p, self.micro_batches) < 1:
            raise InputError(f"expected dp, wp, p and micro-batches of at least 1, got {self.text}")
        if len(self.cuts) != self.p - 1 or list(self.cuts) != sorted(self.cuts):
            raise InputError(f"expected {self.p - 1} rising cuts for {self.p} stages, got {self.cuts}")
        if self.p == 1 and self.micro_batches > 1:
            raise InputError(f"expected one micro-batch without stages (p = 1), got {self.micro_batches}")

    @property
    def devices(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.p

    @property
    def text(self) -> str:
        """In words."""
        text = f"dp {self.dp}, wp {self.tp}, p {self.p}"
        return f"{text}, {self.micro_batches} micro-batches" if self.micro_batches > 1 else text

    def coordinates(self, rank: int) -> RankCoordinates:
        """Return the coordinates of a rank."""
        rest, part = divmod(rank, self.tp)
        stage, replica = divmod(rest, self.dp)
        return RankCoordinates(stage, replica, part)

    def rank(self, stage: int, replica: int, part: int) -> int:
        """Return the rank at these coordinates."""
        return (stage * self.dp + replica) * self.tp + part

    def tensor_group(self, own: RankCoordinates) -> tuple[int, ...]:
        """The ranks that hold the parts of one replica's stage, in their order."""
        return tuple(self.rank(own.stage, own.replica, part) for part in range(self.tp))

    def batch_group(self, own: RankCoordinates) -> tuple[int, ...]:
        """The ranks that do the same for other samples, in their order."""
        return tuple(self.rank(own.stage, replica, own.part) for replica in range(self.dp))
