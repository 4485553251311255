"""Resources of the machine that this process may use: cores, and the folder for what it keeps.

The runtime, which runs plans without the compiler, has its own of the same names (`runtime/machine.py`).
"""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Cores this process may use; at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cache_folder() -> Path:
    """`$TILEWRIGHT_CACHE_DIR`, else `$XDG_CACHE_HOME/tilewright`, else `~/.cache/tilewright`."""
    own, shared = os.environ.get("TILEWRIGHT_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else (Path(shared) if shared else Path.home() / ".cache") / "tilewright"
