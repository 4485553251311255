"""`tilewright db`: merge, export and import tuning databases."""

from __future__ import annotations

import argparse
from pathlib import Path

from tilewright.ir import InputError
from tilewright.tuning_database import TuningDatabase
from tilewright.tuning_records import write_lines
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
    """Each of the other files is taken whole or not at all."""
    with _opened(a) as db:
        for path in a.others:
            if not Path(path).is_file():
                raise InputError("no such file", where=path)
            with TuningDatabase.open(path) as other:
                print(f"{db.merge(other)} entries taken from {path} into {db.path}")


def run_export(a: argparse.Namespace) -> None:
    """All entries of the database, or those of one network."""
    if a.used_by:
        entries = entries_saved_in(a.used_by)
    else:
        with _opened(a) as db:
            entries = db.entries()
    write_lines(a.output, entries)
    print(f"{len(entries.rows)} measurements and {len(entries.choices)} choices written to {a.output}")


def run_import(a: argparse.Namespace) -> None:
    """Each file is taken whole or not at all."""
    with _opened(a) as db:
        for path in a.files:
            saved = is_saved_executable(path)
            count = db.take(entries_saved_in(path)) if saved else db.import_lines(path)
            print(f"{count} entries taken from {path} into {db.path}")


def _opened(a: argparse.Namespace) -> TuningDatabase:
    """The database that is written or read whole; raises InputError for a saved executable."""
    if a.tuning_db and is_saved_executable(a.tuning_db):
        raise InputError("expected a database, got a saved executable", where="--tuning-db")
    return TuningDatabase.open(a.tuning_db)
