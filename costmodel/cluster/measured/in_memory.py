"""Seconds per component of a training step held in device memory, in tensor, pipeline and data parallel.

One call prices many configurations at once; every array has one entry per configuration.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tilewright.costmodel.cluster.measured.rings import RingTable, ring_share

Array = NDArray[np.float64]

#: a fp16 activation, weight or gradient
_HALF_BYTES = 2.0
#: read and written per parameter by mixed-precision Adam: fp32 master, two moments, half-precision pair
_OPTIMIZER_BYTES = 28.0


@dataclass(frozen=True, slots=True)
class Machine:
    """The rates of a node: peak FLOP/s of one device, its memory, and the network of one node."""

    name: str
    peak_flops: float
    memory_bytes_per_s: float
    memory_bytes: float
    devices_per_node: int
    node_network_bytes_per_s: float
    ring: RingTable


@dataclass(frozen=True, slots=True)
class TrainingRuns:
    """Configurations of decoder training, an array entry each: dimensions, devices per axis, batch, schedule.

    `recompute` is 0 (nothing), 1 (whole layers) or 2 (attention only), `sharding` the stage of ZeRO (0 to
    3), `sequence_parallel` 0 or 1.
    """

    layers: Array
    hidden: Array
    heads: Array
    sequence: Array
    vocabulary: Array
    tensor: Array
    pipeline: Array
    data: Array
    batch: Array
    micro_batch: Array
    interleave: Array
    recompute: Array
    sequence_parallel: Array
    sharding: Array

    @property
    def devices(self) -> Array:
        """Devices each configuration uses."""
        return self.tensor * self.pipeline * self.data

    @property
    def micro_batches(self) -> Array:
        """Micro-batches each pipeline works through per step."""
        return self.batch / (self.data * self.micro_batch)

    @property
    def step_flops(self) -> Array:
        """FLOP of a step as papers count them, recomputation included: 96 B s L d^2 (1 + s/6d + V/16Ld)."""
        s, d, n = self.sequence, self.hidden, self.layers
        return 96 * self.batch * s * n * d**2 * (1 + s / (6 * d) + self.vocabulary / (16 * n * d))


@dataclass(frozen=True, slots=True)
class Knobs:
    """The coefficients of a software stack on a machine, fitted to measured steps within physical bounds.

    `gemm_efficiency` is the share of the peak that large products reach, `gemm_half_elements` the elements
    (tokens x hidden / tensor) at which they reach half of it. `memory_passes` counts how often a layer's
    activations cross device memory. `network_share` and `ring_share` scale the node's network and the
    measured ring rates. `layer_floor_s` is what launching the kernels of one layer's forward pass takes at
    least, `micro_batch_s` the host's time per micro-batch and stage. `scale` multiplies the whole step.
    """

    gemm_efficiency: float
    gemm_half_elements: float
    memory_passes: float
    network_share: float
    ring_share: float
    layer_floor_s: float
    micro_batch_s: float
    scale: float = 1.0


#: from data sheets and reading alone, nothing fitted
A_PRIORI = Knobs(
    gemm_efficiency=0.62,
    gemm_half_elements=0.0,
    memory_passes=4.0,
    network_share=0.8,
    ring_share=1.0,
    layer_floor_s=0.0,
    micro_batch_s=0.0,
)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds per component, one entry per configuration; `total` is their sum.

    `compute` is products and activation traffic of the longest stage over all micro-batches,
    `tensor_parallel` its all-reduces, `transfer` what passes between stages, `bubble` filling and draining
    the pipeline, `overhead` the host's time.
    """

    compute: Array
    tensor_parallel: Array
    transfer: Array
    bubble: Array
    data_parallel: Array
    optimizer: Array
    overhead: Array

    @property
    def total(self) -> Array:
        """Seconds of the step."""
        return sum((getattr(self, f.name) for f in fields(self)), start=np.zeros_like(self.compute))


def step_time(runs: TrainingRuns, machine: Machine, knobs: Knobs) -> StepTime:
    """Price all configurations: T = m stage + (p-1)/v stage + data parallel + optimizer + host (1F1B)."""
    work, reduce = _layer_time(runs, machine, knobs)
    per_stage = np.ceil(runs.layers / runs.pipeline)
    logits = _logits_time(runs, machine, knobs)
    # a pipeline runs at the pace of its longest stage; the last also computes the logits, but has
    # fewer layers where they do not divide evenly
    last = runs.layers - per_stage * (np.ceil(runs.layers / per_stage) - 1)
    layer = work + reduce
    ends_longer = last * layer + logits > per_stage * layer
    longest_work = np.where(ends_longer, last * work + logits, per_stage * work)
    longest_reduce = np.where(ends_longer, last * reduce, per_stage * reduce)
    transfer = _transfer_time(runs, machine, knobs)
    m = runs.micro_batches
    host = np.where(runs.pipeline > 1, m + (runs.pipeline - 1) / runs.interleave, m) * knobs.micro_batch_s
    parameters = stage_parameters(runs)
    return StepTime(
        compute=knobs.scale * m * longest_work,
        tensor_parallel=knobs.scale * m * longest_reduce,
        transfer=knobs.scale * m * transfer,
        bubble=knobs.scale * (runs.pipeline - 1) / runs.interleave * (per_stage * layer + transfer),
        data_parallel=knobs.scale * _data_parallel_time(runs, machine, knobs, parameters),
        optimizer=knobs.scale * _optimizer_time(runs, machine, parameters),
        overhead=knobs.scale * host,
    )


def stage_parameters(runs: TrainingRuns) -> Array:
    """Parameters on a device of the fullest stage: its layers (12 d^2 each) and an embedding, over t."""
    per_stage = np.ceil(runs.layers / runs.pipeline)
    return (12 * per_stage * runs.hidden**2 + runs.vocabulary * runs.hidden) / runs.tensor


def activation_bytes(runs: TrainingRuns) -> Array:
    """Bytes of one layer's activations per micro-batch: b s d (10 + 24/t + 5 a s/(d t)), all over t with
    sequence parallelism (Korthikanti 2022, table 2).
    """
    t = runs.tensor
    outside = np.where(runs.sequence_parallel > 0, 10.0 / t, 10.0)
    attention = 5 * runs.heads * runs.sequence / (runs.hidden * t)
    return runs.micro_batch * runs.sequence * runs.hidden * (outside + 24 / t + attention)


def _efficiency(runs: TrainingRuns, knobs: Knobs) -> Array:
    elements = runs.micro_batch * runs.sequence * runs.hidden / runs.tensor
    return knobs.gemm_efficiency / (1 + knobs.gemm_half_elements / elements)


def _layer_time(runs: TrainingRuns, machine: Machine, knobs: Knobs) -> tuple[Array, Array]:
    """Seconds of one layer and micro-batch, forward and backward: on the device, and in its all-reduces."""
    b, s, d, t = runs.micro_batch, runs.sequence, runs.hidden, runs.tensor
    whole = (runs.recompute == 1).astype(np.float64)
    attention_again = (runs.recompute > 0).astype(np.float64)
    products = 24 * b * s * d**2 / t * ((3 + whole) + (3 + attention_again) * s / (6 * d))
    passes = 3 + whole
    memory = knobs.memory_passes * passes / 4 * activation_bytes(runs) / machine.memory_bytes_per_s
    device = products / (_efficiency(runs, knobs) * machine.peak_flops) + memory
    work = np.maximum(device, passes * knobs.layer_floor_s)
    payload = _HALF_BYTES * b * s * d
    # with sequence parallelism every all-reduce is a reduce-scatter and an all-gather: the same bytes
    reduces = 4 + 2 * whole
    inside = machine.ring.all_reduce_s(t, payload, knobs.ring_share)
    across = machine.ring.start_up_s(t) + ring_share(t) * payload / (
        machine.node_network_bytes_per_s * knobs.network_share
    )
    return work, reduces * np.where(t > 1, np.where(t <= machine.devices_per_node, inside, across), 0.0)


def _logits_time(runs: TrainingRuns, machine: Machine, knobs: Knobs) -> Array:
    """Product with the embedding table, forward and backward, and the softmax over the vocabulary in fp32."""
    tokens = runs.micro_batch * runs.sequence
    product = 6 * runs.vocabulary * runs.hidden * tokens / runs.tensor
    softmax = 4 * 4 * runs.vocabulary * tokens / runs.tensor
    return product / (_efficiency(runs, knobs) * machine.peak_flops) + softmax / machine.memory_bytes_per_s


def _transfer_time(runs: TrainingRuns, machine: Machine, knobs: Knobs) -> Array:
    """Activations forward and gradients back per micro-batch, once per interleaved chunk.

    The ranks of a tensor group send a part each. Where all devices fit one node they use its links; else the
    network, shared by the ranks of a node that send at once.
    """
    payload = 2 * _HALF_BYTES * runs.micro_batch * runs.sequence * runs.hidden / runs.tensor
    pair = machine.ring.bus_rate(2) * knobs.ring_share
    at_once = np.minimum(machine.devices_per_node, runs.tensor * runs.data)
    rate = np.where(
        runs.devices <= machine.devices_per_node,
        pair,
        machine.node_network_bytes_per_s * knobs.network_share / at_once,
    )
    return np.where(runs.pipeline > 1, runs.interleave * payload / rate, 0.0)


def _data_parallel_time(runs: TrainingRuns, machine: Machine, knobs: Knobs, parameters: Array) -> Array:
    """Ring all-reduce of the stage's gradients; with ZeRO passes of half that (scatter or gather) as needed.

    Stage 2 scatters gradients per micro-batch and gathers weights once, stage 3 gathers weights twice and
    scatters gradients per micro-batch.

    Tensor groups are placed first, then data groups: a ring leaves the node where both do not fit, and the
    rings of a node share its network.
    """
    size = _HALF_BYTES * parameters
    inside = runs.tensor * runs.data <= machine.devices_per_node
    ring = machine.ring.bus_rate(runs.data) * knobs.ring_share
    rings = np.minimum(runs.tensor, machine.devices_per_node)
    network = machine.node_network_bytes_per_s * knobs.network_share / rings
    one_way = (runs.data - 1) / runs.data * size / np.where(inside, ring, network)
    m = runs.micro_batches
    passes = np.select([runs.sharding == 3, runs.sharding == 2], [3 * m, m + 1], 2.0)
    return np.where(runs.data > 1, passes * one_way + machine.ring.start_up_s(2), 0.0)


def _optimizer_time(runs: TrainingRuns, machine: Machine, parameters: Array) -> Array:
    shards = np.where(runs.sharding > 0, runs.data, 1.0)
    return _OPTIMIZER_BYTES * parameters / shards / machine.memory_bytes_per_s
