"""Cores and cache folders of a process: the compiler takes them from the runtime."""

import os
from pathlib import Path

import pytest

from tilewright.ir import machine
from tilewright.runtime import machine as machine_of_runtime

BOTH = pytest.mark.parametrize("machine", [machine, machine_of_runtime], ids=["compiler", "runtime"])


@BOTH
def test_where_the_cache_lives(monkeypatch, tmp_path, machine):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert machine.cache_folder() == tmp_path / "own"
    monkeypatch.delenv("TILEWRIGHT_CACHE_DIR")
    assert machine.cache_folder() == tmp_path / "xdg" / "tilewright"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert machine.cache_folder() == Path.home() / ".cache" / "tilewright"


def test_where_another_programs_cache_lives(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "ours"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "own"))
    assert machine_of_runtime.cache_folder("POCL_CACHE_DIR", "pocl/kcache") == tmp_path / "own"
    monkeypatch.delenv("POCL_CACHE_DIR")
    assert (
        machine_of_runtime.cache_folder("POCL_CACHE_DIR", "pocl/kcache")
        == tmp_path / "xdg" / "pocl" / "kcache"
    )


@BOTH
def test_cores_are_those_the_process_may_use(monkeypatch, machine):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert machine.usable_cores() == 2
    monkeypatch.delattr(os, "sched_getaffinity")
    assert machine.usable_cores() == 8
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.usable_cores() == 1
