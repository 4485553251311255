"""Discrete Fourier transforms with real and imaginary parts apart: of rows, and of windowed frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.division import undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass
from tilewright.ir.graph_ops.operands import alike, dtype_of, require, require_float, tensors, wide
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type


def angles(rows: int, columns: int, period: int) -> np.ndarray:
    """2 pi n k / period for n < rows and k < columns, less whole turns."""
    turns = np.outer(np.arange(rows), np.arange(columns)) % period
    return np.asarray(2 * np.pi * turns / period)


def _infer_dft(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    real, imaginary = alike(types)
    require_float(real)
    fits = real.shape == imaginary.shape and real.rank > 0
    require(fits, f"expected real and imaginary parts of one shape, got {real} and {imaginary}")
    require(real.shape[-1] > 0, f"expected at least one element to transform, got {real}")
    return [real, real]


def _evaluate_dft(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    real, imaginary = (wide(x, dtype_of(x)) for x in inputs)
    n = real.shape[-1]
    angle = angles(n, n, n) * (1 if attrs["inverse"] else -1)
    scale = 1 / n if attrs["inverse"] else 1.0
    cos, sin = ((f(angle) * scale).astype(real.dtype) for f in (np.cos, np.sin))
    out = (real @ cos - imaginary @ sin, real @ sin + imaginary @ cos)
    return [x.astype(inputs[0].dtype, copy=False) for x in out]


def _dft_flops(op: Op) -> int:
    """As a matrix product: every result sums both parts of all N elements."""
    return sum(v.tensor.size for v in op.results) * 4 * op.operands[0].tensor.shape[-1]


#: facts that ops below share; each replaces those that differ
_CONTRACTION = Facts(
    elements=Elements.CONTRACTS,
    flops=_dft_flops,
    precision=Precision.WIDE,
    exact=False,
    division=undivided,
    extents=attributes_stay,
    report=ReportClass.OF_KERNEL,
    gradient=Gradient.DERIVED,
)
define(
    "graph.dft",
    ("real", "imaginary"),
    "Real and imaginary part of X[n] = sum over k of x[k] exp(-2 pi i n k / N) along the last axis; the "
    "inverse has a plus sign there and divides by N.",
    attrs={"inverse": AttrDef("bool", False)},
    results=2,
    infer=_infer_dft,
    evaluate=_evaluate_dft,
    facts=replace(_CONTRACTION, gradient=Gradient.RULE),
)


def frequencies(attrs: Attrs) -> int:
    """Rows of a short-time transform: all of n_fft, or the lower half and the middle."""
    return int(attrs["n_fft"]) // 2 + 1 if attrs["onesided"] else int(attrs["n_fft"])


def _infer_stft(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, window = tensors(types)
    require_float(x)
    require(x.rank in (1, 2), f"expected one signal or a batch of signals, got {x}")
    length, size, hop = attrs["win_length"], attrs["n_fft"], attrs["hop_length"]
    good = 1 <= length <= size <= x.shape[-1] and hop >= 1
    require(good, f"expected 1 <= win_length <= n_fft <= samples, got {length}, {size} and {x}")
    require(window.shape == (length,), f"expected a window of {length} elements, got {window}")
    frames = (x.shape[-1] - size) // hop + 1
    return [TensorType(x.dtype, (*x.shape[:-1], frequencies(attrs), frames, 2))]


def _evaluate_stft(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, window = wide(inputs[0], dtype_of(inputs[0])), inputs[1]
    length, size, hop = attrs["win_length"], attrs["n_fft"], attrs["hop_length"]
    frames = (x.shape[-1] - size) // hop + 1
    at = hop * np.arange(frames)[:, None] + np.arange(length)
    framed = np.swapaxes(x[..., at] * window.astype(x.dtype), -1, -2)
    angle = angles(frequencies(attrs), length, length)
    scale = 1 / np.sqrt(size) if attrs["normalized"] else 1.0
    parts = [(f * scale).astype(x.dtype) @ framed for f in (np.cos(angle), -np.sin(angle))]
    return [np.stack(parts, axis=-1).astype(inputs[0].dtype, copy=False)]


def _stft_flops(op: Op) -> int:
    """As a matrix product: every result sums the elements of a window."""
    return op.result.tensor.size * 2 * op.integer("win_length")


define(
    "graph.stft",
    ("x", "window"),
    "result[.., f, t] = sum over w < win_length of window[w] x[.., t * hop_length + w] "
    "exp(-2 pi i f w / win_length), with real and imaginary part along a new last dimension.",
    attrs={
        "n_fft": AttrDef("int", doc="samples of a frame, and frequencies of the two-sided result"),
        "hop_length": AttrDef("int", doc="samples between frames"),
        "win_length": AttrDef("int", doc="elements of the window"),
        "normalized": AttrDef("bool", False, "divide by the square root of n_fft"),
        "onesided": AttrDef("bool", True, "only the first n_fft // 2 + 1 frequencies"),
    },
    infer=_infer_stft,
    evaluate=_evaluate_stft,
    facts=replace(_CONTRACTION, flops=_stft_flops),
)
