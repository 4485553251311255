"""The errors that every part of Tilewright raises, each with one clear sentence.

They stand at the very bottom: the runtime imports nothing, and `tilewright.ir.errors` takes them from here.
"""

from __future__ import annotations


class TilewrightError(Exception):
    """Base of all errors that are reported as one clear sentence."""


class InputError(TilewrightError):
    """The input or the arguments are bad: a network, an array, a plan, a saved file (exit code 2).

    `where` names the place: a file, `file:line:column`, or an op.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class UnsupportedError(InputError):
    """The input is valid, but uses something this version does not implement."""


class WorkError(TilewrightError):
    """The work failed: wrong result, no device, a broken pass (exit code 1)."""


class DeviceError(WorkError):
    """The device or its driver refused work; the message names the call, the kernel and its origin."""


class DeviceMissingError(DeviceError):
    """There is no such device, driver or driver package on this machine."""


class DeviceLostError(DeviceError):
    """The device or its driver is gone: everything on it can only be closed, and opened anew."""


class OutOfMemoryError(DeviceError):
    """The device cannot hold the plan; the message says how much was asked and how much is free."""


class KernelBuildError(DeviceError):
    """The device's own compiler refused a kernel."""


class StorageError(DeviceError):
    """Storage refused a read or a write, or gave other bytes than were written; the message says where."""


class CommunicationError(DeviceError):
    """Ranks could not communicate: which rank says so, in which launch, with which peer, after how long.

    After it the communicator does no more work: what peers have sent and not yet received is unknown.
    """


class PeerFailedError(CommunicationError):
    """Another rank reported that it failed, or its process is gone."""


class DisagreementError(CommunicationError):
    """The ranks run programs that do not belong together; the message is the same on all of them."""
