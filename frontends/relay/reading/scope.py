"""Names in nested scopes, with constant-time lookup however deep the nesting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Scope(Generic[T]):
    """Each name holds its visible value; leaving a scope puts back what its bindings hid."""

    def __init__(self) -> None:
        self._visible: dict[str, T] = {}
        self._hidden: list[tuple[str, T | None]] = []

    def bind(self, name: str, value: T) -> None:
        """Make `value` visible as `name` until the innermost scope is left."""
        self._hidden.append((name, self._visible.get(name)))
        self._visible[name] = value

    def find(self, name: str) -> T | None:
        """The visible value of `name`."""
        return self._visible.get(name)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A nested scope."""
        depth = len(self._hidden)
        try:
            yield
        finally:
            while len(self._hidden) > depth:
                name, before = self._hidden.pop()
                if before is None:
                    del self._visible[name]
                else:
                    self._visible[name] = before
