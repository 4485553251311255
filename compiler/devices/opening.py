"""Opens the runtime device that a target asks for, and shares it between executables."""

from __future__ import annotations

from tilewright.ir import InputError
from tilewright.runtime.interface.device import Device
from tilewright.runtime.shared_memory import Shared


def open_device(target: str) -> Device:
    """The device for a target such as `cuda:sm_90a`, `opencl`, `opencl:pocl`, `emulator:sm_90a` or `null`.

    Raises DeviceMissingError where this machine has none, InputError for an unknown target.
    """
    kind, _, name = target.partition(":")
    if kind == "cuda":
        from tilewright.runtime.cuda.device import CudaDevice

        return CudaDevice()
    if kind == "opencl":
        from tilewright.codegen.builders.cache import BinaryCache
        from tilewright.runtime.opencl.device import OpenClDevice

        return OpenClDevice(name or None, store=BinaryCache())
    if kind == "emulator":
        from tilewright.codegen.builders.emulator_build import EmulatorBuilder
        from tilewright.runtime.emulator.device import EmulatorDevice

        return EmulatorDevice(EmulatorBuilder())
    if kind == "null":
        from tilewright.runtime.null.device import NullDevice

        return NullDevice()
    raise InputError(f"expected a target with a device (cuda, opencl, emulator, null), got '{target}'")


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
