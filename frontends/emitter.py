"""What importers build with: graph ops, constants, and checked access to operands."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.frontends.deferred import Deferred, made
from tilewright.ir.builder import Builder
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Attr, Op, Value
from tilewright.ir.types import TensorType, dtype_name

#: A tensor, a tuple of results, an absent result, or a function (which only the evaluator makes and takes).
Result = Any
MAX_LEAVES = 100_000


@dataclass(frozen=True, slots=True)
class Absent:
    """A result that has no value at inference, such as dropout's mask; using it is an error."""

    what: str


class Emitter:
    """Builds the ops of one graph function and collects its constants."""

    def __init__(self, taken: Iterable[str]) -> None:
        self.builder = Builder()
        self.constants: dict[str, np.ndarray | Deferred] = {}
        self._taken = set(taken)
        self._arrays: dict[Value, np.ndarray | Deferred] = {}
        self._producers: dict[Value, int] = {}
        self._indexed = 0

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

    def known(self, value: Result) -> np.ndarray | None:
        """The array of a constant, None for everything else."""
        array = self._arrays.get(value) if isinstance(value, Value) else None
        return None if array is None else made(array)

    def remember(self, value: Value, array: np.ndarray) -> None:
        """From now on the array of `value` is known."""
        self._arrays[value] = array

    def producer(self, value: Value) -> tuple[int, Op] | None:
        """The op that `value` is a result of, after its place among all ops; None for inputs."""
        ops = self.builder.ops
        for place in range(self._indexed, len(ops)):
            self._producers.update(dict.fromkeys(ops[place].results, place))
        self._indexed = len(ops)
        found = self._producers.get(value)
        return None if found is None else (found, ops[found])

    def tensor(self, args: Sequence[Result], index: int) -> Value:
        """Argument `index`, known to be a tensor."""
        if index >= len(args):
            raise InputError(f"expected at least {index + 1} arguments, got {len(args)}")
        value = args[index]
        if isinstance(value, Absent):
            raise UnsupportedError(f"expected a value, got {value.what}, which is not computed")
        if not isinstance(value, Value):
            raise InputError(f"expected argument {index} to be a tensor, got a tuple or a function")
        return value

    def tensors(self, args: Sequence[Result], count: int) -> tuple[Value, ...]:
        """Exactly `count` tensor arguments."""
        if len(args) != count:
            raise InputError(f"expected {count} arguments, got {len(args)}")
        return tuple(self.tensor(args, i) for i in range(count))

    def fields(self, args: Sequence[Result], index: int = 0) -> tuple[Value, ...]:
        """Argument `index`, known to be a tuple of tensors."""
        value = args[index] if index < len(args) else None
        if not isinstance(value, tuple):
            raise InputError(f"expected argument {index} to be a tuple of tensors")
        return tuple(self.tensor(value, i) for i in range(len(value)))


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
