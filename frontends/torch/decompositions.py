"""Which composite operators of torch are taken apart before TVM's importer sees them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

#: composites that the importer, with our corrections, turns into fewer and better operators than their parts
_KEPT = (
    "linear.default", "matmul.default", "scaled_dot_product_attention.default", "layer_norm.default",
    "silu.default", "pixel_shuffle.default", "hardswish.default", "hardsigmoid.default", "einsum.default",
    "instance_norm.default", "one_hot.default", "upsample_bicubic2d.vec", "upsample_bilinear2d.vec",
    "upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec",
)  # fmt: skip


def core_program(program: Any) -> Any:
    """A copy of an exported program in ATen's core operators and those kept; specialised inputs are gone."""
    torch = import_module("torch")
    table = torch.export.default_decompositions()
    for name in _KEPT:
        packet, overload = name.split(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    program = program.run_decompositions(table)
    _drop_specialised_inputs(program)
    return program


def _drop_specialised_inputs(program: Any) -> None:
    """Inputs that are no tensors are part of the program already: export fixed their values."""
    specs = program.graph_signature.input_specs
    for spec in [s for s in specs if hasattr(s.arg, "value")]:
        for node in program.graph.find_nodes(op="placeholder"):
            if node.name == spec.arg.name and not node.users:
                program.graph.erase_node(node)
                specs.remove(spec)
