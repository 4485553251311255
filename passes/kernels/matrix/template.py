"""Contractions on tensor cores as a kernel template."""

from __future__ import annotations

from tilewright.ir import Func, Op
from tilewright.ir.tensor.ops import TF32
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.matrix.choice import choose_cores, cores_engine, least_cores_s, preloaded
from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.matrix.parameters import MatrixParameters
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.template import Choices, ContractionEngine, KernelTemplate
from tilewright.passes.kernels.weight_order import WeightOrder, axes_channel_last


def channel_last(kernel: Func, op: Op) -> WeightOrder:
    """All else, the columns in the order of the results, the channel; `op` is the kernel's contraction.

    float32 weights whose products round them are rounded to TF32, unless `rounded` in the parameters says
    that they are already.
    """
    p = parameters_of(kernel, MatrixParameters)
    rounds = op.operands[1].tensor.dtype == "f32" and op["factors"] == TF32
    return WeightOrder(axes_channel_last(op, p.channel), rounds=rounds and not p.rounded)


register_template(
    KernelTemplate(
        name="matrix",
        parameters=MatrixParameters,
        lower=lower_matrix,
        contraction=ContractionEngine(
            weight_order=channel_last,
            prefetches_weights=True,
            preloaded=preloaded,
            points=cores_engine,
            candidates=None,
        ),
        rounds_to="tf32",
        joined=None,
        neighbours={},
        variants=None,
    )
)

register_choices(Choices("matrix", precedence=20, choose=choose_cores, least_s=least_cores_s))
