"""Operators on images: resizing, sampling at grids, regions of interest."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.rules import direct, dtype, entries, flag, integer, integers, real, text
from tilewright.ir.graph_ops.interpolation import CROPPING
from tilewright.ir.graph_ops.layouts import SPATIAL

#: Attributes of a resize but the size; operators that take the size as an operand hand them on.
RESIZING = (
    "layout", "method", "coordinate_transformation_mode", "rounding_method", "cubic_alpha", "cubic_exclude",
    "extrapolation_value", "out_dtype",
)  # fmt: skip


def resize(count: int) -> Rule:
    """The rule of a resize of images with `count` spatial dimensions."""

    def rule(emit: Emitter, call: Call) -> Result:
        mode = call.text("coordinate_transformation_mode", "half_pixel")
        roi = call.reals("roi", ())
        resized = direct(
            f"resize{count}d",
            size=integers(),
            layout=text(f"NC{SPATIAL[count]}"),
            method=call.text("method", "linear").lower(),
            coordinate_transformation_mode=mode,
            rounding_method=text("round"),
            cubic_alpha=real(-0.5),
            cubic_exclude=flag(0),
            roi=roi if mode == CROPPING else (),
            extrapolation_value=real(0.0),
            out_dtype=dtype(),
        )
        return resized(emit, call)

    return rule


def _grid_sample(emit: Emitter, call: Call) -> Result:
    call.choice("layout", ("NCHW", "NCDHW"), "NCHW")
    method = call.text("method", "bilinear")
    plain = "bilinear" if method == "trilinear" else method
    sample = direct("grid_sample", 2, method=plain, padding_mode=text("zeros"), align_corners=flag(True))
    return sample(emit, call)


def _mode(call: Call, name: str) -> str:
    """avg or max; Relay also knows them as 0 and 1."""
    mode = call.take(name, "avg")
    return ("avg", "max")[mode] if mode in (0, 1) else str(mode)


_REGIONS = {"pooled_size": entries(2), "spatial_scale": real(), "layout": text("NCHW")}
RULES: Mapping[str, Rule] = {
    **{f"image.resize{n}d": resize(n) for n in SPATIAL},
    "image.grid_sample": _grid_sample,
    "image.affine_grid": direct("affine_grid", target_shape=integers()),
    "image.crop_and_resize": direct(
        "crop_and_resize", 3, crop_size=integers(), layout=text("NCHW"), method=text("bilinear"),
        extrapolation_value=real(0.0), out_dtype=dtype(),
    ),
    "vision.roi_align": direct("roi_align", 2, **_REGIONS, sample_ratio=integer(-1), mode=_mode),
    "vision.roi_pool": direct("roi_pool", 2, **_REGIONS),
}  # fmt: skip
