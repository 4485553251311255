"""The binary cache: exact payloads, damage noticed, bounded, shared by processes."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.codegen.builders.cache import BinaryCache, cache_key


@given(st.binary(max_size=300))
def test_payloads_come_back(tmp_path_factory, payload):
    cache = BinaryCache(tmp_path_factory.mktemp("cache"))
    assert cache.get("k") is None
    cache.put("k", payload)
    assert cache.get("k") == payload
    assert BinaryCache(cache.folder.parent).get("k") == payload


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_keys_are_equal_only_for_equal_parts(first, second):
    assert (cache_key(*first) == cache_key(*second)) == (first == second)


@given(data=st.data())
def test_any_damage_is_a_miss_and_removed(tmp_path_factory, data):
    cache = BinaryCache(tmp_path_factory.mktemp("cache"))
    cache.put("k", b"payload")
    (path,) = cache.folder.iterdir()
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    else:
        content[data.draw(st.integers(0, len(content) - 1))] ^= 0x40
    path.write_bytes(content)
    assert cache.get("k") is None
    assert not path.exists()


def test_the_oldest_go_first(tmp_path):
    cache = BinaryCache(tmp_path, max_bytes=3000)
    for age, key in enumerate("abcde"):
        cache.put(key, bytes(900))
        os.utime(cache.folder / f"{key}.bin", (age, age)) if (cache.folder / f"{key}.bin").exists() else None
        if key == "c":
            assert cache.get("a") is not None  # used again: now the youngest
    kept = {path.stem for path in cache.folder.glob("*.bin")}
    assert "a" in kept
    assert "b" not in kept
    assert sum(path.stat().st_size for path in cache.folder.iterdir()) <= 3000


def test_an_unwritable_folder_warns_and_works(tmp_path):
    (tmp_path / "file").write_text("")
    cache = BinaryCache(tmp_path / "file")
    with pytest.warns(RuntimeWarning, match="TILEWRIGHT_CACHE_DIR"):
        cache.put("k", b"x")
    assert cache.get("k") is None


HAMMER = """
import sys
from tilewright.codegen.builders.cache import BinaryCache
cache = BinaryCache(sys.argv[1], max_bytes=20_000)
for step in range(300):
    key = str(step % 7)
    expected = key.encode() * 1000
    found = cache.get(key)
    assert found in (None, expected), found
    cache.put(key, expected)
"""


def test_two_processes_at_once(tmp_path):
    command = [sys.executable, "-c", HAMMER, str(tmp_path)]
    workers = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    for worker in workers:
        _, errors = worker.communicate(timeout=60)
        assert worker.returncode == 0, errors.decode()
    assert not list(tmp_path.rglob("*.part"))
