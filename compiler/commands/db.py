"""`tilewright db`: merge, export and import tuning databases."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from tilewright.ir import InputError
from tilewright.tuning_database import TuningDatabase, named_tuning_database
from tilewright.tuning_records import Entries, read_lines, write_lines
from tilewright.tuning_travel import entries_saved_in, is_saved_executable


def add_db(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command and its actions."""
    p = sub.add_parser("db", help="merge, export and import tuning databases")
    actions = p.add_subparsers(dest="db_action", required=True, metavar="ACTION")
    merge = actions.add_parser("merge", help="take the entries of other databases that are missing or better")
    merge.add_argument(
        "others", nargs="+", metavar="FILE", help="databases to take from; they stay as they are"
    )
    merge.set_defaults(action=run_merge)
    export = actions.add_parser("export", help="write entries as JSON lines")
    export.add_argument("output", metavar="FILE", help="file of JSON lines to write")
    export.add_argument(
        "--used-by",
        metavar="NET.tw",
        help="only the entries of one network: those that travel with this saved executable",
    )
    export.set_defaults(action=run_export)
    imported = actions.add_parser("import", help="take entries from JSON lines or saved executables")
    imported.add_argument(
        "files", nargs="+", metavar="FILE", help="exported lines or saved executables (.tw)"
    )
    imported.set_defaults(action=run_import)
    for action in (merge, export, imported):
        action.add_argument(
            "--tuning-db",
            metavar="FILE",
            help="the database (default: $TILEWRIGHT_TUNING_DB, else in the cache)",
        )


def run_merge(a: argparse.Namespace) -> None:
    """All of the other files are taken or nothing."""
    found = [(path, _entries_in(path)) for path in a.others]
    _take(a, found)


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


def _take(a: argparse.Namespace, found: Sequence[tuple[str, Entries]]) -> None:
    """Bring entries into the database, which is made where it is missing, now that all were read."""
    _reject_saved(a)
    with TuningDatabase.open(a.tuning_db) as db:
        for path, entries in found:
            print(f"{db.take(entries)} entries taken from {path} into {db.path}")


def _entries_in(path: str | os.PathLike[str]) -> Entries:
    """What a database holds; raises InputError where there is none, and makes none."""
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
