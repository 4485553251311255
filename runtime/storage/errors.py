"""What storage does wrong: data that cannot be read, written or trusted, told with file, step and offset."""

from __future__ import annotations

from tilewright.runtime.errors import DeviceError


class StorageError(DeviceError):
    """Storage refused a read or a write, or gave other bytes than were written; the message says where."""
