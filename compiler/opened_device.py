"""A device that several executables use: opened by the first of them, closed by the last."""

from __future__ import annotations

import threading

from tilewright.devices import open_device
from tilewright.runtime.device import Device


class OpenedDevice:
    """The device of a target with a count of its users; plans loaded on it share weights and kernels."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._lock = threading.Lock()
        self._device: Device | None = None
        self._users = 0

    def take(self) -> Device:
        """The device, opened where it is not; one more user. Raises DeviceMissingError."""
        with self._lock:
            if self._device is None:
                self._device = open_device(self.target)
            self._users += 1
            return self._device

    def give_back(self) -> None:
        """One user less; the last one closes the device."""
        with self._lock:
            self._users -= 1
            if self._users == 0 and self._device is not None:
                device, self._device = self._device, None
                device.close()
