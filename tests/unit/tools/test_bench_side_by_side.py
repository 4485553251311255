"""Rows of the benchmark from several processes: prepared side by side, timed alone, none lost silently."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilewright.tools.bench import side_by_side
from tilewright.tools.bench.side_by_side import SideBySide

#: when this process began
BEGIN = time.monotonic()


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


def test_every_request_gives_a_row(tmp_path):
    log = tmp_path / "log"
    fates = {"a": "works", "b": "fails", "c": "dies", "d": "works"}
    rows = list(SideBySide(make, lost).rows([(name, str(log), fate) for name, fate in fates.items()], 4))
    assert {r["name"]: r["status"] for r in rows} == {
        "a": "ok", "b": "failed", "c": "its process ended with code 7", "d": "ok",
    }  # fmt: skip


#: a program that a process starts to prepare its row, as PyTorch's compiler does
COMPILER = """import sys, time
for _ in range(400):
    print("c compiles", file=open(sys.argv[1], "a"))
    time.sleep(0.01)
"""


def make_beside_compiler(asked, turn):
    """The first is ready when the compiler of the second is at work, and is timed for a second."""
    name, log, fate = asked
    if fate == "compiles":
        with subprocess.Popen([sys.executable, "-c", COMPILER, log]):
            while not noted(log, "a ends"):
                note(log, "b prepares")
        return {"name": name, "status": "ok"}
    while not noted(log, "c compiles"):
        pass
    with turn():
        note(log, "a begins")
        time.sleep(1.0)
        note(log, "a ends")
    return {"name": name, "status": "ok"}


def noted(log, text):
    """Whether a line is in the log; a hundredth of a second later, and for 30 seconds at most."""
    time.sleep(0.01)
    if time.monotonic() > BEGIN + 30:
        raise TimeoutError(f"nobody noted '{text}'")
    return text in Path(log).read_text(encoding="utf-8").splitlines()


def test_nobody_works_while_another_is_timed(tmp_path):
    log = tmp_path / "log"
    log.touch()
    asked = [("a", str(log), "works"), ("b", str(log), "compiles")]
    rows = list(SideBySide(make_beside_compiler, lost).rows(asked, 2))
    assert {r["name"]: r["status"] for r in rows} == {"a": "ok", "b": "ok"}
    lines = log.read_text(encoding="utf-8").splitlines()
    begin, end = lines.index("a begins"), lines.index("a ends")
    assert {"b prepares", "c compiles"} <= set(lines[:begin])
    assert end == begin + 1
    assert "c compiles" in lines[end:]


def make_when_the_last_ended(asked, turn):
    """A slow one prepares until the last of all has ended."""
    _name, log, fate = asked
    while fate == "slow" and not noted(log, "c ends"):
        pass
    return make(asked, turn)


def test_a_slow_row_holds_up_no_other(tmp_path):
    log = tmp_path / "log"
    log.touch()
    asked = [(name, str(log), "slow" if name == "a" else "works") for name in "abc"]
    rows = list(SideBySide(make_when_the_last_ended, lost).rows(asked, 2))
    assert [(r["name"], r["status"]) for r in rows] == [("b", "ok"), ("c", "ok"), ("a", "ok")]


def test_a_row_is_there_before_the_next_is_timed(tmp_path):
    log = tmp_path / "log"
    rows = SideBySide(make_at_leisure, lost).rows([(name, str(log), "works") for name in "ab"], 2)
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
    monkeypatch.setattr(side_by_side, "GRACE_S", 0.3)


def test_a_peer_that_crashes_or_hangs_costs_only_itself(tmp_path, hasty):
    fates = {"a": "works", "b": "crashes in a peer", "c": "hangs"}
    asked = [(name, str(tmp_path / "log"), fate) for name, fate in fates.items()]
    rows = sorted(SideBySide(make, lost, without).rows(asked, 3), key=lambda row: row["name"])
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
    again = SideBySide(make, lost).rows(asked[2:], 1)
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
    left = left_after_the_first(tmp_path / "log", 1.0)
    way = SideBySide(make_slowly, lost, left_s=left, timing_s=0.0)
    # Two of eight are waited for before anybody is timed.
    rows = {r["name"]: r["status"] for r in way.rows(asked, 8)}
    assert rows == {"a": "ok", "b": "the time limit was over"}
    (late,) = way.rows([asked[0]], 1)
    assert late["status"] == "the time limit was over before it"


def test_nobody_prepares_longer_than_leaves_time_to_time_the_others(tmp_path, hasty):
    left = left_after_the_first(tmp_path / "log", 4.0)
    fates = {"a": "works", "b": "hangs forever"}
    asked = [(name, str(tmp_path / "log"), fate) for name, fate in fates.items()]
    made = SideBySide(make_slowly, lost, left_s=left, timing_s=3.0).rows(asked, 8)
    assert {r["name"]: r["status"] for r in made} == {"a": "ok", "b": "the time limit was over"}
    assert left() > 0


def make_slowly(asked, turn):
    if asked[2] == "hangs forever":
        time.sleep(60)
    return make(asked, turn)
