"""One call of a foreign operator as its import rule sees it: operands by position, attributes by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from tilewright.frontends.importing.emitter import Absent, Emitter, Result
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value
from tilewright.ir.types import dtype_name

REQUIRED: Any = object()


class Call:
    """Evaluated operands, and typed reads of attributes: each must be read or dropped before `finish`.

    A default stands where the file leaves an attribute out.
    """

    def __init__(self, inputs: Sequence[Result], attrs: Mapping[str, Any] | None = None) -> None:
        self.inputs: Sequence[Result] = tuple(inputs)
        self._attrs = dict(attrs or {})

    # -- operands --------------------------------------------------------------------------------------------
    @property
    def count(self) -> int:
        """The number of operands."""
        return len(self.inputs)

    def has(self, index: int) -> bool:
        """Return whether operand `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int) -> Value:
        """Operand `index`, known to be a tensor."""
        if index >= len(self.inputs):
            raise InputError(f"expected at least {index + 1} arguments, got {len(self.inputs)}")
        value = self.inputs[index]
        if isinstance(value, Absent):
            raise UnsupportedError(f"expected a value, got {value.what}, which is not computed")
        if not isinstance(value, Value):
            raise InputError(f"expected argument {index} to be a tensor, got a tuple or a function")
        return value

    def optional(self, index: int) -> Value | None:
        """Operand `index`, a tensor where it is given."""
        return self.tensor(index) if self.has(index) else None

    def tensors(self, count: int | None = None) -> tuple[Value, ...]:
        """Exactly `count` tensors; without a count all operands, known to be tensors."""
        if count is not None and len(self.inputs) != count:
            raise InputError(f"expected {count} arguments, got {len(self.inputs)}")
        return tuple(self.tensor(i) for i in range(len(self.inputs)))

    def single(self) -> Value:
        """The tensor that is the only operand."""
        return self.tensors(1)[0]

    def fields(self, index: int = 0) -> tuple[Value, ...]:
        """Operand `index`, known to be a tuple of tensors."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if not isinstance(value, tuple):
            raise InputError(f"expected argument {index} to be a tuple of tensors")
        return Call(value).tensors()

    def only_fields(self) -> tuple[Value, ...]:
        """The tensors of the tuple that is the only operand."""
        if len(self.inputs) != 1:
            raise InputError(f"expected one tuple of tensors, got {len(self.inputs)} arguments")
        return self.fields()

    # -- attributes ------------------------------------------------------------------------------------------
    def take(self, name: str, default: Any = REQUIRED) -> Any:
        """The raw value of an attribute."""
        if name not in self._attrs:
            if default is REQUIRED:
                raise InputError(f"expected attribute '{name}', got none")
            return default
        return self._attrs.pop(name)

    def taken(self, *names: str) -> dict[str, Any]:
        """The raw values of those of the named attributes that are set."""
        return {name: value for name in names if (value := self.take(name, None)) is not None}

    def drop(self, *names: str) -> None:
        """Forget attributes that say nothing the operands do not."""
        for name in names:
            self._attrs.pop(name, None)

    def give(self, name: str, value: Any) -> None:
        """Set an attribute for a rule that the rest is handed on to."""
        self._attrs[name] = value

    def sets(self, name: str) -> bool:
        """Return whether the attribute is set and not read yet."""
        return name in self._attrs

    def finish(self) -> None:
        """Raise InputError when attributes are left that were not read."""
        if self._attrs:
            raise InputError(f"unknown attribute {', '.join(map(repr, self._attrs))}")

    def integer(self, name: str, default: Any = REQUIRED) -> Any:
        """An integer; None only as a default or where the file says so and the default is None."""
        value = self.take(name, default)
        if value is None and default is None:
            return None
        return _checked(name, value, "an integer", type(value) is int)

    def real(self, name: str, default: Any = REQUIRED) -> float:
        """A floating-point number."""
        value = self.take(name, default)
        return float(_checked(name, value, "a number", type(value) in (int, float)))

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        """A truth value, possibly written 0 or 1."""
        value = self.take(name, default)
        good = isinstance(value, bool | int) and value in (True, False)
        return bool(_checked(name, value, "a truth value", good))

    def text(self, name: str, default: Any = REQUIRED) -> str:
        """A string."""
        value = self.take(name, default)
        return str(_checked(name, value, "a string", isinstance(value, str)))

    def choice(self, name: str, known: Sequence[str], default: Any = REQUIRED) -> str:
        """A string among those known."""
        value = self.text(name, default)
        if value not in known:
            raise InputError(f"expected {name} among {', '.join(known)}, got '{value}'")
        return value

    def integers(self, name: str, default: Any = REQUIRED) -> Any:
        """A tuple of integers; one integer counts as a tuple of one. None as for `integer`."""
        value = self.take(name, default)
        if value is None and default is None:
            return None
        if type(value) is int:
            return (value,)
        return _checked(name, value, "a list of integers", _is_tuple(value, int))

    def reals(self, name: str, default: Any = REQUIRED) -> tuple[float, ...]:
        """A tuple of numbers."""
        value = self.take(name, default)
        return tuple(map(float, _checked(name, value, "a list of numbers", _is_tuple(value, int, float))))

    def texts(self, name: str, default: Any = REQUIRED) -> tuple[str, ...]:
        """A tuple of strings."""
        value = self.take(name, default)
        return tuple(_checked(name, value, "a list of strings", _is_tuple(value, str)))

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """A tuple of pairs of integers."""
        value = self.take(name)
        good = isinstance(value, tuple) and all(_is_tuple(v, int) and len(v) == 2 for v in value)
        return tuple(_checked(name, value, "a list of integer pairs", good))

    def dtype(self, name: str, default: str = "") -> str:
        """Our name of a dtype; empty where the file leaves it to the operands."""
        value = self.text(name, default)
        return dtype_name(value) if value not in ("", "void", "handle") else ""

    def scalar(self, name: str) -> Any:
        """A number, or that of a constant tensor of one element."""
        value = self.take(name)
        array = constant_array(value)
        if array is not None and array.size == 1:
            return array.reshape(()).item()
        return _checked(name, value, "a constant scalar", type(value) in (int, float))


class Rule(Protocol):
    """Emits graph ops for one call and returns its result, or a tuple of its results."""

    def __call__(self, emit: Emitter, call: Call, /) -> Result: ...


def constant_array(value: object) -> np.ndarray | None:
    """The array of an attribute that is a tensor, which some formats wrap in a node; None for others."""
    array = getattr(value, "value", value)
    return array if isinstance(array, np.ndarray) else None


def _is_tuple(value: object, *kinds: type) -> bool:
    return isinstance(value, tuple) and all(type(v) in kinds for v in value)


def _checked(name: str, value: Any, expected: str, good: bool) -> Any:
    """`value`; InputError saying what was expected of the attribute unless it is good."""
    if good:
        return value
    array = constant_array(value)
    shown = repr(value)[:60] if array is None else f"a tensor of shape {array.shape}"
    raise InputError(f"expected attribute '{name}' to be {expected}, got {shown}")


def both_sided(padding: Sequence[int], spatial: int) -> tuple[int, ...]:
    """Padding of `spatial` dimensions, all before then all after, from one, `spatial` or twice as many."""
    if len(padding) == 1:
        return (padding[0],) * (2 * spatial)
    if len(padding) == spatial:
        return (*padding, *padding)
    if len(padding) == 2 * spatial:
        return tuple(padding)
    raise InputError(f"expected padding of 1, {spatial} or {2 * spatial} entries, got {len(padding)}")


def repeated(values: Sequence[int], count: int, name: str) -> tuple[int, ...]:
    """`values` of length `count`; a single entry stands for all."""
    if len(values) == 1:
        return tuple(values) * count
    if len(values) != count:
        raise InputError(f"expected {count} entries in '{name}', got {len(values)}")
    return tuple(values)
