"""The SQLite file of a tuning database: opening, making and checking it, and moving a damaged one aside.

Nothing else may open the file: closing any handle of it drops the locks that SQLite holds in this process.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tilewright.tuning.database.records import METHOD

#: "twdb"; tells our files from other SQLite databases
APPLICATION_ID = 0x74776462
SCHEMA_VERSION = 2
#: how long a process waits for others that write; each holds the lock for milliseconds
BUSY_S = 30.0
#: after which of that it says what it waits for
NOTICE_S = 1.0
_KEY = "program TEXT NOT NULL, device TEXT NOT NULL, driver TEXT NOT NULL, compiler TEXT NOT NULL"
_UNIQUE = "PRIMARY KEY (program, device, driver, compiler)) WITHOUT ROWID"
_TABLES = (
    f"CREATE TABLE measurement ({_KEY}, seconds REAL NOT NULL, spread_s REAL NOT NULL,"
    f" repeats INTEGER NOT NULL, measured_at INTEGER NOT NULL, checksum INTEGER NOT NULL, {_UNIQUE}",
    f"CREATE TABLE choice ({_KEY}, record TEXT NOT NULL, decided_at INTEGER NOT NULL,"
    f" checksum INTEGER NOT NULL, {_UNIQUE}",
    "CREATE TABLE method (name TEXT NOT NULL)",
)
_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")


class Damage(Exception):
    """The file is readable, but no tuning database of this version."""


#: whatever opening, reading and writing raise; SQLite's own messages quote what a damaged file holds
FAULTS = (Damage, sqlite3.Error, OSError, UnicodeDecodeError)


def is_damage(error: Exception) -> bool:
    """True where the content is at fault, not the machine."""
    # Text that is not UTF-8 is an OperationalError without a code.
    name = getattr(error, "sqlite_errorname", "" if isinstance(error, OSError) else _DAMAGED[0])
    return isinstance(error, Damage) or name.startswith(_DAMAGED)


def is_moved(error: Exception) -> bool:
    """True where the open file was moved or removed by somebody else."""
    return getattr(error, "sqlite_errorname", "") == "SQLITE_READONLY_DBMOVED"


def is_busy(error: Exception) -> bool:
    """True where another process had the file locked for as long as the connection waits."""
    return getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY")


def connect(path: Path, *, make_folder: bool, busy_s: float = BUSY_S) -> sqlite3.Connection:
    """Open the file, or make it where there is none; an empty file counts as none. Raises FAULTS.

    busy_s: how long every use of the connection waits for other processes.
    """
    if make_folder:
        path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(0, "it is a folder")
    if path.exists() and not path.is_file():
        raise OSError(0, "it is no regular file")
    if not path.parent.is_dir():
        raise NotADirectoryError(0, f"there is no folder {path.parent}")
    return _checked(sqlite3.connect(path, timeout=busy_s, isolation_level=None))


def connect_memory() -> sqlite3.Connection:
    """A database that ends with its connection."""
    return _checked(sqlite3.connect(":memory:", isolation_level=None))


def connect_anew(
    path: Path, read_all: Callable[[sqlite3.Connection], object]
) -> tuple[sqlite3.Connection, Path | None]:
    """A sound file in place of a damaged one, and where the latter went (None: another process was first).

    read_all: raises Damage where a row is damaged.
    """
    with path.with_name(path.name + ".lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            c = connect(path, make_folder=False)
            with _closed_on_error(c):
                read_all(c)
            return c, None
        except FAULTS as error:
            if not is_damage(error):
                raise
        aside = path.with_name(path.name + ".damaged")
        # The journal goes first: SQLite would play it back into the new file.
        for ending in ("-journal", ""):
            aside.with_name(aside.name + ending).unlink(missing_ok=True)
            if os.path.lexists(f"{path}{ending}"):
                os.replace(f"{path}{ending}", f"{aside}{ending}")
        return connect(path, make_folder=False), aside


@contextmanager
def _closed_on_error(c: sqlite3.Connection) -> Iterator[None]:
    """Close the connection where the block raises."""
    try:
        yield
    except BaseException:
        c.close()
        raise


@contextmanager
def transaction(c: sqlite3.Connection) -> Iterator[None]:
    """All that the block writes, or nothing."""
    c.execute("BEGIN IMMEDIATE")
    try:
        yield
        c.execute("COMMIT")
    except BaseException:
        if c.in_transaction:
            c.execute("ROLLBACK")
        raise


def _checked(c: sqlite3.Connection) -> sqlite3.Connection:
    """The connection to a sound file, made if empty; closes it where it raises."""
    with _closed_on_error(c):
        c.execute("PRAGMA synchronous = FULL")
        if _is_empty(c):
            _make(c)
        ours, version = _pragma(c, "application_id"), _pragma(c, "user_version")
        if ours != APPLICATION_ID:
            raise Damage("another program's SQLite database")
        if version != SCHEMA_VERSION:
            raise Damage(f"expected version {SCHEMA_VERSION} of the format, got {version}")
        if c.execute("SELECT sql FROM sqlite_master").fetchall() != [(sql,) for sql in _TABLES]:
            raise Damage("expected tables of measurements, choices and their method")
        (answer,) = c.execute("PRAGMA quick_check(1)").fetchone()
        if answer != "ok":
            raise Damage(" ".join(str(answer).split()))
        methods = [name for (name,) in c.execute("SELECT name FROM method")]
        if methods != [METHOD]:
            raise Damage(f"times measured by another method, {' and '.join(map(str, methods)) or 'unnamed'}")
    return c


def _is_empty(c: sqlite3.Connection) -> bool:
    (tables,) = c.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return not tables and not _pragma(c, "application_id") and not _pragma(c, "user_version")


def _make(c: sqlite3.Connection) -> None:
    with transaction(c):
        if _is_empty(c):  # no other process made it meanwhile
            for sql in _TABLES:
                c.execute(sql)
            c.execute("INSERT INTO method VALUES (?)", (METHOD,))
            c.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            c.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _pragma(c: sqlite3.Connection, name: str) -> int:
    (value,) = c.execute(f"PRAGMA {name}").fetchone()
    return int(value)
