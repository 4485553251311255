"""The part of the machine that this process may use: cores, and folders for what is kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Cores this process may use; at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder(variable: str = "TILEWRIGHT_CACHE_DIR", name: str = "tilewright") -> Path:
    """The folder that the environment variable names, else `$XDG_CACHE_HOME/name`, else `~/.cache/name`."""
    own, shared = os.environ.get(variable), os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else (Path(shared) if shared else Path.home() / ".cache") / name
