"""The tuning database: what was measured and chosen on which device, in a SQLite file for many processes.

It has a rollback journal, not a write-ahead log: the latter shares memory between the processes of one
machine and so breaks on network file systems. Writes are rare and short, so readers seldom wait.
"""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from tilewright.ir import InputError, WorkError
from tilewright.ir.errors import file_path
from tilewright.ir.machine import cache_folder
from tilewright.tuning.database.file import (
    BUSY_S,
    FAULTS,
    NOTICE_S,
    SCHEMA_VERSION,
    Damage,
    connect,
    connect_anew,
    connect_memory,
    is_busy,
    is_damage,
    is_moved,
    transaction,
)
from tilewright.tuning.database.records import (
    ChoiceRow,
    Entries,
    Key,
    Measurement,
    Row,
    StoredChoice,
    checksum,
    read_lines,
    write_lines,
)
from tilewright.tuning.database.travel import entries_saved_in, is_saved_executable

T = TypeVar("T")

E = TypeVar("E", bound=Measurement | StoredChoice)


class _Table(Generic[E]):
    """A table of the file: entries of one class by key, each with its checksum.

    better: the condition of SQL under which an entry from elsewhere (`excluded`) takes the place of one here.
    """

    def __init__(self, name: str, entry: type[E], better: str) -> None:
        self.name, self.entry = name, entry
        own = tuple(f.name for f in fields(entry))
        key = tuple(f.name for f in fields(Key))
        columns = (*key, *own, "checksum")
        values = f"{name} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        changes = ", ".join(f"{c} = excluded.{c}" for c in (*own, "checksum"))
        self.select_all = f"SELECT {', '.join(columns)} FROM {name}"
        self.select_one = f"{self.select_all} WHERE {' AND '.join(f'{c} = ?' for c in key)}"
        self.replace = f"INSERT OR REPLACE INTO {values}"
        self.merge = f"INSERT INTO {values} ON CONFLICT DO UPDATE SET {changes} WHERE {better}"

    def find(self, connection: sqlite3.Connection, key: Key) -> E | None:
        """The entry under a key; raises Damage."""
        row = connection.execute(self.select_one, astuple(key)).fetchone()
        return None if row is None else self._checked(row)[1]

    def all(self, connection: sqlite3.Connection) -> list[tuple[Key, E]]:
        """All entries in the order of their keys; raises Damage."""
        return [self._checked(row) for row in connection.execute(f"{self.select_all} ORDER BY 1, 2, 3, 4")]

    def row(self, key: Key, entry: E) -> tuple[object, ...]:
        """The row to store; raises WorkError for an entry that cannot be one."""
        if fault := entry.fault(key):
            raise WorkError(f"{fault} in a {self.name} to store")
        return (*astuple(key), *astuple(entry), checksum(key, entry))

    def _checked(self, row: tuple[Any, ...]) -> tuple[Key, E]:
        key, entry = Key(*row[:4]), self.entry(*row[4:-1])
        if fault := entry.fault(key):
            raise Damage(fault)
        if row[-1] != checksum(key, entry):
            raise Damage(f"a {self.name} does not match its checksum")
        return key, entry


#: more runs say more; of as many the later ones
_MEASUREMENTS = _Table(
    "measurement",
    Measurement,
    "excluded.repeats > repeats OR (excluded.repeats = repeats AND excluded.measured_at > measured_at)",
)
_CHOICES = _Table("choice", StoredChoice, "excluded.decided_at > decided_at")


def named_tuning_database(path: str | os.PathLike[str] | None = None) -> tuple[Path, bool]:
    """`path`, else `$TILEWRIGHT_TUNING_DB`, else a file in the cache folder; and whether it is that one.

    The last lies beside the compiled kernels and is named by the version of the format.
    """
    named = path if path is not None else os.environ.get("TILEWRIGHT_TUNING_DB")
    return (file_path(named), False) if named else (cache_folder() / f"tuning-{SCHEMA_VERSION}.sqlite", True)


class TuningDatabase:
    """Measurements by key. Every `put` is one durable transaction: an interrupted run keeps what it measured.

    A file that a caller named is theirs: a damaged, foreign or unusable one is an error, and it stays as it
    is. The file in the cache folder is ours and only saves time: a damaged one is moved aside (`.damaged`)
    with a warning and begun anew; where it cannot be read or written, a warning says so and new measurements
    last until `close`. A row that does not match its checksum is damage. One object serves one thread.
    """

    def __init__(self, path: str | os.PathLike[str], *, cache: bool = False, in_memory: bool = False) -> None:
        self.path = Path(os.path.abspath(path))
        self.cache = cache
        self._connection: sqlite3.Connection | None = connect_memory() if in_memory else None
        self._busy_s = NOTICE_S
        self._run(lambda c: None)

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None) -> Self:
        """The database at `path`, else at `$TILEWRIGHT_TUNING_DB`, else in the cache folder.

        A missing file is made. Of a saved executable the entries that travel with it are read, and what is
        stored lasts until `close`. Raises InputError where a named file is neither or cannot be used.
        """
        where, cache = named_tuning_database(path)
        if not cache and is_saved_executable(where):
            opened = cls(where, in_memory=True)
            opened.take(entries_saved_in(where))
            return opened
        return cls(where, cache=cache)

    def get(self, key: Key) -> Measurement | None:
        """The measurement under `key`, or None; raises InputError for a damaged named file."""
        return self._run(lambda c: _MEASUREMENTS.find(c, key))

    def choice(self, key: Key) -> StoredChoice | None:
        """The choice under `key`, or None; raises InputError for a damaged named file."""
        return self._run(lambda c: _CHOICES.find(c, key))

    def put(self, key: Key, measurement: Measurement) -> None:
        """Store, in place of what is there; on return it outlasts this process.

        Raises WorkError where a named file cannot be written.
        """
        row = _MEASUREMENTS.row(key, measurement)
        self._run(lambda c: c.execute(_MEASUREMENTS.replace, row))

    def put_choice(self, key: Key, choice: StoredChoice) -> None:
        """Like `put`, for a choice."""
        row = _CHOICES.row(key, choice)
        self._run(lambda c: c.execute(_CHOICES.replace, row))

    def rows(self) -> list[Row]:
        """All measurements by key; raises InputError for a damaged named file."""
        return self._run(_MEASUREMENTS.all)

    def choices(self) -> list[ChoiceRow]:
        """All choices by key; raises InputError for a damaged named file."""
        return self._run(_CHOICES.all)

    def entries(self) -> Entries:
        """Everything."""
        return Entries(tuple(self.rows()), tuple(self.choices()))

    def merge(self, other: TuningDatabase) -> int:
        """Take what `other` has and this has not, or has of more runs, or of as many later ones.

        All or nothing. Returns the number of entries taken.
        """
        return self.take(other.entries())

    def export_lines(self, path: str | os.PathLike[str]) -> None:
        """Write all entries as JSON lines; raises InputError where `path` cannot be written."""
        write_lines(path, self.entries())

    def import_lines(self, path: str | os.PathLike[str]) -> int:
        """Like `merge`, from a file of `export_lines`; raises InputError naming the line that is wrong."""
        return self.take(read_lines(path))

    def take(self, entries: Entries) -> int:
        """Like `merge`, from anywhere."""
        measured = [_MEASUREMENTS.row(*row) for row in entries.rows]
        chosen = [_CHOICES.row(*row) for row in entries.choices]

        def take(c: sqlite3.Connection) -> int:
            before = c.total_changes
            with transaction(c):
                c.executemany(_MEASUREMENTS.merge, measured)
                c.executemany(_CHOICES.merge, chosen)
            return c.total_changes - before

        return self._run(take)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `work` on the open file, as the class describes where the file is bad."""
        for _ in range(3):
            opening = self._connection is None
            try:
                if self._connection is None:
                    self._connection = connect(self.path, make_folder=self.cache, busy_s=self._busy_s)
                return work(self._connection)
            except FAULTS as error:
                if isinstance(error, sqlite3.ProgrammingError):
                    raise
                if is_busy(error) and self._busy_s < BUSY_S:
                    self.close()
                    self._busy_s = BUSY_S
                    _warn(
                        f"the tuning database {self.path} is locked by another process; waiting for it, at "
                        f"most {BUSY_S:g} s"
                    )
                elif is_moved(error):
                    self.close()  # another process began the file anew
                elif not self.cache:
                    raise self._error(error, opening) from error
                elif is_damage(error):
                    self._begin_anew(error)
                else:
                    self._do_without(error)
        raise WorkError(f"the tuning database {self.path} is damaged again and again; remove it")

    def _error(self, error: Exception, opening: bool) -> InputError | WorkError:
        if is_damage(error):
            return InputError(
                f"expected a tuning database, got a damaged or other file ({error}); restore it, or remove it"
                " to measure anew",
                where=str(self.path),
            )
        if opening:
            return InputError(
                f"the tuning database cannot be opened ({_reason(error)})", where=str(self.path)
            )
        return WorkError(
            f"the tuning database {self.path} cannot be used ({_reason(error)}); what it holds is safe"
        )

    def _begin_anew(self, error: Exception) -> None:
        self.close()
        try:
            self._connection, moved = connect_anew(self.path, _all_entries)
        except FAULTS as second:
            self._do_without(second)
            return
        if moved is not None:
            _warn(f"the tuning database {self.path} is damaged ({error}); moved to {moved.name}, begun anew")

    def _do_without(self, error: Exception) -> None:
        memory = connect_memory()
        if self._connection is not None:
            with suppress(*FAULTS):  # what can still be read serves on
                measured = [_MEASUREMENTS.row(*row) for row in _MEASUREMENTS.all(self._connection)]
                memory.executemany(_MEASUREMENTS.replace, measured)
                chosen = [_CHOICES.row(*row) for row in _CHOICES.all(self._connection)]
                memory.executemany(_CHOICES.replace, chosen)
        self.close()
        self._connection = memory
        _warn(
            f"the tuning database {self.path} cannot be used ({_reason(error)}): measurements are not kept;"
            " name another with TILEWRIGHT_TUNING_DB"
        )

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _all_entries(c: sqlite3.Connection) -> Entries:
    return Entries(tuple(_MEASUREMENTS.all(c)), tuple(_CHOICES.all(c)))


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
