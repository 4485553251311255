"""The load that a model puts on one pipeline stage, per sample; a transformer states it by its dimensions."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Protocol


@dataclass(frozen=True)
class StageLoad:
    """The most loaded of P stages without weight partition; elements and FLOP per sample (sequence, image).

    flops: forward FLOP of its layers. head_flops: its share of the FLOP that recomputation does not repeat.
    parameters: elements. unit_parameters: elements of its largest unit (layer).
    units: layers of the stage. boundary: elements of all layer inputs. largest_boundary: of one.
    inside_sharded, inside_replicated: elements kept for the backward pass besides layer inputs, without
    recomputation: the part that weight partition divides, and the part it does not.
    unit_inside_sharded, unit_inside_replicated: the same of the largest unit.
    reduced: elements all-reduced in one forward pass under weight partition, in `reductions` calls.
    edge: elements passed to the next stage. head: elements of the model's last result (logits), divided by
    weight partition.
    """

    flops: float
    head_flops: float
    parameters: float
    unit_parameters: float
    units: float
    boundary: float
    largest_boundary: float
    inside_sharded: float
    inside_replicated: float
    unit_inside_sharded: float
    unit_inside_replicated: float
    reduced: float
    reductions: float
    edge: float
    head: float


class ClusterModel(Protocol):
    """The properties of a model that the corrected mode needs."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    @property
    def layers(self) -> int:
        """Units that a pipeline may be cut between; layers % P decides even stages where `uniform`."""
        ...

    @property
    def uniform(self) -> bool:
        """True when all units are equal, so that only layers % P = 0 gives even stages."""
        ...

    def splits(self, tp: int) -> bool:
        """True when every layer can be cut into `wp` equal parts (weight partition)."""
        ...

    def stage(self, p: int) -> StageLoad:
        """The most loaded of `p` stages (p at most `layers`)."""
        ...


@dataclass(frozen=True)
class Transformer:
    """A decoder of equal layers: L, d, heads a, s, V. Samples are sequences of `sequence` tokens."""

    name: str
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    uniform: bool = True

    @property
    def layer_parameters(self) -> int:
        """12 d^2: attention 4 d^2, feed-forward 8 d^2 (biases and norms are left out)."""
        return 12 * self.hidden**2

    @property
    def op_count(self) -> int:
        """OP of the printed model: two operators (attention, feed-forward) per layer."""
        return 2 * self.layers

    @property
    def op_parameters(self) -> int:
        """PARAM of the printed model: 6 d^2 elements of one operator."""
        return 6 * self.hidden**2

    @property
    def op_activations(self) -> int:
        """ACT of the printed model: 1.5 d s elements of one operator and sequence."""
        return 3 * self.hidden * self.sequence // 2

    def splits(self, tp: int) -> bool:
        """Heads are divided evenly."""
        return self.heads % tp == 0

    def stage(self, p: int) -> StageLoad:
        """ceil(L / p) layers, and the p-th part of the vocabulary layer's FLOP.

        Forward FLOP of a layer 24 d^2 s (1 + s / 6d), of the vocabulary 2 V d s (Narayanan et al. 2021,
        appendix). Kept elements of a layer s d (5 + 12/t + 5 a s / 2 d t), of which s d are its input:
        half of the bytes s b h (10 + 24/t + 5 a s / h t) of Korthikanti et al. 2022, section 4.
        """
        d, s, units = self.hidden, self.sequence, ceil(self.layers / p)
        layer_flops = 2.0 * self.layer_parameters * s * (1 + s / (6 * d))
        sharded, replicated = 12.0 * s * d + 2.5 * self.heads * s * s, 4.0 * s * d
        return StageLoad(
            flops=units * layer_flops,
            head_flops=2.0 * self.vocabulary * d * s / p,
            parameters=float(units * self.layer_parameters),
            unit_parameters=float(self.layer_parameters),
            units=units,
            boundary=float(units * s * d),
            largest_boundary=float(s * d),
            inside_sharded=units * sharded,
            inside_replicated=units * replicated,
            unit_inside_sharded=sharded,
            unit_inside_replicated=replicated,
            reduced=2.0 * units * s * d,
            reductions=2.0 * units,
            edge=float(s * d),
            head=float(s * self.vocabulary),
        )
