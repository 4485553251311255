"""A cluster: nodes of devices with links and storage, as a person describes it in a TOML file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.costmodel.links import Link
from tilewright.ir.errors import InputError

#: bytes of one parameter or activation while computing in a precision
ELEMENT_BYTES = {"fp16": 2, "bf16": 2, "fp32": 4, "tf32": 4}


@dataclass(frozen=True)
class ClusterDevice:
    """One accelerator: memory, its bandwidth, and the peak rate per precision.

    `efficiency` is the share of the peak that matrix kernels reach in a training step (above 0, at most 1).
    """

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    efficiency: float

    def flops_per_s(self, precision: str) -> float:
        """Sustained FLOP/s in `precision`; raises InputError where the record has no such peak."""
        if precision not in self.peak_flops_per_s:
            known = ", ".join(self.peak_flops_per_s)
            raise InputError(f"device {self.name} has no peak for {precision}; it has {known}")
        return self.efficiency * self.peak_flops_per_s[precision]


@dataclass(frozen=True)
class Storage:
    """Storage with its bandwidths, shared evenly by `devices` devices of a node.

    Half duplex: reading and writing exclude each other; full: both at once.
    """

    read_bytes_per_s: float
    write_bytes_per_s: float
    capacity_bytes: float
    duplex: str
    devices: int

    @property
    def device_read_bytes_per_s(self) -> float:
        """Bytes per second that one device reads while all that share the storage read."""
        return self.read_bytes_per_s / self.devices

    @property
    def device_write_bytes_per_s(self) -> float:
        """Bytes per second that one device writes while all that share the storage write."""
        return self.write_bytes_per_s / self.devices

    @property
    def device_capacity_bytes(self) -> float:
        """One device's share of the capacity."""
        return self.capacity_bytes / self.devices


@dataclass(frozen=True)
class Cluster:
    """Equal nodes of equal devices; `printed_link` (intra or inter) is the printed model's one link."""

    name: str
    nodes: int
    devices_per_node: int
    device: ClusterDevice
    intra: Link
    inter: Link
    storage: Storage
    printed_link: str = "inter"

    @property
    def devices(self) -> int:
        """Devices of all nodes."""
        return self.nodes * self.devices_per_node

    @property
    def printed_bytes_per_s(self) -> float:
        """BW_P2P of the printed model."""
        return (self.intra if self.printed_link == "intra" else self.inter).bytes_per_s
