"""Kernels of libraries as a kernel template: nothing lowers them."""

from __future__ import annotations

from tilewright.passes.kernels.registry import register_template
from tilewright.passes.kernels.schema import Fields, Text
from tilewright.passes.kernels.template import KernelTemplate

LIBRARY = register_template(
    KernelTemplate(
        name="library",
        params=Fields({"kernel": Text()}, {"provider": Text(), "operation": Text()}),
        lower=None,
        weight_order=None,
        prefetches_weights=False,
        rounds_to=None,
        anchors=None,
        keeps_registers=False,
        searches_engines=False,
        neighbours={},
        variants=None,
        candidates=None,
    )
)
