"""Ranks of one machine share its cores: what OpenCL implementations read about their threads."""

import os
from types import SimpleNamespace

import pytest

from tilewright.runtime.communication import mpi_world
from tilewright.runtime.communication.mpi_world import THREADS


@pytest.mark.parametrize(
    ("cores", "allowed", "ranks", "threads"),
    [(8, 8, 2, 4), (8, 8, 3, 2), (2, 2, 4, 1), (8, 2, 4, 2), (8, 1, 4, 1)],
)
def test_every_rank_gets_its_share(monkeypatch, cores, allowed, ranks, threads):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(allowed)))
    for name in THREADS:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    mpi_world._limit_threads(SimpleNamespace(ranks_here=ranks))
    assert [os.environ[name] for name in THREADS] == [str(threads)] * len(THREADS)


def test_what_the_user_says_stays(monkeypatch):
    for name in THREADS:
        monkeypatch.setenv(name, "7")
    mpi_world._limit_threads(SimpleNamespace(ranks_here=2))
    assert [os.environ[name] for name in THREADS] == ["7", "7"]
