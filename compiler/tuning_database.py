"""The tuning database: what was measured on which device, in one SQLite file for any number of processes.

It has a rollback journal, not a write-ahead log: the latter shares memory between the processes of one
machine and so breaks on network file systems. Writes are rare and short, so readers seldom wait.
"""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import astuple
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tilewright.codegen.cache import default_cache_folder
from tilewright.ir import InputError, WorkError
from tilewright.tuning_file import (
    Damage,
    connect,
    connect_anew,
    connect_memory,
    is_damage,
    is_moved,
    transaction,
)
from tilewright.tuning_records import Key, Measurement, Row, checksum, fault_of, read_lines, write_lines

T = TypeVar("T")

_COLUMNS = "program, device, driver, compiler, seconds, spread_s, repeats, measured_at, checksum"
_SELECT = f"SELECT {_COLUMNS} FROM measurement"
_VALUES = f"({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
_REPLACE = f"INSERT OR REPLACE INTO measurement {_VALUES}"
_NEWER = (
    f"INSERT INTO measurement {_VALUES} ON CONFLICT DO UPDATE SET seconds = excluded.seconds,"
    " spread_s = excluded.spread_s, repeats = excluded.repeats, measured_at = excluded.measured_at,"
    " checksum = excluded.checksum WHERE excluded.measured_at > measured_at"
)


def named_tuning_database(path: str | os.PathLike[str] | None = None) -> tuple[Path, bool]:
    """`path`, else `$TILEWRIGHT_TUNING_DB`, else a file in the cache folder; and whether it is that one.

    The last lies beside the compiled kernels and is named by the version of the format.
    """
    named = path if path is not None else os.environ.get("TILEWRIGHT_TUNING_DB")
    return (Path(named), False) if named else (default_cache_folder() / "tuning-1.sqlite", True)


class TuningDatabase:
    """Measurements by key. Every `put` is one durable transaction: an interrupted run keeps what it measured.

    A file that a caller named is theirs: a damaged, foreign or unusable one is an error, and it stays as it
    is. The file in the cache folder is ours and only saves time: a damaged one is moved aside (`.damaged`)
    with a warning and begun anew; where it cannot be read or written, a warning says so and new measurements
    last until `close`. A row that does not match its checksum is damage. One object serves one thread.
    """

    def __init__(self, path: str | os.PathLike[str], *, cache: bool = False) -> None:
        self.path = Path(os.path.abspath(path))
        self.cache = cache
        self._connection: sqlite3.Connection | None = None
        self._run(lambda c: None)

    @classmethod
    def open(cls, path: str | os.PathLike[str] | None = None) -> Self:
        """The database at `path`, else at `$TILEWRIGHT_TUNING_DB`, else in the cache folder.

        A missing file is made. Raises InputError where a named file is no tuning database or cannot be used.
        """
        where, cache = named_tuning_database(path)
        return cls(where, cache=cache)

    def get(self, key: Key) -> Measurement | None:
        """The measurement under `key`, or None; raises InputError for a damaged named file."""
        where = " WHERE program = ? AND device = ? AND driver = ? AND compiler = ?"

        def find(c: sqlite3.Connection) -> Measurement | None:
            row = c.execute(_SELECT + where, astuple(key)).fetchone()
            return None if row is None else _checked(row)[1]

        return self._run(find)

    def put(self, key: Key, measurement: Measurement) -> None:
        """Store, in place of what is there; on return it outlasts this process.

        Raises WorkError where a named file cannot be written.
        """
        row = _as_row(key, measurement)
        self._run(lambda c: c.execute(_REPLACE, row))

    def rows(self) -> list[Row]:
        """All measurements by key; raises InputError for a damaged named file."""
        return self._run(_all_rows)

    def merge(self, other: TuningDatabase) -> int:
        """Take what `other` has and this has not, or measured later; all or nothing. Returns the number."""
        return self._take(other.rows())

    def export_lines(self, path: str | os.PathLike[str]) -> None:
        """Write all measurements as JSON lines; raises InputError where `path` cannot be written."""
        write_lines(path, self.rows())

    def import_lines(self, path: str | os.PathLike[str]) -> int:
        """Like `merge`, from a file of `export_lines`; raises InputError naming the line that is wrong."""
        return self._take(read_lines(path))

    def _take(self, rows: Iterable[Row]) -> int:
        values = [_as_row(*row) for row in rows]

        def take(c: sqlite3.Connection) -> int:
            before = c.total_changes
            with transaction(c):
                c.executemany(_NEWER, values)
            return c.total_changes - before

        return self._run(take)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of `work` on the open file, as the class describes where the file is bad."""
        for _ in range(3):
            opening = self._connection is None
            try:
                if self._connection is None:
                    self._connection = connect(self.path, make_folder=self.cache)
                return work(self._connection)
            except (Damage, sqlite3.Error, OSError) as error:
                if isinstance(error, sqlite3.ProgrammingError):
                    raise
                if is_moved(error):
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
            self._connection, moved = connect_anew(self.path, _all_rows)
        except (Damage, sqlite3.Error, OSError) as second:
            self._do_without(second)
            return
        if moved is not None:
            _warn(f"the tuning database {self.path} is damaged ({error}); moved to {moved.name}, begun anew")

    def _do_without(self, error: Exception) -> None:
        memory = connect_memory()
        if self._connection is not None:
            with suppress(Damage, sqlite3.Error):  # what can still be read serves on
                memory.executemany(_REPLACE, [_as_row(*row) for row in _all_rows(self._connection)])
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


def _checked(row: tuple[object, ...]) -> Row:
    """A row as read from the file; raises Damage."""
    key, measurement = Key(*row[:4]), Measurement(*row[4:8])  # type: ignore[arg-type]
    if fault := fault_of(key, measurement):
        raise Damage(fault)
    if row[8] != checksum(key, measurement):
        raise Damage("a measurement does not match its checksum")
    return key, measurement


def _as_row(key: Key, measurement: Measurement) -> tuple[object, ...]:
    if fault := fault_of(key, measurement):
        raise WorkError(f"{fault} in a measurement to store")
    return (*astuple(key), *astuple(measurement), checksum(key, measurement))


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=2)
