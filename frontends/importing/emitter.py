"""The builder of importers: graph ops, constants, and the few compositions that most rules are made of."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.frontends.weights.deferred import Deferred, made
from tilewright.ir.builder import Builder
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.graph_ops.operands import accumulator_dtype
from tilewright.ir.nodes import Attr, Op, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.types import TensorType, dtype_name, storage_dtype

#: A tensor, a tuple of results, an absent result, or a function (which only the evaluator makes and takes).
Result = Any
MAX_LEAVES = 100_000
#: Tables made at import have at most as many entries.
MAX_TABLE = 1 << 27
#: Shapes are small; larger tensors are data and are not computed at import.
MAX_SHAPE = 4096


@dataclass(frozen=True, slots=True)
class Absent:
    """A result that has no value at inference, such as dropout's mask; using it is an error."""

    what: str


class Emitter:
    """Builds the ops of one graph function and collects its constants."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.builder = Builder()
        self.constants: dict[str, np.ndarray | Deferred] = {}
        #: names of the constants that are weights of the network, as its file says
        self.weights: set[str] = set()
        #: values that no gradient changes: scales of quantisation, running statistics of training modules
        self.numbers: set[Value] = set()
        self._taken = set(taken)
        self._arrays: dict[Value, np.ndarray | Deferred] = {}
        self._producers: dict[Value, int] = {}
        self._indexed = 0
        self._calls: Counter[str] = Counter()

    def number(self, operator: str) -> int:
        """The number of a call among those of its operator, counted from 0."""
        self._calls[operator] += 1
        return self._calls[operator] - 1

    # -- ops and constants -----------------------------------------------------------------------------------
    def value(self, name: str, *operands: Value, **attrs: Attr) -> Value:
        """Append a graph op with one result."""
        (result,) = self.values(name, operands, **attrs)
        return result

    def values(self, name: str, operands: Sequence[Value], **attrs: Attr) -> tuple[Value, ...]:
        """Append a graph op with any number of results."""
        return self.builder.emit(f"graph.{name}", operands, attrs)

    def constant(self, array: np.ndarray | Deferred, name: str = "") -> Value:
        """A constant op for `array`, under `name` or a fresh one."""
        kind = TensorType(dtype_name(array.dtype), array.shape)
        if not name:
            numbers = itertools.count(len(self._arrays))
            name = next(n for i in numbers if (n := f"const_{i}") not in self._taken)
        self._taken.add(name)
        self.constants[name] = array
        (value,) = self.builder.emit("graph.constant", (), {"name": name}, types=(kind,), hint=name)
        self._arrays[value] = array
        return value

    def weight(self, array: np.ndarray | Deferred, name: str) -> Value:
        """A constant that is a weight of the network: `parameters.py` says which of them are parameters."""
        self.weights.add(name)
        return self.constant(array, name)

    def full(self, value: object, dtype: str, shape: Sequence[int] = ()) -> Value:
        """A constant filled with one value."""
        bounded(*shape)
        return self.constant(np.full(tuple(shape), value).astype(storage_dtype(dtype)))

    def written(self) -> Sequence[Op]:
        """The ops that the finished function is made of."""
        return self.builder.ops

    # -- what is known at import -----------------------------------------------------------------------------
    def known(self, value: Result) -> np.ndarray | None:
        """The array of a constant, None for everything else."""
        array = self._arrays.get(value) if isinstance(value, Value) else None
        return None if array is None else made(array)

    def computed(self, value: Value) -> np.ndarray | None:
        """The array of `value`, computed where only small constants take part; None where it is not known."""
        for op in () if self.known(value) is not None else self._needed(value):
            operands = [a for v in op.operands if (a := self.known(v)) is not None]
            definition = op_def(op.name)
            if len(operands) < len(op.operands) or definition.evaluate is None:
                return None
            with np.errstate(all="ignore"):
                arrays = definition.evaluate(operands, dict(op.attrs))
            self._arrays.update(zip(op.results, arrays, strict=True))
        return self.known(value)

    def _needed(self, value: Value) -> Sequence[Op]:
        """The ops that compute `value`, in order; none where an input or large data takes part."""
        for place in range(self._indexed, len(self.builder.ops)):
            self._producers.update(dict.fromkeys(self.builder.ops[place].results, place))
        self._indexed = len(self.builder.ops)
        places: set[int] = set()
        todo = [value]
        while todo:
            item = todo.pop()
            if self.known(item) is not None:
                continue
            producer = self._producers.get(item)
            if producer is None:
                return ()
            op = self.builder.ops[producer]
            if any(isinstance(r.type, TensorType) and r.type.size > MAX_SHAPE for r in op.results):
                return ()
            if producer not in places:
                places.add(producer)
                todo.extend(op.operands)
        return [self.builder.ops[place] for place in sorted(places)]

    def static(self, value: Value, what: str) -> np.ndarray:
        """The array of `value`; raises UnsupportedError where it depends on inputs or is large."""
        array = self.computed(value)
        if array is None:
            raise UnsupportedError(
                f"expected a constant as {what}, got {value.type}, which depends on inputs"
            )
        return array

    def integers(self, value: Value, what: str) -> tuple[int, ...]:
        """The integers of `value`, in row-major order; errors as those of `static`."""
        array = self.static(value, what)
        if not np.issubdtype(array.dtype, np.integer):
            raise UnsupportedError(f"expected integers as {what}, got {value.type}")
        return tuple(int(v) for v in array.reshape(-1))

    # -- compositions ----------------------------------------------------------------------------------------
    def op(self, name: str, a: Value, b: Value | float) -> Value:
        """A graph op of two operands; a number is a constant of the dtype of the first one."""
        return self.value(name, a, b if isinstance(b, Value) else self.full(b, a.tensor.dtype))

    def where(self, condition: Value, a: Value, b: Value | float) -> Value:
        """Elements of a where the condition holds, else of b, which may be a number."""
        return self.value("where", condition, a, b if isinstance(b, Value) else self.full(b, a.tensor.dtype))

    def cast(self, x: Value, dtype: str) -> Value:
        """`x` as `dtype`; itself when it already is."""
        return x if x.tensor.dtype == dtype else self.value("cast", x, dtype=dtype)

    def widened(self, x: Value) -> Value:
        """`x` in the dtype in which compositions are computed: float32 for 16-bit floats."""
        return self.cast(x, accumulator_dtype(x.tensor.dtype))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """`x` in another shape; itself when it already has it."""
        return x if x.tensor.shape == tuple(shape) else self.value("reshape", x, newshape=tuple(shape))

    def transpose(self, x: Value, axes: Sequence[int]) -> Value:
        """`x` with its axes in another order; itself when it already has it."""
        if tuple(axes) == tuple(range(x.tensor.rank)):
            return x
        return self.value("transpose", x, axes=tuple(axes))

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        """`x` broadcast to a shape."""
        return x if x.tensor.shape == tuple(shape) else self.value("broadcast_to", x, shape=tuple(shape))

    def along(self, vector: Value, axis: int, rank: int) -> Value:
        """A vector as it broadcasts along one axis of a tensor of `rank` dimensions."""
        return self.reshape(vector, [vector.tensor.size if d == axis else 1 for d in range(rank)])

    def cut(self, x: Value, axis: int, begin: int, size: int, stride: int = 1) -> Value:
        """`size` entries of `x` along one axis, the first at `begin`."""
        shape = x.tensor.shape
        if not 0 <= axis < len(shape):
            raise InputError(f"expected an axis of {x.type}, got {axis}")
        if (begin, size, stride) == (0, shape[axis], 1):
            return x
        begins = tuple(begin if d == axis else 0 for d in range(len(shape)))
        sizes = tuple(size if d == axis else n for d, n in enumerate(shape))
        strides = tuple(stride if d == axis else 1 for d in range(len(shape)))
        return self.value("strided_slice", x, begin=begins, size=sizes, strides=strides)

    def entry(self, x: Value, axis: int, index: int) -> Value:
        """Entry `index` along one axis, which goes."""
        shape = x.tensor.shape
        return self.reshape(self.cut(x, axis, index, 1), shape[:axis] + shape[axis + 1 :])

    def join(self, parts: Sequence[Value], axis: int) -> Value:
        """The parts one after another along an axis."""
        return parts[0] if len(parts) == 1 else self.value("concatenate", *parts, axis=axis)


def bounded(*extents: int) -> None:
    """Raise InputError where a table of these extents would be negative or larger than any network needs."""
    if min(extents, default=0) < 0 or prod(extents) > MAX_TABLE:
        raise InputError(f"expected a table of at most {MAX_TABLE} entries, got extents {tuple(extents)}")


def flatten(result: Result) -> list[Result]:
    """The leaves of nested tuples in order; raises InputError for more than a hundred thousand."""
    out: list[Result] = []
    todo: list[Result] = [result]
    seen = 0
    while todo:
        item = todo.pop()
        seen += 1
        if isinstance(item, tuple):
            todo.extend(reversed(item))
        else:
            out.append(item)
        if seen + len(todo) > MAX_LEAVES:
            raise InputError(f"expected at most {MAX_LEAVES} results, got more")
    return out
