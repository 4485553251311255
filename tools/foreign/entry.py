"""Descriptions of foreign networks: how to build each, what it is fed, and how exact it can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.tools.foreign.ways import WAYS

#: norm of the difference over the norm, against torch in float64
TOLERANCE: Mapping[str, float] = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}


@dataclass(frozen=True)
class Feed:
    """One input without its batch dimension: standard normal floats, or integers in [0, below)."""

    shape: tuple[int, ...]
    below: int = 0


@dataclass(frozen=True)
class ForeignNetwork:
    """A network of a foreign package with random weights.

    build: gives the module; its inputs are the feeds in order, with the batch as first dimension.
    names: the keywords the feeds are passed by; without any they are positional.
    tolerance: relative errors that differ from the usual ones, by precision; `because` says why.
    """

    name: str
    family: str
    package: str
    build: Callable[[], Any]
    feeds: tuple[Feed, ...]
    names: tuple[str, ...] = ()
    tolerance: Mapping[str, float] = field(default_factory=dict)
    because: str = ""

    @property
    def ways(self) -> tuple[str, ...]:
        """All ways that lead from torch."""
        return tuple(WAYS)

    @property
    def batched(self) -> bool:
        """Return whether other batches than one are possible."""
        return True

    def limit(self, precision: str) -> float:
        """The relative error that is still right."""
        return self.tolerance.get(precision, TOLERANCE[precision])


def image(size: int, channels: int = 3) -> tuple[Feed, ...]:
    """One square image."""
    return (Feed((channels, size, size)),)


def tokens(length: int, below: int) -> tuple[Feed, ...]:
    """One sequence of token numbers."""
    return (Feed((length,), below),)
