"""A training or an inference: batch, precision, optimizer, and the candidates of every searched choice."""

from __future__ import annotations

from dataclasses import dataclass

#: PR: a layer's parameters stay while all micro-batches pass; AR: a micro-batch's activations stay while all
#: layers pass; IM: parameters, optimizer state and activations all stay in device memory
SCHEDULES = ("PR", "AR", "IM")
PHASES = ("training", "inference")
GRADIENTS = ("device", "storage")
SHARDINGS = (0, 1, 2, 3)


@dataclass(frozen=True)
class Training:
    """One step over `batch` samples (sequences, images) and what the search may choose.

    recompute: True repeats every layer's forward pass in the backward pass and keeps only layer inputs.
    sharding: ZeRO stage over the data-parallel group (0 none, 1 optimizer state, 2 and gradients, 3 and
    parameters).
    gradients: where schedule AR adds up gradients between micro-batches (PR writes them once, IM has them in
    memory).
    interleave: pipeline chunks per device. uneven_stages: allow ceil(layers / P) layers on a stage.
    optimizer_moments: float32 words of state per parameter besides the master copy (Adam 2, momentum 1).
    optimizer_coefficient: COEF of the printed model. printed_flops_per_op: its NUM_COMPUTE, FLOP of one
    operator for one sequence; 0 (it was never published) leaves its compute time out.
    max_dp, max_tp, max_p: limits of the search; 0 is none.
    """

    name: str
    batch: int
    micro_batches: tuple[int, ...] = (1,)
    schedules: tuple[str, ...] = ("PR", "AR")
    recompute: tuple[bool, ...] = (True,)
    sharding: tuple[int, ...] = (1,)
    interleave: tuple[int, ...] = (1,)
    gradients: tuple[str, ...] = ("device",)
    phase: str = "training"
    precision: str = "fp16"
    uneven_stages: bool = False
    optimizer_moments: int = 2
    optimizer_coefficient: float = 4.0
    printed_flops_per_op: float = 0.0
    max_dp: int = 0
    max_tp: int = 0
    max_p: int = 0
