"""One node as its rule sees it: operands, attributes, operator version, and how to run its subgraphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tilewright.frontends.importing.call import REQUIRED, Call
from tilewright.frontends.importing.emitter import Absent, Result
from tilewright.frontends.onnx import syntax
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.tensors import dtype_of_element
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value


@dataclass(frozen=True, slots=True)
class Poison:
    """A value that could not be made because of something found earlier."""


POISON = Poison()


class Node(Call):
    """One node with its operands evaluated. `wanted` says of each output whether anything may use it.

    run: evaluates a subgraph for values of its inputs.
    attempt: the same without inputs, and where the subgraph cannot be imported, why: nothing is recorded.
    """

    def __init__(
        self,
        opset: int,
        inputs: Sequence[Result],
        attrs: Mapping[str, Any],
        wanted: tuple[bool, ...],
        run: Callable[[syntax.Graph, Sequence[Result]], tuple[Result, ...]],
        attempt: Callable[[syntax.Graph], tuple[Result, ...] | str],
    ) -> None:
        super().__init__(inputs, attrs)
        self.opset, self.wanted, self.run, self.attempt = opset, wanted, run, attempt

    def wants(self, index: int) -> bool:
        """Return whether output `index` is asked for."""
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

    def tensors(self, count: int | None = None) -> tuple[Value, ...]:
        """The first `count` inputs, known to be tensors; without a count all."""
        return tuple(self.tensor(i) for i in range(len(self.inputs) if count is None else count))

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

    def axis(self, rank: int, default: Any = REQUIRED, *, end: bool = False) -> int:
        """An axis attribute counted from the front; `end` admits the position after the last axis."""
        return wrapped(self.integer("axis", default), rank, end=end)


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
