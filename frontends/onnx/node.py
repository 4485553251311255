"""What a rule sees of one node: operands, attributes, operator version, and how to run its subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.frontends.emitter import Absent, Result
from tilewright.frontends.onnx import syntax
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.tensors import dtype_of_element
from tilewright.frontends.relay.attributes import REQUIRED
from tilewright.frontends.relay.attributes import Attributes as PlainAttributes
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value


class Attributes(PlainAttributes):
    """Attributes of one node by name; every one must be read or dropped."""

    def has(self, name: str) -> bool:
        """Whether the attribute is given and not yet read."""
        return name in self._values

    def array(self, name: str) -> np.ndarray:
        """A tensor."""
        value = self.take(name)
        if isinstance(value, Absent):
            raise UnsupportedError(
                f"expected attribute '{name}' to be a tensor we can hold, got {value.what}"
            )
        if not isinstance(value, np.ndarray):
            raise InputError(f"expected attribute '{name}' to be a tensor, got {value!r}")
        return value

    def graph(self, name: str) -> syntax.Graph:
        """A subgraph."""
        value = self.take(name)
        if not isinstance(value, syntax.Graph):
            raise InputError(f"expected attribute '{name}' to be a graph, got {value!r}")
        return value

    def element(self, name: str, default: str = "") -> str:
        """Our name of the element type whose number the attribute is; `default` where there is none."""
        number = self.integer(name, None)
        if number is None:
            if not default:
                raise InputError(f"expected attribute '{name}', got none")
            return default
        return dtype_of_element(number)

    def texts(self, name: str, default: Any = REQUIRED) -> tuple[str, ...]:
        """A list of strings."""
        value = self.take(name, default)
        if not isinstance(value, tuple) or any(type(v) is not str for v in value):
            raise InputError(f"expected attribute '{name}' to be a list of strings, got {value!r}")
        return value


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One node with its operands evaluated. `wanted` says of each output whether anything may use it.

    run: evaluates a subgraph for values of its inputs.
    attempt: the same without inputs, and where the subgraph cannot be imported, why: nothing is recorded.
    """

    op: str
    opset: int
    inputs: tuple[Result, ...]
    wanted: tuple[bool, ...]
    attrs: Attributes
    run: Callable[[syntax.Graph, Sequence[Result]], tuple[Result, ...]]
    attempt: Callable[[syntax.Graph], tuple[Result, ...] | str]

    @property
    def count(self) -> int:
        """Inputs given, without those left out at the end."""
        return len(self.inputs)

    def has(self, index: int) -> bool:
        """Whether input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def wants(self, index: int) -> bool:
        """Whether output `index` is asked for."""
        return index < len(self.wanted) and self.wanted[index]

    def tensor(self, index: int) -> Value:
        """Input `index`, known to be a tensor."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            raise InputError(f"expected input {index}, got none")
        if isinstance(value, Absent):
            raise UnsupportedError(f"expected input {index} to be a tensor, got {value.what}")
        if not isinstance(value, Value):
            raise InputError(f"expected input {index} to be a tensor, got a sequence")
        return value

    def optional(self, index: int) -> Value | None:
        """Input `index`, a tensor where it is given."""
        return self.tensor(index) if self.has(index) else None

    def tensors(self) -> tuple[Value, ...]:
        """All inputs, known to be tensors."""
        return tuple(self.tensor(i) for i in range(self.count))

    def axis(self, rank: int, default: Any = REQUIRED, *, name: str = "axis", end: bool = False) -> int:
        """An axis attribute counted from the front; `end` admits the position after the last axis."""
        axis = self.attrs.integer(name, default)
        return wrapped(axis, rank, name, end=end)


class Rule(Protocol):
    """Emits graph ops for one node and returns its outputs: one value, or a tuple of them."""

    def __call__(self, emit: FoldingEmitter, node: Node, /) -> Result: ...


Rules = Mapping[str, Rule]


def wrapped(axis: int, rank: int, name: str = "axis", *, end: bool = False) -> int:
    """An axis counted from the front; raises InputError outside the rank."""
    limit = rank + 1 if end and axis >= 0 else rank
    if not -rank <= axis < limit:
        raise InputError(f"expected '{name}' in [{-rank}, {limit - 1}], got {axis}")
    return axis + rank if axis < 0 else axis
