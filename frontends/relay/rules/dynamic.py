"""Relay's `dyn` operators, which take shapes as operands: where those are known they are the static ones.

Upsampling, which only Relay has, is here with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result
from tilewright.frontends.importing.movement import padded
from tilewright.frontends.relay.rules import indexing, movement
from tilewright.frontends.tvm.rules.image import RESIZING, resize
from tilewright.frontends.tvm.rules.movement import RULES as SHARED
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.interpolation import is_layout, spatial
from tilewright.ir.graph_ops.layouts import SPATIAL
from tilewright.ir.nodes import Value


def _static(rule: Rule, data: int, operands: Sequence[str], handed: Sequence[str] = ()) -> Rule:
    """`rule`, whose attributes `operands` come as operands after the first `data` ones.

    handed: attributes handed on as they are; others repeat what operands say.
    """

    def dynamic(emit: Emitter, call: Call) -> Result:
        tensors = call.tensors(data + len(operands))
        values = {
            name: emit.integers(value, name) for name, value in zip(operands, tensors[data:], strict=True)
        }
        attrs = call.taken(*handed)
        call.drop("shape", "newshape", "begin", "end", "strides", "reps", "axes", "axis")
        return rule(emit, Call(tensors[:data], attrs | values))

    return dynamic


def _expand_dims(emit: Emitter, call: Call) -> Result:
    data, position = call.tensors(2)
    axes = emit.integers(position, "axis")
    if len(axes) != 1:
        raise InputError(f"expected one axis, got {axes}")
    return emit.value("expand_dims", data, axis=axes[0], num_newaxis=call.integer("num_newaxis", 1))


def _pad(emit: Emitter, call: Call) -> Result:
    """The widths are a matrix of one row per dimension."""
    data, widths, value = call.tensors(3)
    array = emit.static(widths, "pad_width")
    if array.ndim != 2 or array.shape[1] != 2:
        raise InputError(f"expected widths of shape ({data.tensor.rank}, 2), got {widths.type}")
    pairs = [(int(lo), int(hi)) for lo, hi in array]
    return padded(emit, data, pairs, value, call.text("pad_mode", "constant"))


def _one_hot(emit: Emitter, call: Call) -> Result:
    *call.inputs, depth = call.tensors(4)
    (count,) = emit.integers(depth, "depth")
    call.give("depth", count)
    return indexing.RULES["one_hot"](emit, call)


def _scaled(data: Value, layout: str, dimensions: str, scales: Sequence[float]) -> tuple[int, ...]:
    """Extents of the spatial dimensions times their scales, rounded half up."""
    if not is_layout(layout, ("N", "C", *dimensions)):
        raise InputError(f"expected a layout of N, C, {', '.join(dimensions)}, got '{layout}'")
    places = spatial(layout)
    if data.tensor.rank <= max(places):
        raise InputError(f"expected data of layout {layout}, got {data.type}")
    return tuple(floor(data.tensor.shape[d] * s + 0.5) for d, s in zip(places, scales, strict=True))


def _upsampling(count: int, prefix: str) -> Rule:
    dimensions = SPATIAL[count]

    def rule(emit: Emitter, call: Call) -> Result:
        """Resizing by factors; `bilinear` and `trilinear` are `linear` here."""
        data = call.single()
        layout = call.text("layout", f"NC{dimensions}")
        scales = [call.real(f"scale_{c.lower()}", 1.0) for c in dimensions]
        if count == 2:
            mode = "align_corners" if call.flag("align_corners", False) else "asymmetric"
        else:
            mode = call.text("coordinate_transformation_mode", "half_pixel")
        return emit.value(
            f"resize{count}d",
            data,
            size=_scaled(data, layout, dimensions, scales),
            layout=layout,
            method=call.text("method", "nearest_neighbor").removeprefix(prefix),
            coordinate_transformation_mode=mode,
        )

    return rule


def _resized(rule: Rule, operands: Sequence[str], handed: Sequence[str]) -> Rule:
    """As `_static`, with one tensor of data, and operands that hold real numbers."""

    def dynamic(emit: Emitter, call: Call) -> Result:
        data, *tensors = call.tensors(1 + len(operands))
        arrays = {name: emit.static(v, name) for name, v in zip(operands, tensors, strict=True)}
        attrs = call.taken(*handed)
        call.drop(*operands)
        values = {n: tuple(a.reshape(-1).tolist()) if a.ndim else a.item() for n, a in arrays.items()}
        return rule(emit, Call((data,), values | attrs))

    return dynamic


_PLAIN = ("layout", "method")
_UPSAMPLING, _UPSAMPLING_3D = _upsampling(2, "bi"), _upsampling(3, "tri")
_SLICE = ("begin", "end", "strides")
RULES: Mapping[str, Rule] = {
    "dyn.reshape": _static(movement.RULES["reshape"], 1, ("newshape",), ("allowzero",)),
    "dyn.squeeze": _static(SHARED["squeeze"], 1, ("axis",)),
    "dyn.zeros": _static(movement.RULES["zeros"], 0, ("shape",), ("dtype",)),
    "dyn.ones": _static(movement.RULES["ones"], 0, ("shape",), ("dtype",)),
    "dyn.full": _static(movement.RULES["full"], 1, ("shape",), ("dtype",)),
    "dyn.broadcast_to": _static(movement.RULES["broadcast_to"], 1, ("shape",)),
    "dyn.tile": _static(movement.RULES["tile"], 1, ("reps",)),
    "dyn.strided_slice": _static(movement.RULES["strided_slice"], 1, _SLICE, ("slice_mode", "axes")),
    "dyn.expand_dims": _expand_dims,
    "dyn.nn.pad": _pad,
    "dyn.one_hot": _one_hot,
    "dyn.sparse_to_dense": _static(indexing.RULES["sparse_to_dense"], 3, ("output_shape",)),
    "dyn.image.resize2d": _resized(resize(2), ("size", "roi"), RESIZING),
    "dyn.nn.upsampling": _resized(_UPSAMPLING, ("scale_h", "scale_w"), (*_PLAIN, "align_corners")),
    "dyn.nn.upsampling3d": _resized(
        _UPSAMPLING_3D, ("scale_d", "scale_h", "scale_w"), (*_PLAIN, "coordinate_transformation_mode")
    ),
    "nn.upsampling": _UPSAMPLING,
    "nn.upsampling3d": _UPSAMPLING_3D,
}
