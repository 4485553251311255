"""Numbers and functions of the C interface of NCCL (nccl.h) as ctypes takes them; finding the library."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import Any

from tilewright.runtime.communication import nccl_api as api
from tilewright.runtime.errors import CommunicationError, DeviceError, DeviceMissingError
from tilewright.runtime.libraries.locate import open_library


class Nccl:
    """NCCL for one rank; `library` is what `open_nccl` gives, which is called where there is none.

    Raises `DeviceMissingError` without NCCL and `DeviceError` for one that is too old.
    """

    def __init__(self, rank: int, library: Any = None) -> None:
        self.rank = rank
        self._library = api.open_nccl() if library is None else library
        version = ctypes.c_int(0)
        self.call("ncclGetVersion", ctypes.byref(version), doing="opening NCCL")
        self.version = _version_text(version.value)
        if version.value < api.LEAST_VERSION:
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
        """Return the state of the latest call with a communicator, and of its work on the device."""
        status = ctypes.c_int(api.SUCCESS)
        self.call("ncclCommGetAsyncError", handle, ctypes.byref(status), doing=doing, handle=handle)
        return status.value

    def abort(self, handle: ctypes.c_void_p) -> None:
        """Stop a communicator's work and free it; whatever comes of it, there is nothing left to do."""
        self._library.ncclCommAbort(handle)


def _version_text(number: int) -> str:
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


#: multicast objects need driver rights that containers often lack
MULTICAST_VARIABLE = "NCCL_NVLS_ENABLE"
UNIQUE_ID_BYTES = 128
#: ncclResult_t
SUCCESS, IN_PROGRESS = 0, 7
RESULTS = {
    1: "ncclUnhandledCudaError", 2: "ncclSystemError", 3: "ncclInternalError", 4: "ncclInvalidArgument",
    5: "ncclInvalidUsage", 6: "ncclRemoteError", 7: "ncclInProgress", 8: "ncclTimeout",
}  # fmt: skip
#: ncclRedOp_t
REDUCTION = {"sum": 0, "max": 2}
#: ncclDataType_t of what is reduced; what is only moved are bytes
DATA_TYPE = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
    "float64": 8, "bfloat16": 9, "bool": 1,
}  # fmt: skip
BYTE = 1
#: least version, as ncclGetVersion codes it: 2.18 has all that is used here
LEAST_VERSION = 21800
_CONFIG_MAGIC = 0xCAFEBEEF
_UNSET = -(1 << 31)


class UniqueId(ctypes.Structure):
    """ncclUniqueId: how the ranks of one communicator find each other."""

    _fields_ = (("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES),)


class Config(ctypes.Structure):
    """ncclConfig_t as of 2.18; it says its size and version, and later versions only add fields behind."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga_cluster_size", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_char_p),
        ("split_share", ctypes.c_int),
    )


def nonblocking_config() -> Config:
    """Calls return at once and are asked for their end, so that a peer that never comes can be given up."""
    size = ctypes.sizeof(Config)
    return Config(size, _CONFIG_MAGIC, LEAST_VERSION, 0, _UNSET, _UNSET, _UNSET, None, _UNSET)


_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_ints = ctypes.POINTER(ctypes.c_int)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (_ints,),
    "ncclGetUniqueId": (ctypes.POINTER(UniqueId),),
    "ncclCommInitRankConfig": (
        ctypes.POINTER(ctypes.c_void_p), _int, UniqueId, _int, ctypes.POINTER(Config),
    ),
    "ncclCommGetAsyncError": (_pointer, _ints),
    "ncclCommFinalize": (_pointer,),
    "ncclCommDestroy": (_pointer,),
    "ncclCommAbort": (_pointer,),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclSend": (_pointer, _size, _int, _int, _pointer, _pointer),
    "ncclRecv": (_pointer, _size, _int, _int, _pointer, _pointer),
    "ncclAllGather": (_pointer, _pointer, _size, _int, _pointer, _pointer),
    "ncclAllReduce": (_pointer, _pointer, _size, _int, _int, _pointer, _pointer),
    "ncclReduce": (_pointer, _pointer, _size, _int, _int, _int, _pointer, _pointer),
    "ncclReduceScatter": (_pointer, _pointer, _size, _int, _int, _pointer, _pointer),
}  # fmt: skip
_FILE = "libnccl.so.2"


def open_nccl() -> ctypes.CDLL:
    """The library with its functions declared; raises `DeviceMissingError` where there is none."""
    os.environ.setdefault(MULTICAST_VARIABLE, "0")  # read when the library is first used
    library = _find()
    for name, arguments in _SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    for name, argument in (("ncclGetErrorString", ctypes.c_int), ("ncclGetLastError", ctypes.c_void_p)):
        function = getattr(library, name)
        function.argtypes, function.restype = (argument,), ctypes.c_char_p
    return library


def _find() -> ctypes.CDLL:
    """From the wheels of NVIDIA, beside PyTorch, else where the loader knows one."""
    spec = importlib.util.find_spec("torch")
    beside = [str(Path(r, "lib", _FILE)) for r in (spec.submodule_search_locations or ())] if spec else []
    try:
        return open_library((_FILE,), ("nccl/lib", "cu13/lib"), "NCCL")
    except DeviceMissingError:
        for path in filter(os.path.exists, beside):
            try:
                return ctypes.CDLL(path)
            except OSError as error:
                raise DeviceMissingError(f"the NCCL beside torch does not load: {error}") from None
    raise DeviceMissingError(
        f"NCCL, by which GPUs communicate, is not on this machine: found no {_FILE} in the nvidia packages, "
        "beside torch or on the loader's path; pip install 'tilewright[nccl]'"
    )
