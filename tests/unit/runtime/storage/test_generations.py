"""State on storage: a process killed at any moment leaves what the last commit said."""

import json
import os
import signal
import zlib

import numpy as np
import pytest

from tilewright.runtime.errors import InputError, StorageError
from tilewright.runtime.storage import generations
from tilewright.runtime.storage.generations import RECORD_NAME, Kept, create_store, open_store
from tilewright.runtime.storage.layout import TensorSpec
from tilewright.runtime.storage.source import IoOptions

IO = IoOptions(depth=2)
TENSORS = (
    Kept(TensorSpec("w", "float32", (300, 1000))),
    Kept(TensorSpec("m", "float32", (7,))),
    Kept(TensorSpec("g", "float32", (5,)), scratch=True),
)


def values(k):
    return {"w": np.full((300, 1000), k, np.float32), "m": np.arange(7, dtype=np.float32) + k}


@pytest.fixture
def store(tmp_path):
    with create_store(tmp_path, TENSORS, values(0).__getitem__, {"step": np.uint32(0)}, IO) as store:
        yield store


def write(store, k):
    for name, array in values(k).items():
        store.put(name, array)


def check(store, k):
    for name, array in values(k).items():
        np.testing.assert_array_equal(store.tensor(name), array)
    assert store.host["step"] == k


def test_what_is_written_counts_with_the_commit(store, tmp_path):
    write(store, 1)
    np.testing.assert_array_equal(store.tensor("w"), values(1)["w"])  # as the run sees it
    store.rollback()
    check(store, 0)
    write(store, 1)
    store.commit({"step": np.uint32(1)})
    check(store, 1)
    store.close()
    with open_store(tmp_path, TENSORS, IO) as again:
        check(again, 1)
        assert again.number == 2


@pytest.mark.parametrize("moment", ["write", "flush", "record", "renamed"])
def test_a_killed_process_leaves_the_last_commit(store, tmp_path, monkeypatch, moment):
    store.close()
    child = os.fork()
    if not child:
        kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
        with open_store(tmp_path, TENSORS, IO) as own:
            write(own, 1)
            if moment == "write":
                own.put("w", values(1)["w"])
                kill()
            if moment == "flush":
                os.fdatasync = kill
            if moment == "record":
                os.replace = kill
            if moment == "renamed":
                os.fsync = lambda fd, first=[]: kill() if first else first.append(fd)
            own.commit({"step": np.uint32(1)})
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    with open_store(tmp_path, TENSORS, IO) as again:
        check(again, 1 if moment == "renamed" else 0)
        write(again, 5)
        again.commit({"step": np.uint32(5)})
        check(again, 5)


def test_a_failed_commit_changes_nothing(store, monkeypatch):
    write(store, 1)
    monkeypatch.setattr(
        generations, "_write_record", lambda *_: (_ for _ in ()).throw(OSError(28, "no room"))
    )
    with pytest.raises(StorageError, match="the state cannot be kept"):
        store.commit({"step": np.uint32(1)})
    check(store, 0)


def test_damage_is_found(store, tmp_path):
    store.close()
    (data,) = tmp_path.glob("training-*.state")
    before = data.read_bytes()
    data.write_bytes(b"\1" + before[1:])
    with (
        open_store(tmp_path, TENSORS, IO) as again,
        pytest.raises(StorageError, match="checksum of 'w' differs"),
    ):
        again.tensor("w")
    data.write_bytes(before[:100])
    with pytest.raises(StorageError, match="missing or cut off"):
        open_store(tmp_path, TENSORS, IO)
    record = tmp_path / RECORD_NAME
    record.write_bytes(record.read_bytes()[:-2])
    with pytest.raises(StorageError, match="got a damaged or other file"):
        open_store(tmp_path, TENSORS, IO)
    body = json.dumps({"format": "tilewright-training", "version": 9}).encode()
    record.write_bytes(b"%d\n" % zlib.crc32(body) + body)
    with pytest.raises(InputError, match="expected a record of version 1, got 9"):
        open_store(tmp_path, TENSORS, IO)


def test_another_step_or_process_is_refused(store, tmp_path):
    with pytest.raises(InputError, match="another process uses it"):
        open_store(tmp_path, TENSORS, IO)
    store.close()
    other = (Kept(TensorSpec("w", "float32", (300, 7))), *TENSORS[1:])
    with pytest.raises(InputError, match=r"'w' is float32\[300, 1000\] there and float32\[300, 7\] here"):
        open_store(tmp_path, other, IO)
    with pytest.raises(InputError, match="cannot be read"):
        open_store(tmp_path / "none", TENSORS, IO)


def test_a_disk_too_full_says_so_before_anything_is_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match="of state cannot be written"):
        create_store(tmp_path, TENSORS, values(0).__getitem__, {}, IO)
    assert not list(tmp_path.iterdir())
