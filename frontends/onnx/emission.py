"""The emitter of the ONNX importer: ops on known arrays are evaluated at once, so that shapes fold away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tilewright.frontends.importing.emitter import Emitter
from tilewright.frontends.importing.network import ops_read
from tilewright.frontends.importing.parameters import parameter_names
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.facts import SAME_MEMORY, Elements
from tilewright.ir.nodes import Attr, Op, Value
from tilewright.ir.opdef import facts_of, op_def
from tilewright.ir.types import FLOATS, TensorType

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
        self._origins: dict[Value, Op] = {}
        #: constants of integers that stand for numbers: what is computed from them is written as ops
        self.quantised: set[Value] = set()

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
            values = tuple(self.constant(np.asarray(a)) for a in definition.evaluate(arrays, full))
        op = Op(f"graph.{name}", tuple(operands), complete, values, None, self.builder.loc)
        self._origins.update(dict.fromkeys(values, op))
        self._folded[key] = values
        return values

    def written(self) -> Sequence[Op]:
        """The ops, with those on parameters and quantised weights, whose results were folded to constants.

        A parameter that is only transposed, reshaped or cast to other floats once is stored as its one reader
        takes it: training it so is training it as the file has it, and the op need not run in every step. The
        constant keeps the name of the parameter.
        """
        whole = _unfolded(self.builder.ops, self._origins)
        names = frozenset(parameter_names(whole, self.weights, self.numbers))
        changing: set[Value] = set()
        origins: dict[Value, Op] = {}
        for op in whole:
            if op.name == "graph.constant":
                changing.update(op.results if op["name"] in names or op.result in self.quantised else ())
            elif any(v in changing for v in op.operands) and op.results[0] in self._origins:
                changing.update(op.results)
                origins.update(dict.fromkeys(op.results, op))
        return self._rearranged(ops_read(_unfolded(self.builder.ops, origins), prune=True), names)

    def _rearranged(self, ops: Sequence[Op], names: frozenset[str]) -> list[Op]:
        """The ops with parameters stored as transposed, reshaped or cast where nothing else reads them."""
        readers = Counter(v for op in ops for v in op.operands)
        parameters: dict[Value, str] = {}
        out: dict[Value | None, Op] = {}
        for op in ops:
            source = op.operands[0] if _rearranges(op) else None
            if op.name == "graph.constant" and op["name"] in names:
                parameters[op.result] = str(op["name"])
            elif source in parameters and readers[source] == 1:
                name = parameters[op.result] = parameters.pop(source)
                array = self.known(op.result)
                assert array is not None, "folded ops have known results"
                self.constants[name] = array
                op = replace(out.pop(source), results=op.results)
            out[op.results[0] if op.results else None] = op
        return list(out.values())

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


def _unfolded(ops: Sequence[Op], origins: Mapping[Value, Op]) -> list[Op]:
    """The ops with those of `origins` in the place of the constants that are their results, each once."""
    out = []
    for op in ops:
        origin = origins.get(op.result) if op.name == "graph.constant" else None
        if origin is None:
            out.append(op)
        elif op.result is origin.results[0]:
            out.append(origin)
    return out


def _rearranges(op: Op) -> bool:
    """Whether an op gives the elements of its only operand, each once, in some order or float type."""
    if len(op.operands) != 1 or len(op.results) != 1:
        return False
    x, y = op.operands[0].tensor, op.result.tensor
    kind = facts_of(op.name).elements
    if op.name == "graph.cast":
        return x.dtype in FLOATS and y.dtype in FLOATS
    return kind in SAME_MEMORY or (kind is Elements.STRIDES and x.size == y.size)
