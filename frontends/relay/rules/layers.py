"""Relay operators of neural-network layers: products, normalisation, Fourier transforms."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Absent, Emitter, Result
from tilewright.frontends.importing.rules import direct, flag, integer, real
from tilewright.frontends.tvm.rules.layers import AFFINE
from tilewright.frontends.tvm.rules.padding import relaid
from tilewright.frontends.tvm.rules.windows import TUNER_NOTES, factors
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.einsum import explicit_equation
from tilewright.ir.nodes import Value


def _dense(emit: Emitter, call: Call) -> Result:
    data, weight = factors(emit, call)
    _check_units(call, weight, 0)
    return emit.value("dense", data, weight, out_dtype=call.dtype("out_dtype") or None)


def _dense_pack(emit: Emitter, call: Call) -> Result:
    """The weight comes in a layout of N (units) and C, possibly blocked."""
    data, weight = call.tensors(2)
    call.inputs = (data, relaid(emit, weight, call.text("weight_layout", "NC"), "NC"))
    return _dense(emit, call)


def _matmul(emit: Emitter, call: Call) -> Result:
    a, b = factors(emit, call)
    transposes = {name: call.flag(name, False) for name in ("transpose_a", "transpose_b")}
    _check_units(call, b, 0 if transposes["transpose_b"] else 1)
    return emit.value("matmul", a, b, **transposes, out_dtype=call.dtype("out_dtype") or None)


def _check_units(call: Call, weight: Value, axis: int) -> None:
    units = call.integer("units", None)
    if units is not None and weight.tensor.shape[axis : axis + 1] != (units,):
        raise InputError(f"expected as many units as the weight {weight.type} has, got {units}")
    call.drop(*TUNER_NOTES)


def _batch_matmul(emit: Emitter, call: Call) -> Result:
    transposes = {name: call.flag(name, False) for name in ("transpose_a", "transpose_b")}
    call.drop(*TUNER_NOTES)
    a, b = factors(emit, call)
    return emit.value("batch_matmul", a, b, **transposes, out_dtype=call.dtype("out_dtype") or None)


def _batch_norm(emit: Emitter, call: Call) -> Result:
    """Relay's result is (normalised, moving mean, moving variance); inference leaves the latter two alone."""
    *_, mean, variance = call.tensors(5)
    return (direct("batch_norm", 5, axis=integer(1), **AFFINE)(emit, call), mean, variance)


def _l2_normalize(emit: Emitter, call: Call) -> Result:
    axis = call.integers("axis", None) or ()
    return emit.value("l2_normalize", call.single(), eps=call.real("eps"), axis=axis)


def _dropout(emit: Emitter, call: Call) -> Result:
    """Relay's result is (data, mask); the mask has no value at inference."""
    return (direct("dropout", rate=real(0.5))(emit, call), Absent("the mask of nn.dropout"))


def _einsum(emit: Emitter, call: Call) -> Result:
    operands = call.fields()
    equation = explicit_equation(call.text("equation"), [v.tensor.rank for v in operands])
    return emit.value("einsum", *operands, equation=equation)


_LRN = {"bias": real(2.0), "alpha": real(1e-4), "beta": real(0.75)}
_STFT = {name: integer() for name in ("n_fft", "hop_length", "win_length")}
RULES: Mapping[str, Rule] = {
    "nn.dense": _dense,
    "nn.contrib_dense_pack": _dense_pack,
    "nn.matmul": _matmul,
    "nn.batch_matmul": _batch_matmul,
    "nn.bias_add": direct("bias_add", 2, axis=integer(1)),
    "nn.batch_norm": _batch_norm,
    "nn.layer_norm": direct("layer_norm", 3, axis=integer(-1), **AFFINE),
    "nn.instance_norm": direct("instance_norm", 3, axis=integer(1), **AFFINE),
    "nn.group_norm": direct("group_norm", 3, num_groups=integer(0), axis=integer(1), **AFFINE),
    "nn.l2_normalize": _l2_normalize,
    "nn.lrn": direct("lrn", size=integer(5), axis=integer(1), **_LRN),
    "nn.fast_softmax": direct("softmax", axis=integer(-1)),
    "nn.dropout": _dropout,
    "einsum": _einsum,
    "dft": direct("dft", 2, inverse=flag(False)),
    "stft": direct("stft", 2, **_STFT, normalized=flag(False), onesided=flag(True)),
}
