"""Normalisations of rows as cuDNN sees them: rows with steps, an element of scale and bias per column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from tilewright.runtime.errors import InputError
from tilewright.runtime.libraries.convolution import Array4, check_array
from tilewright.runtime.libraries.problem import LIBRARY_DTYPES, Argument, check_among

NormKind = Literal["layer", "rms"]
KINDS: tuple[str, ...] = get_args(NormKind)


@dataclass(frozen=True)
class NormProblem:
    """D = (X - mean) / sqrt(variance + epsilon) * scale + bias of each row, computed in float32.

    x and d: (rows, columns, 1, 1). `rms` takes the mean of the squares for the variance, subtracts nothing
    and needs no bias. dtype: of X; result: of D; vectors: of scale and bias, one element per column.
    """

    kind: str
    x: Array4
    d: Array4
    dtype: str
    result: str
    vectors: str
    epsilon: float
    has_bias: bool = True

    tf32: ClassVar[bool] = False
    workspace_share: ClassVar[int] = 0

    def itemsize(self, role: str) -> int:
        """Bytes of an element of `x` or `d`."""
        return 4 if (self.dtype if role == "x" else self.result) == "float32" else 2

    def arguments(self) -> tuple[Argument, ...]:
        """x, scale, bias where there is one, d."""
        columns = self.x.dims[1]
        bias = (Argument("bias", self.vectors, columns),) if self.has_bias else ()
        read = (Argument("x", self.dtype, self.x.span), Argument("scale", self.vectors, columns))
        return (*read, *bias, Argument("d", self.result, self.d.span, written=True))

    def check(self) -> None:
        """Raise `InputError` where extents, steps or numbers make no sense."""
        check_among("kind", self.kind, KINDS)
        for name in ("dtype", "result", "vectors"):
            check_among(name, getattr(self, name), LIBRARY_DTYPES)
        for role in ("x", "d"):
            check_array(role, getattr(self, role), self.itemsize(role))
        if self.x.dims[2:] != (1, 1) or self.d.dims != self.x.dims:
            raise InputError(f"expected rows and columns, got x {self.x.dims}, d {self.d.dims}")
        if type(self.epsilon) is not float or not math.isfinite(self.epsilon) or self.epsilon < 0:
            raise InputError(f"expected epsilon to be 0.0 or more, got {self.epsilon!r:.100}")
        if self.kind == "layer" and not self.has_bias:
            raise InputError("expected a bias: layer norms of cuDNN add one")
