"""Errors of the runtime; the compiler layer maps `RuntimeInputError` to exit code 2, the others to 1."""

from __future__ import annotations


class RuntimeInputError(Exception):
    """What the caller gave is bad: an array, a plan, a saved file."""


class DeviceError(Exception):
    """The device or its driver refused work; the message names the call, the kernel and its origin."""


class DeviceMissingError(DeviceError):
    """There is no such device, driver or driver package on this machine."""


class DeviceLostError(DeviceError):
    """The device or its driver is gone: everything on it can only be closed, and opened anew."""


class OutOfMemoryError(DeviceError):
    """The device cannot hold the plan; the message says how much was asked and how much is free."""


class KernelBuildError(DeviceError):
    """The device's own compiler refused a kernel."""
