"""Rows of the benchmark from several processes: prepared together, timed one by one, none lost silently."""

import os
import time

from tilewright.tools.bench.waves import rows_in_waves


def make(asked, turn):
    """Note when preparing and timing begin and end, or end the process at once."""
    name, log, fate = asked
    note(log, f"{name} prepares")
    if fate == "dies":
        os._exit(7)
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
    rows = list(rows_in_waves(make, [(name, str(log), fate) for name, fate in fates.items()], 4, lost))
    assert [(r["name"], r["status"]) for r in rows] == [
        ("a", "ok"), ("b", "failed"), ("c", "its process ended with code 7"), ("d", "ok"),
    ]  # fmt: skip
    lines = log.read_text(encoding="utf-8").splitlines()
    assert all(line.endswith("prepares") for line in lines[:4])
    first, second = lines[4][0], lines[6][0]
    assert lines[4:] == [f"{first} begins", f"{first} ends", f"{second} begins", f"{second} ends"]
    assert {first, second} == {"a", "d"}
