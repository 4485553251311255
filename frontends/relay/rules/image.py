"""Relay's image operators: resizing, upsampling, sampling at grids and in boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.relay.reading.ast import Attr
from tilewright.frontends.relay.static_operands import static_array
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.interpolation import CROPPING, is_layout, spatial
from tilewright.ir.nodes import Value

#: Relay's cubic_alpha by default
_ALPHA = -0.5


def _resize(count: int) -> Rule:
    dimensions = "DHW"[3 - count :]

    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        (data,) = emit.tensors(args, 1)
        mode = attrs.text("coordinate_transformation_mode", "half_pixel")
        roi = attrs.reals("roi", ())
        return emit.value(
            f"resize{count}d",
            data,
            size=attrs.integers("size"),
            layout=attrs.text("layout", f"NC{dimensions}"),
            method=attrs.text("method", "linear").lower(),
            coordinate_transformation_mode=mode,
            rounding_method=attrs.text("rounding_method", "round"),
            cubic_alpha=attrs.real("cubic_alpha", _ALPHA),
            cubic_exclude=attrs.flag("cubic_exclude", 0),
            roi=roi if mode == CROPPING else (),
            extrapolation_value=attrs.real("extrapolation_value", 0.0),
            out_dtype=attrs.dtype("out_dtype") or None,
        )

    return rule


def _scaled(data: Value, layout: str, dimensions: str, scales: Sequence[float]) -> tuple[int, ...]:
    """Extents of the spatial dimensions times their scales, rounded half up."""
    if not is_layout(layout, ("N", "C", *dimensions)):
        raise InputError(f"expected a layout of N, C, {', '.join(dimensions)}, got '{layout}'")
    places = spatial(layout)
    if data.tensor.rank <= max(places):
        raise InputError(f"expected data of layout {layout}, got {data.type}")
    return tuple(floor(data.tensor.shape[d] * s + 0.5) for d, s in zip(places, scales, strict=True))


def _upsampling(count: int, prefix: str) -> Rule:
    dimensions = "DHW"[3 - count :]

    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        """Resizing by factors; `bilinear` and `trilinear` are `linear` here."""
        (data,) = emit.tensors(args, 1)
        layout = attrs.text("layout", f"NC{dimensions}")
        scales = [attrs.real(f"scale_{c.lower()}", 1.0) for c in dimensions]
        if count == 2:
            mode = "align_corners" if attrs.flag("align_corners", False) else "asymmetric"
        else:
            mode = attrs.text("coordinate_transformation_mode", "half_pixel")
        return emit.value(
            f"resize{count}d",
            data,
            size=_scaled(data, layout, dimensions, scales),
            layout=layout,
            method=attrs.text("method", "nearest_neighbor").removeprefix(prefix),
            coordinate_transformation_mode=mode,
        )

    return rule


def _dynamic(rule: Rule, operands: Sequence[str], passed: Sequence[str]) -> Rule:
    """`rule` with attributes that come as operands behind the data, whose values must be known.

    passed: attributes handed on as they are.
    """

    def static(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        data, *given = emit.tensors(args, 1 + len(operands))
        values: dict[str, Attr] = {}
        for name, value in zip(operands, given, strict=True):
            found = static_array(emit, value, name)
            values[name] = tuple(found.reshape(-1).tolist()) if found.ndim else found.item()
        for name in passed:
            if (handed := attrs.take(name, None)) is not None:
                values[name] = handed
        attrs.drop(*operands)
        return rule(emit, (data,), Attributes(values))

    return static


_PLACES = ("layout", "method")
_RESIZING = (
    *_PLACES, "coordinate_transformation_mode", "rounding_method", "cubic_alpha", "cubic_exclude",
    "extrapolation_value", "out_dtype",
)  # fmt: skip


def _grid_sample(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, grid = emit.tensors(args, 2)
    layout = attrs.text("layout", "NCHW")
    if layout not in ("NCHW", "NCDHW"):
        raise InputError(f"expected a layout among NCHW, NCDHW, got '{layout}'")
    method = attrs.text("method", "bilinear")
    return emit.value(
        "grid_sample",
        data,
        grid,
        method="bilinear" if method == "trilinear" else method,
        padding_mode=attrs.text("padding_mode", "zeros"),
        align_corners=attrs.flag("align_corners", True),
    )


def _affine_grid(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value("affine_grid", *emit.tensors(args, 1), target_shape=attrs.integers("target_shape"))


def _crop_and_resize(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value(
        "crop_and_resize",
        *emit.tensors(args, 3),
        crop_size=attrs.integers("crop_size"),
        layout=attrs.text("layout", "NCHW"),
        method=attrs.text("method", "bilinear"),
        extrapolation_value=attrs.real("extrapolation_value", 0.0),
        out_dtype=attrs.dtype("out_dtype") or None,
    )


RULES: Mapping[str, Rule] = {
    "image.resize1d": _resize(1),
    "image.resize2d": _resize(2),
    "image.resize3d": _resize(3),
    "image.grid_sample": _grid_sample,
    "image.affine_grid": _affine_grid,
    "image.crop_and_resize": _crop_and_resize,
    "dyn.image.resize2d": _dynamic(_resize(2), ("size", "roi"), _RESIZING),
    "dyn.nn.upsampling": _dynamic(_upsampling(2, "bi"), ("scale_h", "scale_w"), (*_PLACES, "align_corners")),
    "dyn.nn.upsampling3d": _dynamic(
        _upsampling(3, "tri"),
        ("scale_d", "scale_h", "scale_w"),
        (*_PLACES, "coordinate_transformation_mode"),
    ),
    "nn.upsampling": _upsampling(2, "bi"),
    "nn.upsampling3d": _upsampling(3, "tri"),
}
