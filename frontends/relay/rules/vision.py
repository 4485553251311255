"""Relay's vision operators: regions of interest here, detection in rules_detection.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes, repeated
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError


def _mode(attrs: Attributes) -> str:
    """avg or max; Relay also knows them as 0 and 1."""
    given = attrs.take("mode", "avg")
    return ("avg", "max")[given] if given in (0, 1) else str(given)


def _roi_align(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value(
        "roi_align",
        *emit.tensors(args, 2),
        pooled_size=repeated(attrs.integers("pooled_size"), 2, "pooled_size"),
        spatial_scale=attrs.real("spatial_scale"),
        sample_ratio=attrs.integer("sample_ratio", -1),
        layout=attrs.text("layout", "NCHW"),
        mode=_mode(attrs),
    )


def _roi_pool(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value(
        "roi_pool",
        *emit.tensors(args, 2),
        pooled_size=repeated(attrs.integers("pooled_size"), 2, "pooled_size"),
        spatial_scale=attrs.real("spatial_scale"),
        layout=attrs.text("layout", "NCHW"),
    )


def _yolo_reorg(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Blocks of stride * stride elements become channels, ordered before the channels of the data.

    The data of an image count as [C / stride^2, H * stride, W * stride], as in Darknet.
    """
    (data,) = emit.tensors(args, 1)
    s, t = attrs.integer("stride", 1), data.tensor
    if t.rank != 4 or s < 1 or t.shape[1] % (s * s) or t.shape[2] % s or t.shape[3] % s:
        raise InputError(f"expected data [N, C, H, W], divisible by {s * s}, {s} and {s}, got {t}")
    n, c, h, w = t.shape
    wide = emit.value("reshape", data, newshape=(n, c // (s * s), h, s, w, s))
    moved = emit.value("transpose", wide, axes=(0, 3, 5, 1, 2, 4))
    return emit.value("reshape", moved, newshape=(n, c * s * s, h // s, w // s))


RULES: Mapping[str, Rule] = {
    "vision.roi_align": _roi_align,
    "vision.roi_pool": _roi_pool,
    "vision.yolo_reorg": _yolo_reorg,
}
