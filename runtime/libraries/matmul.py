"""Matrix products as cuBLASLt sees them: column-major, leading dimensions, strided batches, an epilogue."""

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

MatmulEpilogue = Literal["none", "bias", "relu", "relu_bias", "gelu", "gelu_bias"]
EPILOGUES: tuple[str, ...] = get_args(MatmulEpilogue)


@dataclass(frozen=True)
class Matrix:
    """A column-major matrix in memory.

    ld: elements from column to column; stride: from one matrix of a batch to the next; start: before the
    first one.
    """

    ld: int
    stride: int = 0
    start: int = 0


@dataclass(frozen=True)
class MatmulProblem:
    """D = epilogue(A B [+ C] [+ bias]) with D of m x n, sums of k products accumulated in float32.

    A is stored as m x k, `transposed_a` as k x m; B as k x n, `transposed_b` as n x k. dtype: of A and B;
    result: of C, D and bias (m elements, one per row of D). `gelu` is the form with tanh. tf32: factors may
    be rounded to TF32.
    """

    m: int
    n: int
    k: int
    batch: int
    dtype: str
    result: str
    transposed_a: bool
    transposed_b: bool
    a: Matrix
    b: Matrix
    d: Matrix
    c: Matrix | None = None
    epilogue: str = "none"
    tf32: bool = False

    workspace_share: ClassVar[int] = 0

    @property
    def has_bias(self) -> bool:
        """True where a vector of m elements is added."""
        return self.epilogue.endswith("bias")

    def stored(self, role: str) -> tuple[int, int, Matrix]:
        """Rows and columns of `a`, `b`, `c` or `d` as it lies in memory, and where its elements are."""
        if role == "a":
            return (self.k, self.m, self.a) if self.transposed_a else (self.m, self.k, self.a)
        if role == "b":
            return (self.n, self.k, self.b) if self.transposed_b else (self.k, self.n, self.b)
        return self.m, self.n, (self.c or self.d) if role == "c" else self.d

    def _span(self, role: str) -> int:
        rows, columns, matrix = self.stored(role)
        return matrix.start + (self.batch - 1) * matrix.stride + (columns - 1) * matrix.ld + rows

    def itemsize(self, role: str) -> int:
        """Bytes of an element of `a`, `b`, `c` or `d`."""
        return 4 if (self.dtype if role in "ab" else self.result) == "float32" else 2

    def arguments(self) -> tuple[Argument, ...]:
        """a, b, bias and c where there are, d."""
        bias = (Argument("bias", self.result, self.m),) if self.has_bias else ()
        c = (Argument("c", self.result, self._span("c")),) if self.c is not None else ()
        factors = tuple(Argument(role, self.dtype, self._span(role)) for role in ("a", "b"))
        return (*factors, *bias, *c, Argument("d", self.result, self._span("d"), written=True))

    def check(self) -> None:
        """Raise `InputError` where extents, strides or names make no sense."""
        for name in ("m", "n", "k", "batch"):
            check_range(name, getattr(self, name), 1, 1 << 31)
        check_among("dtype", self.dtype, LIBRARY_DTYPES)
        check_among("result", self.result, ("float32", self.dtype))
        check_among("epilogue", self.epilogue, EPILOGUES)
        if self.tf32 and self.dtype != "float32":
            raise InputError(f"expected tf32 only with float32 factors, got {self.dtype}")
        for role in ("a", "b", "c", "d"):
            rows, _, matrix = self.stored(role)
            check_range(f"the leading dimension of {role}", matrix.ld, rows)
            check_range(f"the stride of {role}", matrix.stride, 0)
            check_range(f"the start of {role}", matrix.start, 0)
            if matrix.start * self.itemsize(role) % POINTER_BYTES:
                raise InputError(
                    f"expected {role} to start at a multiple of {POINTER_BYTES} bytes, "
                    f"got element {matrix.start}"
                )
        if self.batch > 1 and self.d.stride < 1:
            raise InputError("expected the results of a batch apart from each other")
