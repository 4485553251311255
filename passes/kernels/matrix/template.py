"""Contractions on tensor cores as a kernel template."""

from __future__ import annotations

from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.matrix.weights import channel_last
from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.template import KernelTemplate

register_template(
    KernelTemplate(
        name="matrix",
        lower=lower_matrix,
        weight_order=channel_last,
        prefetches_weights=False,
        rounds_to="tf32",
        anchors=None,
        keeps_registers=False,
        searches_engines=True,
        neighbours={},
        variants=None,
        candidates=None,
    )
)
