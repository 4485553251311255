"""Files that appear whole or not at all."""

from __future__ import annotations

import glob
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

#: age from which an unfinished file has lost its writer
ABANDONED_S = 3600.0


@contextmanager
def atomic_file(path: Path) -> Iterator[Any]:
    """A new binary file that becomes `path` when the block ends well and vanishes when it does not.

    It gets the permissions that new files get. What writers of the same path left beside it that were killed
    more than an hour ago is removed. Raises OSError where it cannot be written.
    """
    _remove_abandoned(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _remove_abandoned(path: Path) -> None:
    for left in path.parent.glob(f".{glob.escape(path.name)}.????????.part"):  # as mkstemp names them
        with suppress(OSError):
            if left.stat().st_mtime < time.time() - ABANDONED_S:
                left.unlink()
