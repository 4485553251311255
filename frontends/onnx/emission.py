"""The emitter of the ONNX importer: ops on known arrays are evaluated at once, so that shapes fold away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from tilewright.frontends.deferred import Deferred
from tilewright.frontends.emitter import Emitter
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Attr, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.types import TensorType, storage_dtype

#: Results larger than this are left to be computed.
MAX_FOLDED_BYTES = 1 << 26


#: Tables made at import have at most as many entries.
MAX_TABLE = 1 << 27


def bounded(*extents: int) -> None:
    """Raise InputError where a table of these extents would be negative or larger than any network needs."""
    if min(extents, default=0) < 0 or prod(extents) > MAX_TABLE:
        raise InputError(f"expected a table of at most {MAX_TABLE} entries, got extents {tuple(extents)}")


class NotConstant(UnsupportedError):
    """A value had to be known at import and is not; `inputs` names the inputs of the model it depends on."""

    def __init__(self, message: str, inputs: Sequence[str] = (), *, where: str = "") -> None:
        super().__init__(message, where=where)
        self.inputs = tuple(inputs)


class FoldingEmitter(Emitter):
    """As Emitter, with folding and the few ops that most rules are made of."""

    def __init__(self, taken: Iterable[str], inputs: Sequence[Value]) -> None:
        super().__init__(taken)
        self._inputs = tuple(inputs)
        self._folded: dict[object, tuple[Value, ...]] = {}

    def values(self, name: str, operands: Sequence[Value], **attrs: Attr) -> tuple[Value, ...]:
        """The results of a graph op: constants where all operands are constants, the same ones each time."""
        definition = op_def(f"graph.{name}")
        arrays = [a for v in operands if (a := self.known(v)) is not None]
        if definition.evaluate is None or definition.infer is None or len(arrays) < max(1, len(operands)):
            return super().values(name, operands, **attrs)
        complete = definition.complete(attrs)
        # unrolled layers cut the same weights again at every step
        key = (name, tuple(operands), complete)
        if key in self._folded:
            return self._folded[key]
        full = dict(complete)
        types = definition.infer([v.type for v in operands], full)
        if sum(t.nbytes for t in types if isinstance(t, TensorType)) > MAX_FOLDED_BYTES:
            return super().values(name, operands, **attrs)
        with np.errstate(all="ignore"):
            self._folded[key] = tuple(self.constant(np.asarray(a)) for a in definition.evaluate(arrays, full))
        return self._folded[key]

    def constant(self, array: np.ndarray | Deferred, name: str = "") -> Value:
        """As in Emitter; a name that is given is not given to another constant."""
        if name:
            self._taken.add(name)
        return super().constant(array, name)

    def static(self, value: Value, what: str) -> np.ndarray:
        """The array of `value`, which must be known; raises NotConstant naming the inputs it comes from."""
        array = self.known(value)
        if array is None:
            names = self.sources(value)
            raise NotConstant(
                f"expected {what} to be constant, got a value that depends on "
                f"{', '.join(map(repr, names)) or 'data'}",
                names,
            )
        return array

    def integers(self, value: Value, what: str) -> tuple[int, ...]:
        """The integers of a known vector (or scalar)."""
        return tuple(int(n) for n in self.static(value, what).reshape(-1))

    def sources(self, value: Value) -> tuple[str, ...]:
        """Names of the model's inputs that `value` depends on, in their order."""
        producers = {r: op.operands for op in self.builder.ops for r in op.results}
        seen: set[Value] = set()
        todo = [value]
        while todo:
            item = todo.pop()
            if item not in seen:
                seen.add(item)
                todo.extend(producers.get(item, ()))
        return tuple(v.hint for v in self._inputs if v in seen)

    def full(self, value: float | int | bool, dtype: str, shape: Sequence[int] = ()) -> Value:
        """A constant filled with one value."""
        bounded(*shape)
        key = (repr(value), dtype, tuple(shape))
        if key not in self._folded:
            self._folded[key] = (self.constant(np.full(key[2], value).astype(storage_dtype(dtype))),)
        return self._folded[key][0]

    def cast(self, x: Value, dtype: str) -> Value:
        """`x` as `dtype`; itself when it already is."""
        return x if x.tensor.dtype == dtype else self.value("cast", x, dtype=dtype)

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

    def join(self, parts: Sequence[Value], axis: int) -> Value:
        """The parts one after another along an axis."""
        return parts[0] if len(parts) == 1 else self.value("concatenate", *parts, axis=axis)
