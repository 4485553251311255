"""The functions of NCCL as one rank calls them: versions, ids, and every result turned into an error."""

from __future__ import annotations

import ctypes
from typing import Any

from tilewright.runtime.communication import nccl_api as api
from tilewright.runtime.errors import CommunicationError, DeviceError


class Nccl:
    """NCCL for one rank; `library` is what `open_nccl` gives, which is called where there is none.

    Raises `DeviceMissingError` without NCCL and `DeviceError` for one that is too old.
    """

    def __init__(self, rank: int, library: Any = None) -> None:
        self.rank = rank
        self._library = api.open_nccl() if library is None else library
        found = ctypes.c_int(0)
        self.call("ncclGetVersion", ctypes.byref(found), doing="opening NCCL")
        self.version = _version_text(found.value)
        if found.value < api.LEAST_VERSION:
            least = _version_text(api.LEAST_VERSION)
            raise DeviceError(f"expected NCCL of at least version {least}, got {self.version}")

    def call(self, function: str, *arguments: Any, doing: str, handle: ctypes.c_void_p | None = None) -> None:
        """Call a function; raises as `check`. handle: the communicator that may know more of a failure."""
        self.check(function, getattr(self._library, function)(*arguments), doing, handle)

    def check(self, function: str, status: int, doing: str, handle: ctypes.c_void_p | None = None) -> None:
        """Raise `CommunicationError` for any result but success and being under way."""
        if status in (api.SUCCESS, api.IN_PROGRESS):
            return
        text = self._library.ncclGetErrorString(status) or b""
        last = self._library.ncclGetLastError(handle) or b""
        details = "; ".join(t.decode(errors="replace").strip() for t in (text, last) if t)
        name = api.RESULTS.get(status, str(status))
        raise CommunicationError(f"rank {self.rank}: {doing}: {function} failed: {name} ({details})")

    def unique_id(self) -> str:
        """Text by which the ranks of a new communicator find each other."""
        unique = api.UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(unique), doing="opening the world of GPUs")
        return bytes(unique.internal).hex()

    def begin_joining(self, text: str, size: int, position: int, doing: str) -> ctypes.c_void_p:
        """A communicator of `size` ranks that is being connected: `status` tells when it is."""
        unique = api.UniqueId.from_buffer_copy(bytes.fromhex(text))
        handle, config = ctypes.c_void_p(), api.nonblocking_config()
        status = self._library.ncclCommInitRankConfig(
            ctypes.byref(handle), size, unique, position, ctypes.byref(config)
        )
        self.check("ncclCommInitRankConfig", status, doing)
        return handle

    def status(self, handle: ctypes.c_void_p, doing: str) -> int:
        """What became of the latest call with a communicator, and of its work on the device."""
        status = ctypes.c_int(api.SUCCESS)
        self.call("ncclCommGetAsyncError", handle, ctypes.byref(status), doing=doing, handle=handle)
        return status.value

    def abort(self, handle: ctypes.c_void_p) -> None:
        """Stop a communicator's work and free it; whatever comes of it, there is nothing left to do."""
        self._library.ncclCommAbort(handle)


def _version_text(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
