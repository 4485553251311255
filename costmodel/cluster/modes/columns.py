"""Everything the corrected terms are computed from: one column per quantity, one entry per configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from tilewright.costmodel.cluster.inputs.machine import ELEMENT_BYTES, Cluster
from tilewright.costmodel.cluster.inputs.model import ClusterModel, StageLoad
from tilewright.costmodel.cluster.inputs.training import GRADIENTS, SCHEDULES, Training
from tilewright.costmodel.cluster.modes.configurations import (
    Column,
    Configurations,
    Flags,
    corrected_configurations,
)


@dataclass(frozen=True)
class StepColumns:
    """A cluster, model and training with their configurations, and what many terms share.

    load: the fields of StageLoad as columns. micro_steps: micro-batches per replica and step (m). samples: of
    one replica (B / DP). forwards: forward passes per sample with recomputation. backward: 1 in training.
    unit_bytes: parameters of the stage on one device (2 Psi_u). element: bytes of one element.
    """

    cluster: Cluster
    model: ClusterModel
    training: Training
    configurations: Configurations
    load: Mapping[str, Column]
    dp: Column
    tp: Column
    p: Column
    micro_batch: Column
    interleave: Column
    micro_steps: Column
    samples: Column
    forwards: Column
    backward: int
    element: int
    unit_bytes: Column
    activation_resident: Flags
    parameter_resident: Flags
    in_memory: Flags
    gradients_stored: Flags

    @property
    def recompute(self) -> Flags:
        """True where every layer's forward pass is repeated."""
        return self.configurations.recompute == 1

    @property
    def state_bytes(self) -> Column:
        """Optimizer state of one device: float32 moments, and a float32 master copy of 16-bit parameters.

        Divided over the data-parallel group from sharding 1 on. 0 in inference.
        """
        words = self.training.optimizer_moments + (1 if self.element < 4 else 0)
        elements = self.unit_bytes / self.element
        return 4.0 * self.backward * words * elements / self.shards(1)

    def shards(self, stage: int) -> Column:
        """Over how many devices the data of a ZeRO stage is divided: DP from sharding `stage` on."""
        return np.where(self.configurations.sharding >= stage, self.dp, 1.0)


def case_of(cluster: Cluster, model: ClusterModel, training: Training) -> StepColumns:
    """All configurations of the corrected mode with their shared columns."""
    c = corrected_configurations(cluster, training)
    element, training_steps = ELEMENT_BYTES[training.precision], training.phase == "training"
    load = _load_columns(model, c.p)
    dp, tp = c.dp.astype(np.float64), c.tp.astype(np.float64)
    schedule = {name: c.schedule == index for index, name in enumerate(SCHEDULES)}
    return StepColumns(
        cluster=cluster,
        model=model,
        training=training,
        configurations=c,
        load=load,
        dp=dp,
        tp=tp,
        p=c.p.astype(np.float64),
        micro_batch=c.micro_batch.astype(np.float64),
        interleave=c.interleave.astype(np.float64),
        micro_steps=training.batch / (dp * c.micro_batch),
        samples=training.batch / dp,
        forwards=np.where(c.recompute == 1, 2.0, 1.0),
        backward=1 if training_steps else 0,
        element=element,
        unit_bytes=element * load["parameters"] / tp,
        activation_resident=schedule["AR"],
        parameter_resident=schedule["PR"],
        in_memory=schedule["IM"],
        gradients_stored=schedule["AR"] & (c.gradients == GRADIENTS.index("storage")) & training_steps,
    )


def _load_columns(model: ClusterModel, p: np.ndarray) -> dict[str, Column]:
    """The stage loads of every p; one beyond the layers (infeasible) counts as a layer per stage."""
    values, places = np.unique(p, return_inverse=True)
    loads = [model.stage(min(int(value), model.layers)) for value in values]
    return {
        field.name: np.array([getattr(load, field.name) for load in loads], np.float64)[places]
        for field in fields(StageLoad)
    }
