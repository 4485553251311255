"""The forms of attention that torch dispatches to, and where each has its options."""

from __future__ import annotations

from collections.abc import Mapping

#: where each form has its mask, rate of dropout and causal flag; None where it has none
POSITIONS: Mapping[str, tuple[int | None, int, int]] = {
    "scaled_dot_product_attention.default": (3, 4, 5),
    "_scaled_dot_product_attention_math.default": (3, 4, 5),
    "_scaled_dot_product_flash_attention_for_cpu.default": (None, 3, 4),
    "_scaled_dot_product_flash_attention.default": (None, 3, 4),
    "_scaled_dot_product_efficient_attention.default": (3, 5, 6),
    "_scaled_dot_product_cudnn_attention.default": (3, 5, 6),
}
