"""Folders of compiled kernels: written where there is time, taken where a GPU waits.

A folder is a cache of compiled kernels, which are looked up by their text, architecture and compiler. What is
missing in it is compiled as ever, so it changes how long a row takes to prepare and nothing else. The weights
of networks are not in it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from tilewright.ir import InputError


def use_compiled(a: argparse.Namespace) -> None:
    """Keep compiled kernels of this process and of those it starts in the folder that was named, if one was.

    Raises InputError where a folder to be taken is not there.
    """
    folder = a.only_compile or a.compiled
    if folder is None:
        return
    if a.compiled is not None and not Path(folder).is_dir():
        raise InputError("expected a folder that bench --only-compile wrote", where=folder)
    os.environ["TILEWRIGHT_CACHE_DIR"] = str(Path(folder).resolve())
