"""Contractions on tensor cores as a kernel template."""

from __future__ import annotations

from tilewright.passes.kernels.matrix.choice import choose_cores, least_cores_s
from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.matrix.plan import ENGINES
from tilewright.passes.kernels.matrix.weights import channel_last
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.schema import Fields, Flag, OneOf, Text, Whole, whole_numbers
from tilewright.passes.kernels.template import Choices, KernelTemplate

_PARAMS = Fields(
    {
        "block": whole_numbers("m", "n", "k"),
        "warps": Fields({"m": Whole(), "n": Whole()}, {"k": Whole()}),
        "stages": Whole(),
        "channel": Text(),
        "raster": Whole(),
        "engine": OneOf(ENGINES),
    },
    {"rounded": Flag()},
)


register_template(
    KernelTemplate(
        name="matrix",
        params=_PARAMS,
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

register_choices(Choices("matrix", precedence=20, choose=choose_cores, least_s=least_cores_s))
