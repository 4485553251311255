"""Device memory and storage that a configuration needs in the corrected model, in bytes per device."""

from __future__ import annotations

import numpy as np

from tilewright.costmodel.cluster.corrected_times import boundary_bytes, inside_bytes
from tilewright.costmodel.cluster.evaluation import Column
from tilewright.costmodel.cluster.stage_columns import Case

#: what streams is double-buffered
_BUFFERS = 2
#: logits and their softmax are float32
_HEAD_BYTES = 4


def memory_bytes(case: Case) -> Column:
    """Parameters, gradients, optimizer state and activations that are in device memory at the same time."""
    buffers = _BUFFERS * case.element * case.load["unit_parameters"] / case.wp
    whole = case.unit_bytes / case.shards(3) + np.where(case.configurations.sharding >= 3, buffers, 0.0)
    summed = case.backward * case.unit_bytes / case.shards(2)
    gradients_pass = case.parameter_resident | case.gradients_stored
    parameters = np.where(case.in_memory, whole + case.state_bytes, buffers)
    gradients = np.where(gradients_pass, case.backward * buffers, summed)
    return parameters + gradients + _streamed_or_kept(case) + _working(case)


def storage_bytes(case: Case) -> Column:
    """Parameters and optimizer state; gradients where they go there; activations of all samples for PR."""
    kept = case.unit_bytes / case.shards(3) + case.state_bytes
    gradients = case.backward * case.unit_bytes / case.shards(2)
    kept = kept + np.where(case.parameter_resident | case.gradients_stored, gradients, 0.0)
    activations = np.where(case.parameter_resident, boundary_bytes(case) + inside_bytes(case), 0.0)
    return np.where(case.in_memory, 0.0, kept + activations)


def _streamed_or_kept(case: Case) -> Column:
    """Layer inputs in memory: double buffers of input, output and gradient (PR), or all those in flight."""
    one = case.element * case.load["largest_boundary"] * case.micro_batch / case.wp
    streamed = _BUFFERS * (2.0 + case.backward) * one
    chunks = np.where(case.interleave > 1, 1.0 + (case.p - 1) / (case.p * case.interleave), 1.0)
    in_flight = np.minimum(case.micro_steps, case.p) * chunks
    kept = in_flight * (boundary_bytes(case) + inside_bytes(case)) / case.micro_steps
    if not case.backward:
        return np.where(case.parameter_resident, streamed, _BUFFERS * one)
    return np.where(case.parameter_resident, streamed, kept)


def _working(case: Case) -> Column:
    """One layer at work on a micro-batch, or the model's head."""
    kept = case.load["unit_inside_sharded"] / case.wp + case.load["unit_inside_replicated"]
    layer = case.element * kept
    head = _HEAD_BYTES * case.load["head"] / case.wp
    return np.maximum(layer, head) * case.micro_batch
