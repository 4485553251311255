"""Setters of the fields of frozen classes with slots, for constructors that run very often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any


def slot_setters(cls: type) -> tuple[Callable[[Any, Any], None], ...]:
    """Return a function (node, value) for each field of a frozen dataclass with slots, in their order.

    The constructor that `dataclass` writes sets each field by name through `object.__setattr__`; these go to
    the slots themselves, which takes half of the time.
    """
    return tuple(cls.__dict__[f.name].__set__ for f in fields(cls))
