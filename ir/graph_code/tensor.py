"""`GraphWriter` and `Tensor`: an operator on tensors appends its graph op to the function being written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from tilewright.ir.builder import Builder
from tilewright.ir.constants import Constants
from tilewright.ir.errors import InputError
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Attr, Op, Value
from tilewright.ir.types import FLOATS, TensorType, dtype_name, storage_dtype

Number = float | int | bool
Axes = int | Sequence[int] | None


class Tensor:
    """A value of the graph function that is being written; operators and methods append graph ops.

    Operands broadcast from the right, as NumPy's do; a number beside a tensor is a constant of its dtype.
    Comparisons with `<`, `<=`, `>` and `>=` give bool tensors; `equal` compares for equality, because `==`
    says whether two names stand for the same value.
    """

    __slots__ = ("value", "writer")

    def __init__(self, writer: GraphWriter, value: Value) -> None:
        self.writer, self.value = writer, value

    def __repr__(self) -> str:
        return f"<Tensor {self.value.hint or ''}: {self.value.type}>"

    @property
    def type(self) -> TensorType:
        """Shape and dtype."""
        return self.value.tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents."""
        return self.value.tensor.shape

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return self.value.tensor.rank

    @property
    def dtype(self) -> str:
        """Name of the element type, as the IR spells it: `f32`, `i64`, ..."""
        return self.value.tensor.dtype

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.value.tensor.size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensor) and other.value is self.value

    def __hash__(self) -> int:
        return hash(self.value)

    # -- arithmetic ------------------------------------------------------------------------------------------
    def _with(self, name: str, other: Tensor | Number, *, swapped: bool = False) -> Tensor:
        operand = other if isinstance(other, Tensor) else self.writer.number(other, self.dtype)
        a, b = (operand, self) if swapped else (self, operand)
        return self.writer.op(name, a, b)

    def __add__(self, other: Tensor | Number) -> Tensor:
        return self._with("add", other)

    def __radd__(self, other: Number) -> Tensor:
        return self._with("add", other, swapped=True)

    def __sub__(self, other: Tensor | Number) -> Tensor:
        return self._with("subtract", other)

    def __rsub__(self, other: Number) -> Tensor:
        return self._with("subtract", other, swapped=True)

    def __mul__(self, other: Tensor | Number) -> Tensor:
        return self._with("multiply", other)

    def __rmul__(self, other: Number) -> Tensor:
        return self._with("multiply", other, swapped=True)

    def __truediv__(self, other: Tensor | Number) -> Tensor:
        return self._with("divide", other)

    def __rtruediv__(self, other: Number) -> Tensor:
        return self._with("divide", other, swapped=True)

    def __pow__(self, other: Tensor | Number) -> Tensor:
        return self._with("power", other)

    def __neg__(self) -> Tensor:
        return self.writer.op("negative", self)

    def __lt__(self, other: Tensor | Number) -> Tensor:
        return self._with("less", other)

    def __le__(self, other: Tensor | Number) -> Tensor:
        return self._with("less_equal", other)

    def __gt__(self, other: Tensor | Number) -> Tensor:
        return self._with("greater", other)

    def __ge__(self, other: Tensor | Number) -> Tensor:
        return self._with("greater_equal", other)

    def __and__(self, other: Tensor) -> Tensor:
        return self._with("logical_and", other)

    def __or__(self, other: Tensor) -> Tensor:
        return self._with("logical_or", other)

    def __invert__(self) -> Tensor:
        return self.writer.op("logical_not", self)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.matmul(other)

    def equal(self, other: Tensor | Number) -> Tensor:
        """Whether elements are equal."""
        return self._with("equal", other)

    def maximum(self, other: Tensor | Number) -> Tensor:
        """The larger of two elements; nan where either is."""
        return self._with("maximum", other)

    def minimum(self, other: Tensor | Number) -> Tensor:
        """The smaller of two elements; nan where either is."""
        return self._with("minimum", other)

    def matmul(self, other: Tensor, *, transpose_a: bool = False, transpose_b: bool = False) -> Tensor:
        """Products of the matrices in the last two dimensions; dimensions before them broadcast."""
        return self.writer.op("matmul", self, other, transpose_a=transpose_a, transpose_b=transpose_b)

    # -- functions of one tensor -----------------------------------------------------------------------------
    def exp(self) -> Tensor:
        """e to the power of each element."""
        return self.writer.op("exp", self)

    def log(self) -> Tensor:
        """Natural logarithms."""
        return self.writer.op("log", self)

    def sqrt(self) -> Tensor:
        """Square roots."""
        return self.writer.op("sqrt", self)

    def rsqrt(self) -> Tensor:
        """One over square roots."""
        return self.writer.op("rsqrt", self)

    def abs(self) -> Tensor:
        """Magnitudes."""
        return self.writer.op("abs", self)

    def tanh(self) -> Tensor:
        """Hyperbolic tangents."""
        return self.writer.op("tanh", self)

    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-x))."""
        return self.writer.op("sigmoid", self)

    def stop_gradient(self) -> Tensor:
        """The same elements, which count as constants where the function is differentiated."""
        return self.writer.op("stop_gradient", self)

    def cast(self, dtype: str) -> Tensor:
        """The elements as `dtype`; the tensor itself where they are."""
        return self if dtype == self.dtype else self.writer.op("cast", self, dtype=dtype)

    def sum(self, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """Sums over dimensions; over all by default."""
        return self._fold("sum", axis, keepdims)

    def mean(self, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """Means over dimensions; over all by default."""
        return self._fold("mean", axis, keepdims)

    def max(self, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
        """The largest elements over dimensions; over all by default."""
        return self._fold("max", axis, keepdims)

    def _fold(self, name: str, axis: Axes, keepdims: bool) -> Tensor:
        axes = tuple(range(self.rank)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
        axes = tuple(sorted(a % self.rank for a in axes))
        return self.writer.op(name, self, axis=axes, keepdims=keepdims) if axes else self

    # -- shapes ----------------------------------------------------------------------------------------------
    def reshape(self, *shape: int) -> Tensor:
        """The elements in their order under another shape; the tensor itself where it has that shape."""
        return self if shape == self.shape else self.writer.op("reshape", self, newshape=shape)

    def transpose(self, *axes: int) -> Tensor:
        """Dimensions in another order: that of `axes`, or the reverse."""
        order = axes or tuple(reversed(range(self.rank)))
        return self if order == tuple(range(self.rank)) else self.writer.op("transpose", self, axes=order)

    def broadcast_to(self, *shape: int) -> Tensor:
        """Elements repeated to a shape; the tensor itself where it has that shape."""
        return self if shape == self.shape else self.writer.op("broadcast_to", self, shape=shape)

    def along(self, axis: int, rank: int) -> Tensor:
        """A tensor of one dimension as one of `rank` that broadcasts along `axis`."""
        return self.reshape(*(self.size if d == axis % rank else 1 for d in range(rank)))

    def where(self, yes: Tensor | Number, no: Tensor | Number) -> Tensor:
        """Elements of `yes` where this one, of bools, is true, else those of `no`; one of them a tensor."""
        dtype = next((x.dtype for x in (yes, no) if isinstance(x, Tensor)), None)
        if dtype is None:
            raise InputError("expected a tensor among the two choices of `where`, got two numbers")
        a, b = (x if isinstance(x, Tensor) else self.writer.number(x, dtype) for x in (yes, no))
        return self.writer.op("where", self, a, b)


class GraphWriter:
    """Writes the ops of one graph function and collects the constants they name.

    constants: those of the module that the ops will belong to, whose names are taken.
    """

    def __init__(self, constants: Mapping[str, np.ndarray] | None = None, loc: str = "") -> None:
        self.builder = Builder(loc)
        self._pool = ConstantPool(constants if isinstance(constants, Constants) else Constants(constants))
        self._numbers: dict[tuple[str, str], Value] = {}

    @property
    def constants(self) -> Constants:
        """The constants that were given, and the new ones."""
        return self._pool.constants

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops written so far."""
        return tuple(self.builder.ops)

    @contextmanager
    def at(self, loc: str) -> Iterator[None]:
        """Give the ops written inside this location."""
        with self.builder.at(loc):
            yield

    def tensor(self, value: Value) -> Tensor:
        """A value of the function, as a tensor to calculate with."""
        return Tensor(self, value)

    def op(self, name: str, *operands: Tensor, hint: str = "", **attrs: Attr) -> Tensor:
        """Append `graph.NAME`, which has one result; raises InputError where the operands do not fit."""
        (result,) = self.ops_of(name, operands, hint=hint, **attrs)
        return result

    def ops_of(
        self, name: str, operands: Iterable[Tensor], *, hint: str = "", **attrs: Attr
    ) -> tuple[Tensor, ...]:
        """Append `graph.NAME`, with any number of results."""
        values = self.builder.emit(f"graph.{name}", [t.value for t in operands], attrs, hint=hint)
        return tuple(self.tensor(v) for v in values)

    def constant(self, array: np.ndarray, name: str = "constant") -> Tensor:
        """A constant; one of its name that holds something else makes the name a numbered one."""
        array = np.asarray(array)
        kind = TensorType(dtype_name(array.dtype), array.shape)
        chosen = self._pool.add(name, array)
        (value,) = self.builder.emit("graph.constant", (), {"name": chosen}, types=(kind,), hint=chosen)
        return self.tensor(value)

    def number(self, value: Number, dtype: str) -> Tensor:
        """A number as a tensor without dimensions; equal ones of one function are one constant.

        One that `dtype` has to round is a cast constant of float64: it is exact where floats are wide.
        """
        array = np.asarray(value).astype(storage_dtype(dtype))
        rounded = dtype in FLOATS and float(array) != value and np.isfinite(value)
        key = (dtype, (np.asarray(value, np.float64) if rounded else array).tobytes().hex())
        if key not in self._numbers:
            text = f"{float(value):.9g}".replace("+", "")
            if rounded:
                number = self.constant(np.asarray(value, np.float64), f"number.f64.{text}").cast(dtype)
            else:
                number = self.constant(array, f"number.{dtype}.{text}")
            self._numbers[key] = number.value
        return self.tensor(self._numbers[key])

    def full(self, value: Number, t: TensorType) -> Tensor:
        """A tensor of one number."""
        return self.number(value, t.dtype).broadcast_to(*t.shape)
