"""The tuning database: what was put comes back or is an error, whatever befalls file and process."""

import os
import shutil
import sqlite3
import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from python_processes import finish, start

from tilewright.ir import InputError, WorkError
from tilewright.tuning.database import database as tuning_database
from tilewright.tuning.database.database import TuningDatabase, named_tuning_database
from tilewright.tuning.database.records import Entries, Key, Measurement

FOUND = Measurement(1.5e-5, 2e-7, 12, 1_700_000_000)


def key(n):
    return Key(f"{n:064x}", "a device", "driver 1", "compiler 2")


def contents(n):
    """n different rows."""
    return [(key(i), replace(FOUND, seconds=1e-6 * (i + 1))) for i in range(n)]


def filled(path, n=300):
    """A closed file of n rows; 300 take several pages."""
    with TuningDatabase(path) as db:
        assert db.take(Entries(tuple(contents(n)))) == n
    return path


@pytest.fixture(scope="module")
def several_pages(tmp_path_factory):
    return filled(tmp_path_factory.mktemp("db") / "t.sqlite").read_bytes()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The path of the database in a cache folder of its own."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TILEWRIGHT_TUNING_DB", raising=False)
    return tmp_path / "tuning-2.sqlite"


# -- what it keeps ---------------------------------------------------------------------------------------
def test_what_was_put_comes_back(tmp_path):
    path = tmp_path / "t.sqlite"
    with TuningDatabase.open(path) as db:
        assert db.get(key(0)) is None
        db.put(key(0), FOUND)
        db.put(key(1), FOUND)
        db.put(key(1), replace(FOUND, seconds=2e-5))
    with TuningDatabase.open(path) as db:
        assert db.rows() == [(key(0), FOUND), (key(1), replace(FOUND, seconds=2e-5))]
        for part in ("program", "device", "driver", "compiler"):
            assert db.get(replace(key(0), **{part: "other"})) is None
    assert [p.name for p in tmp_path.iterdir()] == ["t.sqlite"]


@pytest.mark.parametrize(
    "bad",
    [{"seconds": 0.0}, {"seconds": -1.0}, {"seconds": float("nan")}, {"seconds": float("inf")},
     {"spread_s": -1.0}, {"repeats": 0}, {"measured_at": -1}],
)  # fmt: skip
def test_no_nonsense_gets_in(tmp_path, bad):
    with TuningDatabase.open(tmp_path / "t.sqlite") as db:
        with pytest.raises(WorkError):
            db.put(key(0), replace(FOUND, **bad))
        assert db.rows() == []


def test_where_it_lies(cache, tmp_path, monkeypatch):
    assert named_tuning_database() == (cache, True)
    monkeypatch.setenv("TILEWRIGHT_TUNING_DB", str(tmp_path / "own"))
    assert named_tuning_database() == (tmp_path / "own", False)
    assert named_tuning_database("given") == (Path("given"), False)


def test_merging_keeps_what_was_measured_later(tmp_path):
    with TuningDatabase(tmp_path / "a") as a, TuningDatabase(tmp_path / "b") as b:
        for n, seconds, at in ((0, 1.0, 5), (1, 1.0, 5), (2, 1.0, 5)):
            a.put(key(n), replace(FOUND, seconds=seconds, measured_at=at))
        for n, seconds, at in ((1, 2.0, 6), (2, 2.0, 4), (3, 2.0, 4)):
            b.put(key(n), replace(FOUND, seconds=seconds, measured_at=at))
        assert a.merge(b) == 2
        assert [m.seconds for _, m in a.rows()] == [1.0, 2.0, 1.0, 2.0]
        assert a.merge(b) == 0
        a.export_lines(tmp_path / "lines")
        with TuningDatabase(tmp_path / "c") as c:
            assert c.import_lines(tmp_path / "lines") == 4
            assert c.rows() == a.rows()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: lines[1:], "expected exported measurements"),
        (lambda lines: [*lines[:2], "{", *lines[2:]], "lines:3: not JSON"),
        (lambda lines: [lines[0], lines[1].replace("1.5e-05", "-1.0")], "lines:2: expected positive"),
        (lambda lines: [lines[0], lines[1].replace("repeats", "again")], "lines:2"),
        (lambda lines: [*lines[:2], lines[2][:-5]], "lines:3"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_taken(tmp_path, change, message):
    with TuningDatabase(tmp_path / "a") as db:
        db.put(key(0), FOUND)
        db.put(key(1), FOUND)
        db.export_lines(tmp_path / "lines")
    lines = change((tmp_path / "lines").read_text().splitlines())
    (tmp_path / "lines").write_text("\n".join(lines) + "\n")
    with TuningDatabase(tmp_path / "b") as db:
        with pytest.raises(InputError, match=message):
            db.import_lines(tmp_path / "lines")
        assert db.rows() == []


# -- damage ----------------------------------------------------------------------------------------------
def other_database(path):
    with sqlite3.connect(path) as c:
        c.execute("CREATE TABLE mine (x)")
    c.close()


def other_version(path):
    filled(path)
    with sqlite3.connect(path) as c:
        c.execute("PRAGMA user_version = 99")
    c.close()


def changed_number(path):
    filled(path)
    with sqlite3.connect(path) as c:
        c.execute("UPDATE measurement SET seconds = seconds / 2")
    c.close()


DAMAGES = {
    "text": lambda path: path.write_text("seconds = 1"),
    "long text": lambda path: path.write_text("seconds = 1\n" * 1000),
    "noise": lambda path: path.write_bytes(bytes(i * i % 251 for i in range(20_000))),
    "half": lambda path: path.write_bytes(filled(path).read_bytes()[: path.stat().st_size // 2]),
    "zeroed page": lambda path: path.write_bytes(filled(path).read_bytes()[:8192].ljust(20_480, b"\0")),
    "other database": other_database,
    "other version": other_version,
    "changed number": changed_number,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_named_file_that_is_damaged_is_an_error_and_stays(tmp_path, damage):
    path = tmp_path / "t.sqlite"
    DAMAGES[damage](path)
    before = path.read_bytes()
    with pytest.raises(InputError, match="expected a tuning database") as e, TuningDatabase.open(path) as db:
        db.get(key(0))
    assert str(path) in str(e.value)
    assert "\n" not in str(e.value)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["t.sqlite"]


def look_up_and_put():
    """What the database in the cache has of a key, before that is stored in it."""
    with TuningDatabase.open() as db:
        found = db.get(key(0))
        db.put(key(0), FOUND)
        assert db.get(key(0)) == FOUND
    return found


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_one_in_the_cache_is_moved_aside(cache, damage):
    DAMAGES[damage](cache)
    before = cache.read_bytes()
    cache.with_name(cache.name + ".damaged-journal").write_text("of an earlier one")
    with pytest.warns(RuntimeWarning, match="is damaged") as caught:
        assert look_up_and_put() is None
    assert len(caught) == 1
    assert cache.with_name(cache.name + ".damaged").read_bytes() == before
    assert not cache.with_name(cache.name + ".damaged-journal").exists()
    with TuningDatabase.open() as db:
        assert db.rows() == [(key(0), FOUND)]


def test_the_journal_of_a_damaged_file_does_not_reach_the_new_one(cache):
    DAMAGES["noise"](cache)
    journal = cache.with_name(cache.name + "-journal")
    journal.write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(1000))
    with pytest.warns(RuntimeWarning, match="is damaged"):
        look_up_and_put()
    assert not journal.exists()


@given(data=st.data())
def test_no_flipped_bit_changes_a_time(tmp_path_factory, several_pages, data):
    path = tmp_path_factory.mktemp("db") / "t.sqlite"
    damaged = bytearray(several_pages)
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    with suppress(InputError), TuningDatabase.open(path) as db:
        for k, m in contents(300)[::30]:
            assert db.get(k) in (m, None)
        assert set(db.rows()) <= set(contents(300))


@given(cut=st.integers(1, 20_000))
def test_no_cut_changes_a_time(tmp_path_factory, several_pages, cut):
    path = tmp_path_factory.mktemp("db") / "t.sqlite"
    path.write_bytes(several_pages[:-cut])
    with pytest.raises(InputError, match=r"t\.sqlite"), TuningDatabase.open(path) as db:
        db.rows()


# -- files that cannot be used ---------------------------------------------------------------------------
def test_a_folder_and_a_missing_folder(tmp_path, cache):
    with pytest.raises(InputError, match="it is a folder"):
        TuningDatabase.open(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        TuningDatabase.open(tmp_path / "none" / "t.sqlite")
    cache.mkdir()
    with pytest.warns(RuntimeWarning, match="it is a folder"):
        assert look_up_and_put() is None


def test_a_full_disk(tmp_path, cache):
    def fill(path=None):
        with TuningDatabase.open(path) as db:
            limit(db)
            for k, m in contents(300):
                db.put(k, m)
            return db.get(key(299))

    def limit(db):
        (pages,) = db._connection.execute("PRAGMA page_count").fetchone()
        db._connection.execute(f"PRAGMA max_page_count = {pages}")

    with pytest.raises(WorkError, match="full"):
        fill(tmp_path / "t.sqlite")
    with TuningDatabase.open(tmp_path / "t.sqlite") as db:
        kept = db.rows()
        assert kept == contents(300)[: len(kept)]
        assert 0 < len(kept) < 300
    with pytest.warns(RuntimeWarning, match="full") as caught:
        assert fill() == contents(300)[299][1]
    assert len(caught) == 1


READ_ONLY = """
import os, warnings
path, folder = sys.argv[1], os.path.dirname(sys.argv[1])
os.environ["TILEWRIGHT_CACHE_DIR"] = folder
if os.geteuid() == 0:
    os.setuid(65534)  # nothing keeps the superuser from writing
with TuningDatabase.open(path) as db:
    assert db.get(key(0)) == contents(1)[0][1]
    with pytest.raises(WorkError, match="readonly"):
        db.put(key(1), FOUND)
with TuningDatabase.open() as db, pytest.warns(RuntimeWarning, match="readonly"):
    db.put(key(1), FOUND)
    assert db.rows() == [contents(1)[0], (key(1), FOUND)]
with pytest.raises(InputError, match="cannot be opened"):
    TuningDatabase.open(path + "unreadable")
"""


def test_a_file_that_may_only_be_read():
    folder = Path(tempfile.mkdtemp())  # others may not look into tmp_path
    try:
        path = filled(folder / "tuning-2.sqlite", 1)
        path.chmod(0o444)
        filled(folder / "tuning-2.sqliteunreadable", 1).chmod(0)
        folder.chmod(0o555)
        finish(start(__name__, READ_ONLY, path))
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_a_lock_that_is_never_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning_database, "NOTICE_S", 0.05)
    monkeypatch.setattr(tuning_database, "BUSY_S", 0.05)
    path = filled(tmp_path / "t.sqlite", 1)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with TuningDatabase.open(path) as db:
        assert db.get(key(0)) is not None
        with pytest.raises(WorkError, match="locked"):
            db.put(key(1), FOUND)
        holder.execute("ROLLBACK")
        db.put(key(1), FOUND)
    holder.close()


# -- processes -------------------------------------------------------------------------------------------
WRITER = """
base = int(sys.argv[2])
with TuningDatabase.open(sys.argv[1] if sys.argv[1] != "cache" else None) as db:
    for n in range(base, base + 20):
        db.put(key(n), FOUND)
        db.put(key(10_000 + n % 5), FOUND)
"""


def test_processes_write_one_file_at_once(tmp_path):
    path = tmp_path / "t.sqlite"
    finish(*[start(__name__, WRITER, path, 100 * i) for i in range(3)])
    with TuningDatabase.open(path) as db:
        expected = [*(100 * i + n for i in range(3) for n in range(20)), *(10_000 + n for n in range(5))]
        assert db.rows() == [(key(n), FOUND) for n in expected]
    assert [p.name for p in tmp_path.iterdir()] == ["t.sqlite"]


def test_processes_find_one_damaged_file_at_once(cache):
    DAMAGES["noise"](cache)
    before = cache.read_bytes()
    finish(*[start(__name__, WRITER, "cache", 100 * i) for i in range(3)])
    with TuningDatabase.open() as db:
        assert len(db.rows()) == 3 * 20 + 5
    assert cache.with_name(cache.name + ".damaged").read_bytes() == before


def test_a_file_that_another_process_moved_aside(cache):
    with TuningDatabase.open() as db:
        db.put(key(0), FOUND)
        os.replace(cache, cache.with_name("elsewhere"))
        with TuningDatabase.open() as other:
            other.put(key(1), FOUND)
        db.put(key(2), FOUND)
        assert [k for k, _ in db.rows()] == [key(1), key(2)]


KILLED = """
import os, signal
db = TuningDatabase.open(sys.argv[1])
c = db._connection
c.execute("PRAGMA cache_size = 1")  # so that pages reach the file before the transaction ends
c.execute("BEGIN IMMEDIATE")
for k, _ in contents(300):
    c.execute("UPDATE measurement SET seconds = 1.0 WHERE program = ?", (k.program,))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_leaves_nothing_half_written(tmp_path):
    path = filled(tmp_path / "t.sqlite")
    before = path.read_bytes()
    finish(start(__name__, KILLED, path), code=-9)
    assert path.with_name("t.sqlite-journal").exists()
    assert path.read_bytes() != before
    with TuningDatabase.open(path) as db:
        assert db.rows() == contents(300)
        db.put(key(300), FOUND)
    assert [p.name for p in tmp_path.iterdir()] == ["t.sqlite"]


def test_a_locked_database_is_told_and_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning_database, "NOTICE_S", 0.05)
    monkeypatch.setattr(tuning_database, "BUSY_S", 10.0)
    path = tmp_path / "t.sqlite"
    TuningDatabase.open(path).close()
    locking = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    locking.execute("BEGIN EXCLUSIVE")
    freed = threading.Timer(0.5, lambda: locking.execute("ROLLBACK"))
    freed.start()
    with (
        pytest.warns(RuntimeWarning, match="is locked by another process; waiting for it, at most 10 s"),
        TuningDatabase.open(path) as database,
    ):
        assert not database.entries().rows
    freed.join()
    locking.close()
