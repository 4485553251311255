"""Contractions on tensor cores as a kernel template."""

from __future__ import annotations

from tilewright.passes.kernels.matrix.choice import choose_cores, cores_engine, least_cores_s
from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.matrix.parameters import MatrixParameters
from tilewright.passes.kernels.matrix.weights import channel_last
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.template import Choices, KernelTemplate

register_template(
    KernelTemplate(
        name="matrix",
        parameters=MatrixParameters,
        lower=lower_matrix,
        weight_order=channel_last,
        prefetches_weights=False,
        rounds_to="tf32",
        joined=None,
        engine=cores_engine,
        neighbours={},
        variants=None,
        candidates=None,
    )
)

register_choices(Choices("matrix", precedence=20, choose=choose_cores, least_s=least_cores_s))
