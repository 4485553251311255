"""Runs mutually recursive generators on a list instead of the call stack: depth is bounded by memory only."""

from __future__ import annotations

from collections.abc import Generator
from types import GeneratorType
from typing import Any, TypeVar, cast

T = TypeVar("T")
#: A step yields the steps it needs, is sent their results, and returns its own.
Step = Generator[Any, Any, T]


def run(step: Step[T]) -> T:
    """The result of `step` and of all steps it asks for; what is no step is already a result."""
    stack: list[Step[Any]] = []
    item: Any = step
    result: Any
    while True:
        if isinstance(item, GeneratorType):
            stack.append(item)
            result = None
        else:
            result = item
        try:
            if not stack:
                return cast(T, result)
            item = stack[-1].send(result)
        except StopIteration as done:
            stack.pop()
            item = done.value
