"""A device that several executables use: opened by the first of them, closed by the last."""

from __future__ import annotations

from tilewright.running.devices import open_device
from tilewright.runtime.interface.device import Device
from tilewright.runtime.shared_memory import Shared


class OpenedDevice:
    """The device of a target with a count of its users; plans loaded on it share weights and kernels."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._device: Shared[Device] = Shared()

    def take(self) -> Device:
        """The device, opened where it is not; one more user. Raises DeviceMissingError."""
        return self._device.take(self.target, lambda: open_device(self.target))

    def give_back(self) -> None:
        """One user less; the last one closes the device."""
        self._device.give_back(self.target, lambda device: device.close())
