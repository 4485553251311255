"""Rows of the benchmark from several processes: prepared together, timed one by one, none lost silently."""

import os
import time
from pathlib import Path

import pytest

from tilewright.tools.bench import waves
from tilewright.tools.bench.waves import Waves


def make(asked, turn):
    """Note when preparing and timing begin and end, or end the process at once."""
    name, log, fate = asked
    note(log, f"{name} prepares")
    if fate == "dies":
        os._exit(7)
    if fate == "hangs":
        turn.doing("torch-compile contiguous", 0.0)
        time.sleep(60)
    if fate == "crashes in a peer":
        turn.doing("torch-graph channels_last", 60.0)
        os._exit(9)
    if fate == "fails":
        return {"name": name, "status": "failed"}
    with turn():
        note(log, f"{name} begins")
        time.sleep(0.05)
        note(log, f"{name} ends")
    return {"name": name, "status": "ok"}


def note(log, text):
    with open(log, "a", encoding="utf-8") as stream:
        stream.write(f"{text}\n")


def lost(asked, reason):
    return {"name": asked[0], "status": reason}


def test_timing_waits_for_everybody_and_for_its_turn(tmp_path):
    log = tmp_path / "log"
    fates = {"a": "works", "b": "fails", "c": "dies", "d": "works"}
    rows = list(Waves(make, lost).rows([(name, str(log), fate) for name, fate in fates.items()], 4))
    assert {r["name"]: r["status"] for r in rows} == {
        "a": "ok", "b": "failed", "c": "its process ended with code 7", "d": "ok",
    }  # fmt: skip
    lines = log.read_text(encoding="utf-8").splitlines()
    assert all(line.endswith("prepares") for line in lines[:4])
    first, second = lines[4][0], lines[6][0]
    assert lines[4:] == [f"{first} begins", f"{first} ends", f"{second} begins", f"{second} ends"]
    assert {first, second} == {"a", "d"}


def test_a_row_is_there_before_the_next_is_timed(tmp_path):
    log = tmp_path / "log"
    rows = Waves(make_at_leisure, lost).rows([(name, str(log), "works") for name in "ab"], 2)
    first = next(rows)
    note(log, f"{first['name']} is there")
    (second,) = rows
    ends = [line for line in log.read_text(encoding="utf-8").splitlines() if line.endswith(("ends", "there"))]
    assert ends == [f"{first['name']} ends", f"{first['name']} is there", f"{second['name']} ends"]


def make_at_leisure(asked, turn):
    """The second to be timed waits until the row of the first is there, ten seconds at most."""
    name, log, _ = asked
    with turn():
        path, until = Path(log), time.monotonic() + 10
        while path.exists() and "there" not in path.read_text(encoding="utf-8") and time.monotonic() < until:
            time.sleep(0.02)
        note(log, f"{name} ends")
    return {"name": name, "status": "ok"}


def without(asked, peer):
    return (f"{asked[0]} without {peer}", asked[1], "works")


@pytest.fixture
def hasty(monkeypatch):
    monkeypatch.setattr(waves, "GRACE_S", 0.3)


def test_a_peer_that_crashes_or_hangs_costs_only_itself(tmp_path, hasty):
    fates = {"a": "works", "b": "crashes in a peer", "c": "hangs"}
    asked = [(name, str(tmp_path / "log"), fate) for name, fate in fates.items()]
    rows = list(Waves(make, lost, without).rows(asked, 3))
    assert [r["name"] for r in rows] == [
        "a",
        "b without torch-graph channels_last",
        "c without torch-compile contiguous",
    ]
    assert [r["status"] for r in rows] == ["ok"] * 3
    assert rows[1]["peers"] == [
        {
            "peer": "torch-graph",
            "variant": "channels_last",
            "reason": "its process ended with code 9 while preparing torch-graph channels_last",
        }
    ]
    assert rows[2]["peers"][0]["reason"] == "it hung while preparing torch-compile contiguous"
    again = Waves(make, lost).rows(asked[2:], 1)
    assert [r["status"] for r in again] == ["it hung while preparing torch-compile contiguous"]


def left_after_the_first(log, seconds):
    """How much time is left of so many seconds that begin when the first has prepared."""
    begun = []

    def left():
        if not begun and log.exists():
            begun.append(time.monotonic())
        return seconds - (time.monotonic() - begun[0]) if begun else 60.0

    return left


def test_at_the_end_of_the_time_those_that_are_ready_are_timed(tmp_path, hasty):
    fates = {"a": "works", "b": "hangs forever"}
    asked = [(name, str(tmp_path / "log"), fate) for name, fate in fates.items()]
    waves = Waves(make_slowly, lost, left_s=left_after_the_first(tmp_path / "log", 1.0), timing_s=0.0)
    rows = [r["status"] for r in waves.rows([*asked, asked[0]], 2)]
    assert sorted(rows[:2]) == ["ok", "the time limit was over"]
    assert rows[2:] == ["the time limit was over before it"]


def test_nobody_prepares_longer_than_leaves_time_to_time_the_others(tmp_path, hasty):
    left = left_after_the_first(tmp_path / "log", 4.0)
    fates = {"a": "works", "b": "hangs forever"}
    asked = [(name, str(tmp_path / "log"), fate) for name, fate in fates.items()]
    made = Waves(make_slowly, lost, left_s=left, timing_s=3.0).rows(asked, 2)
    assert {r["name"]: r["status"] for r in made} == {"a": "ok", "b": "the time limit was over"}
    assert left() > 0


def make_slowly(asked, turn):
    if asked[2] == "hangs forever":
        time.sleep(60)
    return make(asked, turn)
