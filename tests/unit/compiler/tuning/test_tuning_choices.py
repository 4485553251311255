"""What a tuning database holds beside times: choices; which of two entries is kept, which are refused."""

from dataclasses import replace

import pytest

from tilewright.ir import InputError, WorkError
from tilewright.tuning.database import file as tuning_file
from tilewright.tuning.database import records as tuning_records
from tilewright.tuning.database.database import TuningDatabase
from tilewright.tuning.database.records import Key, Measurement, StoredChoice

FOUND = Measurement(1.5e-5, 2e-7, 12, 1_700_000_000)


def key(n):
    return Key(f"{n:064x}", "a device", "driver 1", "compiler 2")


def chosen(n, at, record='{"a": 1}'):
    return replace(key(n), program=f"kernel:{n}"), StoredChoice(record, at)


def test_choices_are_kept_merged_and_exported(tmp_path):
    with TuningDatabase(tmp_path / "a") as a, TuningDatabase(tmp_path / "b") as b:
        a.put_choice(*chosen(0, 5))
        a.put_choice(*chosen(1, 5))
        b.put_choice(*chosen(1, 6, '{"a": 2}'))
        b.put_choice(*chosen(2, 4))
        assert a.choice(chosen(0, 5)[0]) == StoredChoice('{"a": 1}', 5)
        assert a.choice(chosen(2, 5)[0]) is None
        assert a.merge(b) == 2
        assert [c.record for _, c in a.choices()] == ['{"a": 1}', '{"a": 2}', '{"a": 1}']
        a.put(key(0), FOUND)
        a.export_lines(tmp_path / "lines")
        assert b.import_lines(tmp_path / "lines") == 2
        assert b.entries() == a.entries()


@pytest.mark.parametrize("bad", [("[]", 5), ("{", 5), ("{}", -1), ('{"a": NaN}', 5), (7, 5)])
def test_no_nonsense_is_chosen(tmp_path, bad):
    with TuningDatabase(tmp_path / "a") as db:
        with pytest.raises(WorkError):
            db.put_choice(chosen(0, 5)[0], StoredChoice(*bad))
        with pytest.raises(WorkError):
            db.put_choice(key(0), StoredChoice("{}", 5))
        assert db.choices() == []


def test_more_runs_count_more_than_later_ones(tmp_path):
    with TuningDatabase(tmp_path / "a") as a, TuningDatabase(tmp_path / "b") as b:
        a.put(key(0), replace(FOUND, repeats=24, measured_at=5))
        b.put(key(0), replace(FOUND, repeats=12, measured_at=9))
        assert a.merge(b) == 0
        assert b.merge(a) == 1


def test_times_of_another_method_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a"
    with TuningDatabase(path) as db:
        db.put(key(0), FOUND)
        db.export_lines(tmp_path / "lines")
    monkeypatch.setattr(tuning_file, "METHOD", "guessing")
    monkeypatch.setattr(tuning_records, "METHOD", "guessing")
    with TuningDatabase(tmp_path / "b") as db:
        with pytest.raises(InputError, match="cannot be compared"):
            db.import_lines(tmp_path / "lines")
        with pytest.raises(InputError, match="measured by another method"), TuningDatabase(path) as other:
            db.merge(other)
        assert db.rows() == []
