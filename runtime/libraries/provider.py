"""The protocol every library follows, and opening one by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any, Protocol

from tilewright.runtime.errors import InputError
from tilewright.runtime.libraries.kernel import LibraryKernel


class PreparedCall(Protocol):
    """One launch of a library kernel on fixed addresses."""

    def start(self, stream: int) -> None:
        """Queue it on a CUDA stream, also on one that is being captured; allocates nothing."""
        ...

    def close(self) -> None:
        """Free what describes it; graphs captured from it stay valid."""
        ...


class Provider(Protocol):
    """An open library in one context."""

    @property
    def version(self) -> str:
        """The version that stored algorithms depend on."""
        ...

    def kernels(self, problem: Any, workspace_bytes: int) -> Iterable[LibraryKernel]:
        """The algorithms for a problem that need at most so much workspace, most promising first.

        What takes long to prepare is prepared when it is asked for.
        """
        ...

    def prepare(self, kernel: LibraryKernel, pointers: Mapping[str, int], doing: str) -> PreparedCall:
        """A launch on these addresses by role."""
        ...

    def close(self) -> None:
        """Free the library's handle; the context must be current."""
        ...


#: modules and classes of the libraries, loaded when one is opened
_PROVIDERS = {"cublaslt": ("cublaslt", "CublasLt"), "cudnn": ("cudnn", "Cudnn")}


def open_provider(name: str) -> Provider:
    """The library of this name in the current context; raises `DeviceMissingError` where it is missing."""
    if name not in _PROVIDERS:
        raise InputError(f"expected a library among {', '.join(_PROVIDERS)}, got {name!r:.100}")
    module, kind = _PROVIDERS[name]
    opened: Provider = getattr(import_module(f"tilewright.runtime.libraries.{module}"), kind)()
    return opened
