"""Relay's `dyn` operators, which take shapes as operands: where those are known they are the static ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.relay.rules import (
    indexing as rules_indexing,
)
from tilewright.frontends.relay.rules import (
    movement as rules_movement,
)
from tilewright.frontends.relay.rules import (
    padding as rules_padding,
)
from tilewright.frontends.relay.rules import (
    scattering as rules_scattering,
)
from tilewright.frontends.relay.rules import (
    shape as rules_shape,
)
from tilewright.frontends.relay.static_operands import static_array, static_integers
from tilewright.ir.errors import InputError


def _static(rule: Rule, data: int, operands: Sequence[str], passed: Sequence[str] = ()) -> Rule:
    """`rule`, whose attributes `operands` come as operands after the first `data` ones.

    passed: attributes handed on as they are; others repeat what operands say.
    """

    def dynamic(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        given = emit.tensors(args, data + len(operands))
        values = {
            name: static_integers(emit, value, name)
            for name, value in zip(operands, given[data:], strict=True)
        }
        handed = {name: value for name in passed if (value := attrs.take(name, None)) is not None}
        attrs.drop("shape", "newshape", "begin", "end", "strides", "reps", "axes", "axis")
        return rule(emit, given[:data], Attributes(handed | values))

    return dynamic


def _expand_dims(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, position = emit.tensors(args, 2)
    found = static_integers(emit, position, "axis")
    if len(found) != 1:
        raise InputError(f"expected one axis, got {found}")
    count = attrs.integer("num_newaxis", 1)
    return emit.value("expand_dims", data, axis=found[0], num_newaxis=count)


def _pad(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The widths are a matrix of one row per dimension."""
    data, widths, value = emit.tensors(args, 3)
    array = static_array(emit, widths, "pad_width")
    if array.ndim != 2 or array.shape[1] != 2:
        raise InputError(f"expected widths of shape ({data.tensor.rank}, 2), got {widths.type}")
    pairs = tuple((int(lo), int(hi)) for lo, hi in array)
    mode = attrs.text("pad_mode", "constant")
    static = Attributes({"pad_width": pairs, "pad_mode": mode})
    return rules_padding.RULES["nn.pad"](emit, (data, value), static)


def _one_hot(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    *given, depth = emit.tensors(args, 4)
    (count,) = static_integers(emit, depth, "depth")
    attrs.give("depth", count)
    return rules_indexing.RULES["one_hot"](emit, given, attrs)


_MOVEMENT, _SHAPE = rules_movement.RULES, rules_shape.RULES

RULES: Mapping[str, Rule] = {
    "dyn.reshape": _static(_SHAPE["reshape"], 1, ("newshape",), ("allowzero",)),
    "dyn.squeeze": _static(_SHAPE["squeeze"], 1, ("axis",)),
    "dyn.zeros": _static(_SHAPE["zeros"], 0, ("shape",), ("dtype",)),
    "dyn.ones": _static(_SHAPE["ones"], 0, ("shape",), ("dtype",)),
    "dyn.full": _static(_SHAPE["full"], 1, ("shape",), ("dtype",)),
    "dyn.broadcast_to": _static(_MOVEMENT["broadcast_to"], 1, ("shape",)),
    "dyn.tile": _static(_MOVEMENT["tile"], 1, ("reps",)),
    "dyn.strided_slice": _static(
        _MOVEMENT["strided_slice"], 1, ("begin", "end", "strides"), ("slice_mode", "axes")
    ),
    "dyn.expand_dims": _expand_dims,
    "dyn.nn.pad": _pad,
    "dyn.one_hot": _one_hot,
    "dyn.sparse_to_dense": _static(rules_scattering.RULES["sparse_to_dense"], 3, ("output_shape",)),
}
