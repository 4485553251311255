"""The protocol of problems that libraries solve, their arguments, and checks of their fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from tilewright.runtime.errors import InputError

#: element types that library kernels take
LIBRARY_DTYPES = ("float32", "float16", "bfloat16")
#: no extent, stride or size of a problem is beyond this
LIMIT = 1 << 46
#: what pointers are multiples of, at least; algorithms are asked for under this promise
POINTER_BYTES = 16


@dataclass(frozen=True)
class Argument:
    """One buffer of a library launch: its role, element type, how many elements it spans, who writes it."""

    role: str
    dtype: str
    span: int
    written: bool = False


class Problem(Protocol):
    """An operation on arrays of fixed shapes, strides and element types.

    workspace_share: bytes of workspace that it may take for each byte of its arrays, where that is more than
    what all problems may.
    """

    workspace_share: ClassVar[int]

    def arguments(self) -> tuple[Argument, ...]:
        """The buffers in the order of a launch, without the workspace."""
        ...

    def check(self) -> None:
        """Raise `InputError` where the numbers make no sense."""
        ...


_ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def nbytes(problem: Problem) -> int:
    """Bytes of the arrays of a problem, from their first element to their last."""
    return sum(a.span * _ITEM_BYTES[a.dtype] for a in problem.arguments())


def check_range(what: str, value: object, low: int, high: int = LIMIT) -> None:
    """Raise `InputError` unless `value` is an integer of that range."""
    if type(value) is not int or not low <= value <= high:
        raise InputError(f"expected {what} in {low}..{high}, got {value!r:.100}")


def check_among(what: str, value: object, known: tuple[str, ...]) -> None:
    """Raise `InputError` unless `value` is one of `known`."""
    if value not in known:
        raise InputError(f"expected {what} among {', '.join(known)}, got {value!r:.100}")
