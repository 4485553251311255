"""`tilewright db`: merge, export and import tuning databases."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from tilewright.ir import InputError
from tilewright.tuning.database.database import TuningDatabase, named_tuning_database
from tilewright.tuning.database.records import Entries, read_lines, write_lines
from tilewright.tuning.database.travel import entries_saved_in, is_saved_executable


def run_merge(a: argparse.Namespace) -> None:
    """All of the other files are taken or nothing."""
    entries = [(path, _entries_in(path)) for path in a.others]
    _take(a, entries)


def run_export(a: argparse.Namespace) -> None:
    """All entries of the database, or those of one network; raises InputError for a file onto itself."""
    source = a.used_by or named_tuning_database(a.tuning_db)[0]
    if _is_same_file(a.output, source):
        raise InputError("expected another file to write than the one that is read", where=a.output)
    if a.used_by:
        entries = entries_saved_in(a.used_by)
    else:
        _reject_saved(a)
        entries = _entries_in(source)
    write_lines(a.output, entries)
    print(f"{len(entries.rows)} measurements and {len(entries.choices)} choices written to {a.output}")


def run_import(a: argparse.Namespace) -> None:
    """All of the files are taken or nothing."""
    _take(a, [(p, entries_saved_in(p) if is_saved_executable(p) else read_lines(p)) for p in a.files])


def _take(a: argparse.Namespace, entries_of: Sequence[tuple[str, Entries]]) -> None:
    """Bring entries into the database, which is made where it is missing, now that all were read."""
    _reject_saved(a)
    with TuningDatabase.open(a.tuning_db) as db:
        for path, entries in entries_of:
            print(f"{db.take(entries)} entries taken from {path} into {db.path}")


def _entries_in(path: str | os.PathLike[str]) -> Entries:
    """The entries of a database; raises InputError where there is none, and makes none."""
    file = Path(path)
    if not file.is_file():
        raise InputError("no such tuning database", where=str(path))
    if not file.stat().st_size:
        raise InputError("expected a tuning database, got an empty file", where=str(path))
    with TuningDatabase.open(path) as db:
        return db.entries()


def _is_same_file(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False


def _reject_saved(a: argparse.Namespace) -> None:
    """Raise InputError where the database that is written or read whole is a saved executable."""
    if a.tuning_db and is_saved_executable(a.tuning_db):
        raise InputError("expected a database, got a saved executable", where="--tuning-db")
