"""Finds the shared libraries of CUDA that pip installs, then those that the loader knows."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from tilewright.runtime.errors import DeviceMissingError


def open_library(files: Sequence[str], folders: Sequence[str], what: str) -> ctypes.CDLL:
    """The first of `files` that loads: from `folders` of the `nvidia` packages, else from the loader's path.

    Raises `DeviceMissingError` that says which files were looked for.
    """
    for path in (*_installed(files, folders), *files):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue  # another place may have it; what none has is reported below
    raise DeviceMissingError(
        f"{what} is not on this machine: found none of {', '.join(files)} in the nvidia packages or on the "
        "loader's path"
    )


def _installed(files: Sequence[str], folders: Sequence[str]) -> Iterator[Path]:
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec is not None else ():
        for folder in folders:
            for file in files:
                path = Path(root, folder, file)
                if path.exists():
                    yield path
