"""Relay operators of neural-network layers: products, normalisation, softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Absent, Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.frontends.relay.rules.windows import TUNER_NOTES, factors, relaid
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Attr, Value


def _dense(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    data, weight = factors(emit, args, attrs)
    _check_units(attrs, weight, 0)
    return emit.value("dense", data, weight, out_dtype=attrs.dtype("out_dtype") or None)


def _dense_pack(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """The weight comes in a layout of N (units) and C, possibly blocked."""
    data, weight = emit.tensors(args, 2)
    return _dense(emit, (data, relaid(emit, weight, attrs.text("weight_layout", "NC"), "NC")), attrs)


def _matmul(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    a, b = factors(emit, args, attrs)
    transposes = {name: attrs.flag(name, False) for name in ("transpose_a", "transpose_b")}
    _check_units(attrs, b, 0 if transposes["transpose_b"] else 1)
    return emit.value("matmul", a, b, **transposes, out_dtype=attrs.dtype("out_dtype") or None)


def _check_units(attrs: Attributes, weight: Value, axis: int) -> None:
    units = attrs.integer("units", None)
    if units is not None and weight.tensor.shape[axis : axis + 1] != (units,):
        raise InputError(f"expected as many units as the weight {weight.type} has, got {units}")
    attrs.drop(*TUNER_NOTES)


def _batch_matmul(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    transposes = {name: attrs.flag(name, False) for name in ("transpose_a", "transpose_b")}
    attrs.drop(*TUNER_NOTES)
    return emit.value(
        "batch_matmul", *factors(emit, args, attrs), **transposes, out_dtype=attrs.dtype("out_dtype") or None
    )


def _bias_add(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value("bias_add", *emit.tensors(args, 2), axis=attrs.integer("axis", 1))


def affine_of(attrs: Attributes) -> dict[str, Attr]:
    """What all norms with a scale and a shift say of them."""
    return {
        "epsilon": attrs.real("epsilon", 1e-5),
        "center": attrs.flag("center", True),
        "scale": attrs.flag("scale", True),
    }


def _batch_norm(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Relay's result is (normalised, moving mean, moving variance); inference leaves the latter two alone."""
    data, gamma, beta, mean, variance = emit.tensors(args, 5)
    axis = attrs.integer("axis", 1)
    normal = emit.value("batch_norm", data, gamma, beta, mean, variance, axis=axis, **affine_of(attrs))
    return (normal, mean, variance)


def _norm(name: str, axis: int) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        return emit.value(name, *emit.tensors(args, 3), axis=attrs.integer("axis", axis), **affine_of(attrs))

    return rule


def _group_norm(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    groups, axis = attrs.integer("num_groups", 0), attrs.integer("axis", 1)
    return emit.value("group_norm", *emit.tensors(args, 3), num_groups=groups, axis=axis, **affine_of(attrs))


def _l2_normalize(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    axis = attrs.integers("axis", None) or ()
    return emit.value("l2_normalize", *emit.tensors(args, 1), eps=attrs.real("eps"), axis=axis)


def _lrn(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.value(
        "lrn", *emit.tensors(args, 1), size=attrs.integer("size", 5), axis=attrs.integer("axis", 1),
        bias=attrs.real("bias", 2.0), alpha=attrs.real("alpha", 1e-4), beta=attrs.real("beta", 0.75),
    )  # fmt: skip


def _softmax(name: str) -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        return emit.value(name, *emit.tensors(args, 1), axis=attrs.integer("axis", -1))

    return rule


def _dropout(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    """Relay's result is (data, mask); the mask has no value at inference."""
    kept = emit.value("dropout", *emit.tensors(args, 1), rate=attrs.real("rate", 0.5))
    return (kept, Absent("the mask of nn.dropout"))


RULES: Mapping[str, Rule] = {
    "nn.dense": _dense,
    "nn.contrib_dense_pack": _dense_pack,
    "nn.matmul": _matmul,
    "nn.batch_matmul": _batch_matmul,
    "nn.bias_add": _bias_add,
    "nn.batch_norm": _batch_norm,
    "nn.layer_norm": _norm("layer_norm", -1),
    "nn.instance_norm": _norm("instance_norm", 1),
    "nn.group_norm": _group_norm,
    "nn.l2_normalize": _l2_normalize,
    "nn.lrn": _lrn,
    "nn.softmax": _softmax("softmax"),
    "nn.fast_softmax": _softmax("softmax"),
    "nn.log_softmax": _softmax("log_softmax"),
    "nn.dropout": _dropout,
}
