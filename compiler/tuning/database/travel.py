"""Entries of a tuning database that travel in a saved executable, as one more of its texts."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

from tilewright.ir import InputError
from tilewright.runtime.plan.container import SavedBuckets, read_saved
from tilewright.tuning.database.records import Entries, entries_of

#: the name of the text
TEXT = "tuning"


def is_saved_executable(path: str | os.PathLike[str]) -> bool:
    """True where a file looks like one that `Executable.save` wrote."""
    return Path(path).is_file() and zipfile.is_zipfile(path)


def entries_saved_in(path: str | os.PathLike[str]) -> Entries:
    """The entries that a saved executable was compiled by; none where nothing was measured for it.

    Raises InputError for a damaged file and for entries that no database takes.
    """
    try:
        saved = read_saved(path)
    except InputError as error:
        raise InputError(str(error)) from error
    parts = saved.buckets if isinstance(saved, SavedBuckets) else (saved,)
    texts = [part.texts[TEXT] for part in parts if TEXT in part.texts]
    found = [entries_of(text, f"{os.fspath(path)} ({TEXT})") for text in texts]
    return Entries(
        tuple(row for e in found for row in e.rows), tuple(row for e in found for row in e.choices)
    )
