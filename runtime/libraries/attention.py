"""Attention as cuDNN sees it: queries, keys, values and results as four-dimensional arrays with steps."""

from __future__ import annotations

import math
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

    q: (batch, heads, queries, n); k: (batch, heads, keys, n); v: (batch, heads, keys, m); d: (batch, heads,
    queries, m). bias: (1 or batch, 1 or heads, 1 or queries, keys) is added before softmax, its elements
    are of `bias_dtype`. causal: query i sees keys 0..i only. dtype: of Q, K, V and D.
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

    tf32: ClassVar[bool] = False

    def itemsize(self, role: str) -> int:
        """Bytes of an element of `q`, `k`, `v`, `bias` or `d`."""
        return 4 if role == "bias" and self.bias_dtype == "float32" else 2

    def arguments(self) -> tuple[Argument, ...]:
        """q, k, v, bias where there is one, d."""
        bias = (Argument("bias", self.bias_dtype, self.bias.span),) if self.bias is not None else ()
        read = (Argument(role, self.dtype, getattr(self, role).span) for role in ("q", "k", "v"))
        return (*read, *bias, Argument("d", self.dtype, self.d.span, written=True))

    def check(self) -> None:
        """Raise `InputError` where extents, steps or numbers make no sense."""
        check_among("dtype", self.dtype, ATTENTION_DTYPES)
        for role in ("q", "k", "v", "d"):
            check_array(role, getattr(self, role), self.itemsize(role))
        batch, heads, queries, size = self.q.dims
        keys, width = self.k.dims[2], self.v.dims[3]
        expected = {
            "k": (batch, heads, keys, size),
            "v": (batch, heads, keys, width),
            "d": (batch, heads, queries, width),
        }
        for role, dims in expected.items():
            if getattr(self, role).dims != dims:
                raise InputError(f"expected {role} of {dims}, got {getattr(self, role).dims}")
        if type(self.scale) is not float or not math.isfinite(self.scale):
            raise InputError(f"expected a finite number as scale, got {self.scale!r:.100}")
        self._check_bias((batch, heads, queries, keys))

    def _check_bias(self, scores: tuple[int, ...]) -> None:
        if self.bias is None:
            if self.bias_dtype:
                raise InputError(f"expected no bias_dtype without bias, got {self.bias_dtype!r:.100}")
            return
        check_among("bias_dtype", self.bias_dtype, ("float32", self.dtype))
        check_array("bias", self.bias, self.itemsize("bias"))
        if any(n not in (1, m) for n, m in zip(self.bias.dims, scores, strict=True)):
            raise InputError(f"expected a bias that extends to {scores}, got {self.bias.dims}")
