"""Composite operators of torch that are taken apart before TVM's importer sees them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tilewright.frontends.torch.survey import draws
from tilewright.ir.errors import UnsupportedError

#: what torch and TVM raise on programs they cannot take
FAILURES = (
    AssertionError, AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
#: composites that the importer, with our corrections, turns into fewer and better operators than their parts
_KEPT = (
    "linear.default", "matmul.default", "scaled_dot_product_attention.default", "layer_norm.default",
    "silu.default", "pixel_shuffle.default", "hardswish.default", "hardsigmoid.default", "einsum.default",
    "instance_norm.default", "one_hot.default", "upsample_bicubic2d.vec", "upsample_bilinear2d.vec",
    "upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec",
    "_scaled_dot_product_flash_attention_for_cpu.default",
)  # fmt: skip


def core_program(program: Any) -> Any:
    """A copy of an exported program in ATen's core operators and those kept.

    Specialised inputs and random numbers that nothing reads are gone.
    """
    torch = import_module("torch")
    table = torch.export.default_decompositions()
    for name in _KEPT:
        packet, overload = name.split(".")
        table.pop(getattr(getattr(torch.ops.aten, packet), overload), None)
    table[torch.ops.aten._transformer_encoder_layer_fwd.default] = _encoder_layer
    table[torch.ops.aten.view.default] = _view
    try:
        program = program.run_decompositions(table)
    except FAILURES as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UnsupportedError(
            f"torch cannot take the program apart into core operators: {lines[0]}"
        ) from error
    _drop_specialised_inputs(program)
    _drop_unread_draws(program.graph)
    return program


def _view(x: Any, shape: Any) -> Any:
    """A view of elements in order, whatever the strides of `x`.

    Programs that torch.compile captured hold views made for the strides an operator gave; its parts may give
    others, of which torch has no such view.
    """
    return NotImplemented if x.is_contiguous() else x.contiguous().view(shape)


def _encoder_layer(
    x: Any,
    width: int,
    heads: int,
    weight: Any,
    bias: Any,
    out_weight: Any,
    out_bias: Any,
    gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
    **masks: Any,
) -> Any:
    """Torch's fused encoder layer as its parts; with a mask it stays whole, and the importer says so."""
    functional = import_module("torch.nn.functional")
    norms, feed, masked = rest[:4], rest[4:8], (*rest[8:], *masks.values())
    if any(m is not None for m in masked):
        return NotImplemented
    batch, steps = x.shape[:2]

    def attention(y: Any) -> Any:
        qkv = functional.linear(y, weight, bias).view(batch, steps, 3, heads, width // heads)
        y = functional.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4).unbind(0))
        return functional.linear(y.transpose(1, 2).reshape(batch, steps, width), out_weight, out_bias)

    def forward(y: Any) -> Any:
        y = functional.linear(y, *feed[:2])
        return functional.linear(functional.gelu(y) if gelu else functional.relu(y), *feed[2:])

    def norm(y: Any, i: int) -> Any:
        return functional.layer_norm(y, (width,), norms[2 * i], norms[2 * i + 1], eps)

    if norm_first:
        x = x + attention(norm(x, 0))
        return x + forward(norm(x, 1))
    x = norm(x + attention(x), 0)
    return norm(x + forward(x), 1)


def _drop_specialised_inputs(program: Any) -> None:
    """Inputs that are no tensors are part of the program already: export fixed their values."""
    specs = program.graph_signature.input_specs
    for spec in [s for s in specs if hasattr(s.arg, "value")]:
        for node in program.graph.find_nodes(op="placeholder"):
            if node.name == spec.arg.name and not node.users:
                program.graph.erase_node(node)
                specs.remove(spec)


def _drop_unread_draws(graph: Any) -> None:
    """Random numbers that nothing reads: layers that training skips at random draw them in either mode."""
    for node in reversed(graph.nodes):
        if node.op == "call_function" and not node.users and draws(node):
            graph.erase_node(node)
