"""Time of a ring all-reduce inside a node: start-up time and bus rate per device count, fitted to NCCL."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tilewright.ir.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RingTable:
    """Per number of devices (ascending): start-up seconds and bus bytes/s of `alpha + 2(n-1)/n S/beta`."""

    name: str
    devices: tuple[int, ...]
    alpha_s: tuple[float, ...]
    bus_bytes_per_s: tuple[float, ...]
    source: str

    def start_up_s(self, ranks: ArrayLike) -> Array:
        """Seconds before data flows; zero for one rank, beyond the table it grows by its mean step."""
        n = np.asarray(ranks, dtype=np.float64)
        slope = (self.alpha_s[-1] - self.alpha_s[0]) / (self.devices[-1] - self.devices[0])
        inside = np.interp(n, self.devices, self.alpha_s)
        beyond = np.maximum(n - self.devices[-1], 0.0) * slope
        return np.where(n > 1, inside + beyond, 0.0)

    def bus_rate(self, ranks: ArrayLike) -> Array:
        """Bus bytes/s; beyond the table its last entry. Counts between two entries are interpolated."""
        return np.interp(np.asarray(ranks, dtype=np.float64), self.devices, self.bus_bytes_per_s)

    def all_reduce_s(self, ranks: ArrayLike, size_bytes: ArrayLike, share: float = 1.0) -> Array:
        """Seconds of one all-reduce of `size_bytes` per rank; shapes broadcast, one rank takes no time.

        share: of the bus rate that is reached.
        """
        n = np.asarray(ranks, dtype=np.float64)
        size = np.asarray(size_bytes, dtype=np.float64)
        return self.start_up_s(n) + ring_share(n) * size / (self.bus_rate(n) * share)


def ring_share(ranks: ArrayLike) -> Array:
    """Return the bytes that a ring all-reduce moves over each link, as a multiple of the size: 2(n-1)/n."""
    n = np.asarray(ranks, dtype=np.float64)
    return 2.0 * (n - 1.0) / n


_SOURCE = (
    "least squares on log time over 1,024 sizes from 1 MiB to 1 GiB, in place, in the NCCL tables of "
    "github.com/VIA-Research/vTrain commit f8dda84, trace/{}"
)

#: A100 with NVSwitch; mean error of the fits 1.4-1.8 %
A100 = RingTable(
    "a100",
    (2, 3, 4, 5, 6, 7, 8),
    (45.1e-6, 54.4e-6, 54.1e-6, 59.3e-6, 67.3e-6, 71.5e-6, 79.4e-6),
    (192.8e9, 209.5e9, 218.3e9, 222.3e9, 224.4e9, 226.2e9, 227.3e9),
    _SOURCE.format("a100"),
)
#: V100 with NVLink bridges: the rate follows how many links a ring of n can use; error below 1.2 %
V100 = RingTable(
    "v100",
    (2, 3, 4, 5, 6, 7, 8),
    (22.7e-6, 33.5e-6, 46.1e-6, 41.6e-6, 50.3e-6, 65.7e-6, 80.1e-6),
    (22.57e9, 45.24e9, 85.81e9, 37.11e9, 45.89e9, 87.54e9, 136.0e9),
    _SOURCE.format("v100"),
)
_TABLES = {table.name: table for table in (A100, V100)}


def ring_table(name: str) -> RingTable:
    """The table called `name`; raises InputError naming the known ones."""
    table = _TABLES.get(name)
    if table is None:
        raise InputError(f"expected a ring table named {' or '.join(_TABLES)}, got {name!r}")
    return table
