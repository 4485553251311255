"""The emitter of the ONNX importer: ops on known arrays are evaluated at once, so that shapes fold away."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tilewright.frontends.importing.emitter import Emitter
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.nodes import Attr, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.types import TensorType

#: Results larger than this are left to be computed.
MAX_FOLDED_BYTES = 1 << 26


class NotConstant(UnsupportedError):
    """A value had to be known at import and is not; `inputs` names the inputs of the model it depends on."""

    def __init__(self, message: str, inputs: Sequence[str] = (), *, where: str = "") -> None:
        super().__init__(message, where=where)
        self.inputs = tuple(inputs)


class FoldingEmitter(Emitter):
    """As Emitter, with folding."""

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

    def full(self, value: object, dtype: str, shape: Sequence[int] = ()) -> Value:
        """A constant filled with one value, the same one each time."""
        key = (repr(value), dtype, tuple(shape))
        if key not in self._folded:
            self._folded[key] = (super().full(value, dtype, shape),)
        return self._folded[key][0]

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
