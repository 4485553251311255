"""Attributes of one Relay call: typed reads with Relay's defaults, and a complaint about unread ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.frontends.relay.reading.ast import Attr, Constant
from tilewright.ir.errors import InputError
from tilewright.ir.types import dtype_name

REQUIRED: Any = object()


class Attributes:
    """Reads attributes by name. A default stands where the text leaves one out: printers omit defaults."""

    def __init__(self, values: Mapping[str, Attr]) -> None:
        self._values = dict(values)

    def take(self, name: str, default: Any = REQUIRED) -> Any:
        """The raw value."""
        if name not in self._values:
            if default is REQUIRED:
                raise InputError(f"expected attribute '{name}', got none")
            return default
        return self._values.pop(name)

    def drop(self, *names: str) -> None:
        """Forget attributes that say nothing the operands do not."""
        for name in names:
            self._values.pop(name, None)

    def give(self, name: str, value: Attr) -> None:
        """Set an attribute for a rule that the rest is handed on to."""
        self._values[name] = value

    def finish(self) -> None:
        """Raise InputError when attributes are left that were not read."""
        if self._values:
            raise InputError(f"unknown attribute {', '.join(map(repr, self._values))}")

    def integer(self, name: str, default: Any = REQUIRED) -> Any:
        """An integer; None only as a default or where the file says so and the default is None."""
        value = self.take(name, default)
        if value is None and default is None:
            return None
        if type(value) is not int:
            raise _wrong(name, "an integer", value)
        return value

    def real(self, name: str, default: Any = REQUIRED) -> float:
        """A floating-point number."""
        value = self.take(name, default)
        if type(value) not in (int, float):
            raise _wrong(name, "a number", value)
        return float(value)

    def flag(self, name: str, default: Any = REQUIRED) -> bool:
        """A truth value, possibly written 0 or 1."""
        value = self.take(name, default)
        if value not in (True, False) or not isinstance(value, bool | int):
            raise _wrong(name, "a truth value", value)
        return bool(value)

    def text(self, name: str, default: Any = REQUIRED) -> str:
        """A string."""
        value = self.take(name, default)
        if not isinstance(value, str):
            raise _wrong(name, "a string", value)
        return value

    def integers(self, name: str, default: Any = REQUIRED) -> Any:
        """A tuple of integers; one integer counts as a tuple of one."""
        value = self.take(name, default)
        if value is None and default is None:
            return None
        if type(value) is int:
            return (value,)
        if not isinstance(value, tuple) or any(type(v) is not int for v in value):
            raise _wrong(name, "a list of integers", value)
        return value

    def reals(self, name: str, default: Any = REQUIRED) -> tuple[float, ...]:
        """A tuple of numbers."""
        value = self.take(name, default)
        if not isinstance(value, tuple) or any(type(v) not in (int, float) for v in value):
            raise _wrong(name, "a list of numbers", value)
        return tuple(float(v) for v in value)

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """A tuple of pairs of integers."""
        value = self.take(name)
        if not isinstance(value, tuple) or not all(_is_pair(v) for v in value):
            raise _wrong(name, "a list of integer pairs", value)
        return value

    def dtype(self, name: str, default: str = "") -> str:
        """Our name of a dtype; empty where the file leaves it to the operands."""
        value = self.text(name, default)
        return dtype_name(value) if value not in ("", "void", "handle") else ""

    def scalar(self, name: str) -> Any:
        """The value of a constant scalar tensor (or of a plain number)."""
        value = self.take(name)
        if isinstance(value, Constant) and value.value.size == 1:
            return value.value.reshape(()).item()
        if type(value) in (int, float):
            return value
        raise _wrong(name, "a constant scalar", value)


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(type(v) is int for v in value)


def _wrong(name: str, expected: str, value: object) -> InputError:
    shown = f"a tensor of shape {value.value.shape}" if isinstance(value, Constant) else repr(value)[:60]
    return InputError(f"expected attribute '{name}' to be {expected}, got {shown}")


def four_sided(padding: Sequence[int]) -> tuple[int, ...]:
    """Padding of two spatial dimensions as (top, left, bottom, right), from one, two or four entries."""
    if len(padding) == 1:
        return (padding[0],) * 4
    if len(padding) == 2:
        return (padding[0], padding[1], padding[0], padding[1])
    if len(padding) == 4:
        return tuple(padding)
    raise InputError(f"expected padding of 1, 2 or 4 entries, got {len(padding)}")


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


def as_array(value: object) -> np.ndarray:
    """The array of a constant attribute."""
    if isinstance(value, Constant):
        return value.value
    raise InputError(f"expected a constant tensor, got {value!r}")
