"""Convolutions as cuDNN sees them: four-dimensional arrays with steps, paddings, and what is added behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from tilewright.runtime.errors import InputError
from tilewright.runtime.libraries.problem import (
    LIBRARY_DTYPES,
    POINTER_BYTES,
    Argument,
    check_among,
    check_range,
)

ConvolutionEpilogue = Literal["none", "bias", "relu", "relu_bias"]
EPILOGUES: tuple[str, ...] = get_args(ConvolutionEpilogue)


@dataclass(frozen=True)
class Array4:
    """Extents of four dimensions, elements from one index of each to the next, elements before the first."""

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    start: int = 0

    @property
    def span(self) -> int:
        """Elements from the beginning of its memory to its last one."""
        return self.start + 1 + sum((n - 1) * s for n, s in zip(self.dims, self.strides, strict=True))


def check_array(role: str, array: Array4, itemsize: int) -> None:
    """Raise `InputError` where extents or steps make no sense, or the start is not aligned."""
    if len(array.dims) != 4 or len(array.strides) != 4:
        raise InputError(f"expected four dimensions of {role}, got {array.dims}")
    for n, s in zip(array.dims, array.strides, strict=True):
        check_range(f"an extent of {role}", n, 1, 1 << 31)
        check_range(f"a stride of {role}", s, 1)
    check_range(f"the start of {role}", array.start, 0)
    if array.start * itemsize % POINTER_BYTES:
        raise InputError(
            f"expected {role} to start at a multiple of {POINTER_BYTES} bytes, got element {array.start}"
        )


@dataclass(frozen=True)
class ConvolutionProblem:
    """D = epilogue(convolution of A with B [+ C] [+ bias]), sums accumulated in float32.

    a: image (n, c, h, w); b: filters (k, c / groups, r, s); d and c: results (n, k, p, q); bias: k elements.
    Paddings, strides and dilations are those of height and width; nothing is mirrored. dtype: of A and B;
    result: of C, D and bias. tf32: factors may be rounded to TF32; only then tensor cores multiply float32.
    """

    a: Array4
    b: Array4
    d: Array4
    dtype: str
    result: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    c: Array4 | None = None
    epilogue: str = "none"
    tf32: bool = False

    workspace_share: ClassVar[int] = 0

    @property
    def has_bias(self) -> bool:
        """True where a vector of one element per filter is added."""
        return self.epilogue.endswith("bias")

    def itemsize(self, role: str) -> int:
        """Bytes of an element of `a`, `b`, `c` or `d`."""
        return 4 if (self.dtype if role in "ab" else self.result) == "float32" else 2

    def arguments(self) -> tuple[Argument, ...]:
        """a, b, bias and c where there are, d."""
        bias = (Argument("bias", self.result, self.b.dims[0]),) if self.has_bias else ()
        c = (Argument("c", self.result, self.c.span),) if self.c is not None else ()
        factors = (Argument("a", self.dtype, self.a.span), Argument("b", self.dtype, self.b.span))
        return (*factors, *bias, *c, Argument("d", self.result, self.d.span, written=True))

    def check(self) -> None:
        """Raise `InputError` where extents, steps or names make no sense."""
        check_among("dtype", self.dtype, LIBRARY_DTYPES)
        check_among("result", self.result, ("float32", self.dtype))
        check_among("epilogue", self.epilogue, EPILOGUES)
        if self.tf32 and self.dtype != "float32":
            raise InputError(f"expected tf32 only with float32 factors, got {self.dtype}")
        for role in "abcd":
            array: Array4 | None = getattr(self, role)
            if array is not None:
                check_array(role, array, self.itemsize(role))
        for name, low in (("before", 0), ("after", 0), ("strides", 1), ("dilations", 1)):
            values = getattr(self, name)
            if len(values) != 2:
                raise InputError(f"expected two {name}, got {len(values)}")
            for value in values:
                check_range(name, value, low, 1 << 20)
        if self._results() != self.d.dims or (self.c is not None and self.c.dims != self.d.dims):
            raise InputError(f"expected results of {self._results()}, got {self.d.dims}")

    def _results(self) -> tuple[int, ...]:
        """Extents of the results by the arithmetic of convolutions."""
        (n, c, *sizes), (k, per_group, *taps) = self.a.dims, self.b.dims
        if c % per_group or k % (c // per_group):
            raise InputError(f"expected channels in groups, got {c} of {per_group} each, {k} filters")
        reach = (d * (t - 1) + 1 for d, t in zip(self.dilations, taps, strict=True))
        free = (
            size + before + after - r
            for size, before, after, r in zip(sizes, self.before, self.after, reach, strict=True)
        )
        return n, k, *(f // s + 1 for f, s in zip(free, self.strides, strict=True))
