"""Runs mutually recursive generators on a list instead of the call stack: depth is bounded by memory only."""

from __future__ import annotations

from collections.abc import Generator
from types import GeneratorType
from typing import Any, TypeVar

T = TypeVar("T")
#: A step yields the steps it needs, is sent their results, and returns its own.
Step = Generator[Any, Any, T]


def run(step: Step[T] | T) -> T:
    """The result of `step` and of all steps it asks for; what is no step is already a result."""
    stack: list[Step[Any]] = []
    wanted: Any = step
    while True:
        if isinstance(wanted, GeneratorType):
            stack.append(wanted)
            result = None
        else:
            result = wanted
        try:
            if not stack:
                answer: T = result
                return answer
            wanted = stack[-1].send(result)
        except StopIteration as done:
            stack.pop()
            wanted = done.value
