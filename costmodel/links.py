"""The link between two devices: seconds of messages and of ring collectives over it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.ir.errors import InputError


@dataclass(frozen=True)
class Link:
    """A way between devices: per direction, `bytes_per_s` for each device or for a whole node (`per`).

    Besides its bytes a message takes `call_s` + `latency_s`, an all-reduce of n devices `call_s` +
    2 (n - 1) `latency_s`.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    call_s: float = 0.0
    per: str = "device"

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0 or not (self.latency_s >= 0 and math.isfinite(self.latency_s)):
            raise InputError(
                "expected positive bytes per second and a latency of at least 0 seconds, "
                f"got {self.bytes_per_s} and {self.latency_s}"
            )

    def messages_s(self, messages: ArrayLike, nbytes: ArrayLike) -> NDArray[Any]:
        """Seconds of so many messages with so many bytes in all, one after another on a free link."""
        start_s = np.asarray(messages) * (self.call_s + self.latency_s)
        return np.asarray(start_s + np.asarray(nbytes) / self.bytes_per_s, dtype=np.float64)

    def ring_s(self, kind: str, members: int, nbytes: float) -> float:
        """Seconds of a ring: all_reduce goes around twice, all_gather and reduce_scatter of `nbytes` once."""
        hops = (2.0 if kind == "all_reduce" else 1.0) * (members - 1)
        return self.call_s + hops * self.latency_s + hops / members * nbytes / self.bytes_per_s
