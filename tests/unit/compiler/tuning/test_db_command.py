"""`tilewright db`: what is read is not written over, a mistyped name makes nothing, imports are whole."""

import json
import sqlite3

import pytest
from test_tuning_database import filled

from tilewright.tools.cli import main
from tilewright.tuning.database.database import TuningDatabase


@pytest.fixture
def database(tmp_path):
    return filled(tmp_path / "t.sqlite", 2)


@pytest.fixture
def lines(tmp_path, database):
    with TuningDatabase(database) as db:
        db.export_lines(tmp_path / "lines")
    return tmp_path / "lines"


def fault(capsys, *arguments):
    assert main(["db", *map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("linked", [True, False])
def test_a_database_is_not_written_over(tmp_path, database, capsys, monkeypatch, named, linked):
    before = database.read_bytes()
    output = database
    if linked:
        output = tmp_path / "link"
        output.symlink_to(database)
    monkeypatch.setenv("TILEWRIGHT_TUNING_DB", str(database))
    given = ["--tuning-db", database] if named else []
    assert "expected another file to write than the one that is read" in fault(
        capsys, "export", output, *given
    )
    assert database.read_bytes() == before


def test_a_saved_executable_is_not_written_over(tmp_path, capsys):
    saved = tmp_path / "net.tw"
    saved.write_bytes(b"any")
    assert "expected another file" in fault(capsys, "export", saved, "--used-by", saved)
    assert saved.read_bytes() == b"any"


@pytest.mark.parametrize("arguments", [("export", "out", "--tuning-db", "absent"), ("merge", "absent")])
def test_reading_makes_no_database(tmp_path, capsys, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEWRIGHT_TUNING_DB", "default")
    assert "absent: no such tuning database" in fault(capsys, *arguments)
    (tmp_path / "absent").touch()
    assert "got an empty file" in fault(capsys, *arguments)
    assert [(p.name, p.stat().st_size) for p in tmp_path.iterdir()] == [("absent", 0)]


@pytest.mark.parametrize("command", ["import", "merge"])
def test_a_failed_command_leaves_nothing(tmp_path, database, lines, capsys, command):
    good = lines if command == "import" else database
    bad = tmp_path / "bad"
    bad.write_text("nonsense\n")
    assert "bad" in fault(capsys, command, good, bad, "--tuning-db", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    assert main(["db", command, str(good), "--tuning-db", str(tmp_path / "new")]) == 0
    with TuningDatabase(tmp_path / "new") as db:
        assert len(db.rows()) == 2


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("device", "\ud800", r"lines:2: not JSON (a text holds '\ud800', which is no character)"),
        ("repeats", 2**63, "lines:2: expected at least one repeat"),
        ("measured_at", 2**63, "lines:2: expected Unix seconds"),
    ],
)
def test_what_no_database_holds_is_named(tmp_path, lines, capsys, field, value, said):
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    rows[1][field] = value
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert said in fault(capsys, "import", lines, "--tuning-db", tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_characters_beyond_16_bits_are_kept(tmp_path, lines):
    # JSON writes them as two halves.
    lines.write_text(lines.read_text().replace("a device", "\\ud83d\\ude00"))
    with TuningDatabase(tmp_path / "new") as db:
        assert db.import_lines(lines) == 2
        assert {k.device for k, _ in db.rows()} == {"\N{GRINNING FACE}"}


def text_column(path):
    with sqlite3.connect(path) as c:
        c.execute("UPDATE measurement SET device = CAST(x'ff' AS TEXT)")
    c.close()


def text_of_the_schema(path):
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE choice", b"CREATE TABLE cho\xff\xfee"))


def keyword_of_the_schema(path):
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE choice", b"CREATE \xff\xfeBLE choice"))


@pytest.mark.parametrize("damage", [text_column, text_of_the_schema, keyword_of_the_schema])
def test_text_that_is_none_is_damage(database, tmp_path, capsys, monkeypatch, damage):
    damage(database)
    said = fault(capsys, "export", tmp_path / "out", "--tuning-db", database)
    assert f"{database}: expected a tuning database, got a damaged or other file" in said
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TILEWRIGHT_TUNING_DB", raising=False)
    database.rename(tmp_path / "tuning-2.sqlite")
    with pytest.warns(RuntimeWarning, match="is damaged"):
        assert TuningDatabase.open().rows() == []
