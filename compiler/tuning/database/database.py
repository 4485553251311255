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
from dataclasses import astuple
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

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
    choice_fault_of,
    fault_of,
    read_lines,
    write_lines,
)
from tilewright.tuning.database.travel import entries_saved_in, is_saved_executable

T = TypeVar("T")

_KEY = "program, device, driver, compiler"
_WHERE = " WHERE program = ? AND device = ? AND driver = ? AND compiler = ?"
_COLUMNS = f"{_KEY}, seconds, spread_s, repeats, measured_at, checksum"
_SELECT = f"SELECT {_COLUMNS} FROM measurement"
_VALUES = f"({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_REPLACE = f"INSERT OR REPLACE INTO measurement {_VALUES}"
#: more runs say more; of as many the later ones
_BETTER = (
    f"INSERT INTO measurement {_VALUES} ON CONFLICT DO UPDATE SET seconds = excluded.seconds,"
    " spread_s = excluded.spread_s, repeats = excluded.repeats, measured_at = excluded.measured_at,"
    " checksum = excluded.checksum WHERE excluded.repeats > repeats"
    " OR (excluded.repeats = repeats AND excluded.measured_at > measured_at)"
)
_CHOICE_COLUMNS = f"{_KEY}, record, decided_at, checksum"
_SELECT_CHOICE = f"SELECT {_CHOICE_COLUMNS} FROM choice"
_CHOICE_VALUES = f"({_CHOICE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_REPLACE_CHOICE = f"INSERT OR REPLACE INTO choice {_CHOICE_VALUES}"
_NEWER_CHOICE = (
    f"INSERT INTO choice {_CHOICE_VALUES} ON CONFLICT DO UPDATE SET record = excluded.record,"
    " decided_at = excluded.decided_at, checksum = excluded.checksum WHERE excluded.decided_at > decided_at"
)


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

        def find(c: sqlite3.Connection) -> Measurement | None:
            row = c.execute(_SELECT + _WHERE, astuple(key)).fetchone()
            return None if row is None else _checked(row)[1]

        return self._run(find)

    def choice(self, key: Key) -> StoredChoice | None:
        """The choice under `key`, or None; raises InputError for a damaged named file."""

        def find(c: sqlite3.Connection) -> StoredChoice | None:
            row = c.execute(_SELECT_CHOICE + _WHERE, astuple(key)).fetchone()
            return None if row is None else _checked_choice(row)[1]

        return self._run(find)

    def put(self, key: Key, measurement: Measurement) -> None:
        """Store, in place of what is there; on return it outlasts this process.

        Raises WorkError where a named file cannot be written.
        """
        row = _as_row(key, measurement)
        self._run(lambda c: c.execute(_REPLACE, row))

    def put_choice(self, key: Key, choice: StoredChoice) -> None:
        """Like `put`, for a choice."""
        row = _as_choice_row(key, choice)
        self._run(lambda c: c.execute(_REPLACE_CHOICE, row))

    def rows(self) -> list[Row]:
        """All measurements by key; raises InputError for a damaged named file."""
        return self._run(_all_rows)

    def choices(self) -> list[ChoiceRow]:
        """All choices by key; raises InputError for a damaged named file."""
        return self._run(_all_choices)

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
        values = [_as_row(*row) for row in entries.rows]
        chosen = [_as_choice_row(*row) for row in entries.choices]

        def take(c: sqlite3.Connection) -> int:
            before = c.total_changes
            with transaction(c):
                c.executemany(_BETTER, values)
                c.executemany(_NEWER_CHOICE, chosen)
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
                memory.executemany(_REPLACE, [_as_row(*row) for row in _all_rows(self._connection)])
                chosen = [_as_choice_row(*row) for row in _all_choices(self._connection)]
                memory.executemany(_REPLACE_CHOICE, chosen)
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


def _all_rows(c: sqlite3.Connection) -> list[Row]:
    return [_checked(row) for row in c.execute(f"{_SELECT} ORDER BY 1, 2, 3, 4")]


def _all_choices(c: sqlite3.Connection) -> list[ChoiceRow]:
    return [_checked_choice(row) for row in c.execute(f"{_SELECT_CHOICE} ORDER BY 1, 2, 3, 4")]


def _all_entries(c: sqlite3.Connection) -> Entries:
    return Entries(tuple(_all_rows(c)), tuple(_all_choices(c)))


def _checked(row: tuple[object, ...]) -> Row:
    """A row as read from the file; raises Damage."""
    key, measurement = Key(*row[:4]), Measurement(*row[4:8])  # type: ignore[arg-type]
    if fault := fault_of(key, measurement):
        raise Damage(fault)
    if row[8] != checksum(key, measurement):
        raise Damage("a measurement does not match its checksum")
    return key, measurement


def _checked_choice(row: tuple[object, ...]) -> ChoiceRow:
    """A row as read from the file; raises Damage."""
    key, choice = Key(*row[:4]), StoredChoice(*row[4:6])  # type: ignore[arg-type]
    if fault := choice_fault_of(key, choice):
        raise Damage(fault)
    if row[6] != checksum(key, choice):
        raise Damage("a choice does not match its checksum")
    return key, choice


def _as_choice_row(key: Key, choice: StoredChoice) -> tuple[object, ...]:
    if fault := choice_fault_of(key, choice):
        raise WorkError(f"{fault} in a choice to store")
    return (*astuple(key), *astuple(choice), checksum(key, choice))


def _as_row(key: Key, measurement: Measurement) -> tuple[object, ...]:
    if fault := fault_of(key, measurement):
        raise WorkError(f"{fault} in a measurement to store")
    return (*astuple(key), *astuple(measurement), checksum(key, measurement))


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
