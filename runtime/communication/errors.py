"""What goes wrong between processes; devices raise it from `load` and `run` like their other errors."""

from __future__ import annotations

from tilewright.runtime.errors import DeviceError


class CommunicationError(DeviceError):
    """Ranks could not communicate: which rank says so, in which launch, with which peer, after how long.

    After it the communicator does no more work: what peers have sent and not yet received is unknown.
    """


class PeerFailedError(CommunicationError):
    """Another rank has told that it failed, or its process is gone."""


class DisagreementError(CommunicationError):
    """The ranks run programs that do not belong together; the message is the same on all of them."""
