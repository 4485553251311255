"""Attention and its gradients as cuDNN sees them: arrays of four dimensions with steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from tilewright.runtime.errors import InputError
from tilewright.runtime.libraries.convolution import Array4, check_array
from tilewright.runtime.libraries.problem import Argument, check_among

#: element types that fused attention takes: it runs on tensor cores only
ATTENTION_DTYPES = ("float16", "bfloat16")


@dataclass(frozen=True)
class AttentionProblem:
    """D = softmax(scale * Q K^T [+ bias]) V per batch and head, sums accumulated in float32.

    q: (batch, heads, queries, n); k: (batch, groups, keys, n); v: (batch, groups, keys, m); d: (batch,
    heads, queries, m); the heads of a group, heads / groups one after another, share its keys and values.
    bias: (1 or batch, 1 or heads, 1 or queries, keys) is added before softmax, its elements are of
    `bias_dtype`. causal: query i sees keys 0..i only. stats: (batch, heads, queries, 1), where there is one,
    takes the logarithms of the sums of the exponentials of scores, in float32. dtype: of Q, K, V and D.
    """

    q: Array4
    k: Array4
    v: Array4
    d: Array4
    dtype: str
    scale: float
    bias: Array4 | None = None
    bias_dtype: str = ""
    causal: bool = False
    stats: Array4 | None = None

    tf32: ClassVar[bool] = False
    workspace_share: ClassVar[int] = 0

    def itemsize(self, role: str) -> int:
        """Bytes of an element of `q`, `k`, `v`, `bias`, `d` or `stats`."""
        return 4 if role == "stats" or (role == "bias" and self.bias_dtype == "float32") else 2

    def arguments(self) -> tuple[Argument, ...]:
        """q, k, v, bias where there is one, d, stats where there are."""
        bias = (Argument("bias", self.bias_dtype, self.bias.span),) if self.bias is not None else ()
        read = (Argument(role, self.dtype, getattr(self, role).span) for role in ("q", "k", "v"))
        stats = (
            (Argument("stats", "float32", self.stats.span, written=True),) if self.stats is not None else ()
        )
        return (*read, *bias, Argument("d", self.dtype, self.d.span, written=True), *stats)

    def check(self) -> None:
        """Raise `InputError` where extents, steps or numbers make no sense."""
        check_among("dtype", self.dtype, ATTENTION_DTYPES)
        stats = {} if self.stats is None else {"stats": self.stats}
        _check_arrays(
            {"q": self.q, "k": self.k, "v": self.v}, {"d": self.d} | stats, self.itemsize, self.scale
        )
        batch, heads, queries, _ = self.q.dims
        self._check_bias((batch, heads, queries, self.k.dims[2]))

    def _check_bias(self, scores: tuple[int, ...]) -> None:
        if self.bias is None:
            if self.bias_dtype:
                raise InputError(f"expected no bias_dtype without bias, got {self.bias_dtype!r:.100}")
            return
        check_among("bias_dtype", self.bias_dtype, ("float32", self.dtype))
        check_array("bias", self.bias, self.itemsize("bias"))
        if any(n not in (1, m) for n, m in zip(self.bias.dims, scores, strict=True)):
            raise InputError(f"expected a bias that extends to {scores}, got {self.bias.dims}")


@dataclass(frozen=True)
class AttentionBackwardProblem:
    """The gradients dq, dk, dv of attention by its queries, keys and values, from that of its result, `g`.

    d: the result of attention; stats: the logarithms of the sums of exponentials, in float32. All arrays are
    as `AttentionProblem` has them, g as d, and dq, dk, dv as q, k, v: gradients of shared keys are summed.
    The same bits come out in every run.
    """

    q: Array4
    k: Array4
    v: Array4
    d: Array4
    g: Array4
    stats: Array4
    dq: Array4
    dk: Array4
    dv: Array4
    dtype: str
    scale: float
    causal: bool = False

    tf32: ClassVar[bool] = False
    #: the deterministic algorithm keeps parts of dq in float32, one for every 128 keys
    workspace_share: ClassVar[int] = 4

    def itemsize(self, role: str) -> int:
        """Bytes of an element of an array."""
        return 4 if role == "stats" else 2

    def arguments(self) -> tuple[Argument, ...]:
        """q, k, v, d, g, stats; dq, dk, dv are written."""
        read = (Argument(role, self.dtype, getattr(self, role).span) for role in ("q", "k", "v", "d", "g"))
        made = (Argument(r, self.dtype, getattr(self, r).span, written=True) for r in ("dq", "dk", "dv"))
        return (*read, Argument("stats", "float32", self.stats.span), *made)

    def check(self) -> None:
        """Raise `InputError` where extents, steps or numbers make no sense."""
        check_among("dtype", self.dtype, ATTENTION_DTYPES)
        given = {"q": self.q, "k": self.k, "v": self.v}
        results = {"d": self.d, "g": self.g, "stats": self.stats}
        gradients = {"dq": self.dq, "dk": self.dk, "dv": self.dv}
        _check_arrays(given, results | gradients, self.itemsize, self.scale)


def _check_arrays(
    given: Mapping[str, Array4], others: Mapping[str, Array4], itemsize: Callable[[str], int], scale: float
) -> None:
    """Raise `InputError` unless all arrays have the extents that q and v ask for, and the scale is finite."""
    for role, array in {**given, **others}.items():
        check_array(role, array, itemsize(role))
    batch, heads, queries, size = given["q"].dims
    (_, groups, keys, _), width = given["k"].dims, given["v"].dims[3]
    if heads % groups:
        raise InputError(f"expected heads in {groups} groups that share keys, got {heads}")
    expected = {"q": (batch, heads, queries, size), "k": (batch, groups, keys, size)}
    expected |= {"v": (batch, groups, keys, width), "d": (batch, heads, queries, width)}
    expected |= {"stats": (batch, heads, queries, 1), "g": expected["d"]}
    expected |= {f"d{role}": expected[role] for role in "qkv"}
    for role, array in {**given, **others}.items():
        if array.dims != expected[role]:
            raise InputError(f"expected {role} of {expected[role]}, got {array.dims}")
    if type(scale) is not float or not math.isfinite(scale):
        raise InputError(f"expected a finite number as scale, got {scale!r:.100}")
