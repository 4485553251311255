"""What storage and devices do wrong in a streamed run: clear errors, nothing left, threads ended."""

import errno
import os
import threading
import time

import numpy as np
import pytest
from streaming_samples import numbers, table_network

from tilewright import streaming
from tilewright.ir import InputError, TilewrightError, WorkError
from tilewright.runtime.errors import OutOfMemoryError
from tilewright.runtime.interface.queue import CappedMemory, Location, check_places
from tilewright.runtime.null.device import NullDevice
from tilewright.runtime.null.queue import NullQueue
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan
from tilewright.streaming import executable
from tilewright.streaming.store_file import STORE_NAME

CAP = 14_000


@pytest.fixture(autouse=True)
def threads_end():
    before = threading.active_count()
    yield
    end = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


@pytest.fixture
def on_opencl(tmp_path):
    with streaming.compile(table_network(), "opencl", memory_cap=CAP, folder=tmp_path) as exe:
        yield exe


@pytest.fixture
def devices(monkeypatch):
    """Null devices in place of OpenCL's, in the order in which they were opened."""
    opened = []

    def queue(target, cap_bytes, *, direct):
        opened.append(NullDevice())
        return NullQueue(opened[-1], cap_bytes)

    monkeypatch.setattr(executable, "open_queue", queue)
    return opened


@pytest.fixture
def streamed(on_opencl, devices):
    return on_opencl


def test_a_short_file_is_told_and_works_again_when_it_is_whole(on_opencl, tmp_path):
    streamed = on_opencl
    store = tmp_path / STORE_NAME
    (wanted,) = streamed(numbers())
    whole = store.read_bytes()
    os.truncate(store, len(whole) - 4096)
    with pytest.raises(WorkError, match=STORE_NAME):
        streamed(numbers())
    with pytest.raises(TilewrightError, match=STORE_NAME):
        streamed(numbers())
    store.write_bytes(whole)
    np.testing.assert_array_equal(streamed(numbers())[0], wanted)


def test_damaged_weights_are_told(streamed, tmp_path):
    store = tmp_path / STORE_NAME
    data = bytearray(store.read_bytes())
    data[-4096] ^= 1
    store.write_bytes(data)
    with pytest.raises(WorkError, match="checksum"):
        streamed(numbers())


def test_interrupted_reads_are_told(streamed, monkeypatch):
    streamed(numbers())
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", _failing(os.preadv, at=3))
        with pytest.raises(WorkError, match=rf"{STORE_NAME}.*Input/output error"):
            streamed.run([[numbers()]] * 2, "ar")
    assert len(streamed.run([[numbers()]] * 2, "ar")) == 2


def _failing(function, *, at):
    calls = iter(range(1000))

    def call(*args):
        if next(calls) >= at:
            raise OSError(errno.EIO, "Input/output error")
        return function(*args)

    return call


def test_a_full_disk_leaves_no_file(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(WorkError, match="No space left on device"):
        streaming.compile(table_network(), "opencl", memory_cap=CAP, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_no_room_for_waiting_values_is_told(streamed, tmp_path, monkeypatch):
    options = executable.StreamOptions(streamed.memory.device_bytes, host_bytes=1)
    monkeypatch.setattr(streamed, "options", options)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(WorkError, match="No space left on device"):
            streamed.run([[numbers()]] * 2, "pr")
    assert [f.name for f in tmp_path.iterdir()] == [STORE_NAME]
    assert len(streamed.run([[numbers()]] * 2, "pr")) == 2


def test_temporary_folders_go(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with streaming.compile(table_network(), "opencl", memory_cap=CAP) as exe:
        assert len(list(tmp_path.iterdir())) == 1
        exe.close()
        with pytest.raises(InputError, match="was closed"):
            exe(numbers())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("action", ["upload", "launch", "copy-out"])
def test_a_device_that_fails_is_told_and_opened_anew(streamed, devices, action):
    assert streamed.device == "null"
    devices[0].fail(action, skip=0 if action == "copy-out" else 1)
    with pytest.raises(WorkError, match="as asked for"):
        streamed.run([[numbers()]] * 2, "ar")
    assert devices[0].bytes_in_use == 0
    assert streamed(numbers())[0].shape == (2, 3, 96)
    assert len(devices) == 2


def test_a_device_without_the_memory_is_told(streamed, monkeypatch):
    device = NullDevice(memory_bytes=streamed.memory.device_bytes - 1)
    monkeypatch.setattr(executable, "open_queue", lambda _, cap, direct: NullQueue(device, cap))
    with pytest.raises(WorkError, match="values between steps takes"):
        streamed(numbers())
    assert device.bytes_in_use == 0


def test_memory_beyond_the_cap_is_refused():
    memory = CappedMemory(100)
    memory.take(60, "a")
    with pytest.raises(OutOfMemoryError, match=r"b takes 50 bytes.*cap of 100 bytes 40 are left"):
        memory.take(50, "b")
    memory.give_back(60)
    memory.take(100, "c")
    assert (memory.bytes_in_use, memory.peak_bytes) == (100, 100)


def test_places_are_checked():
    buffers = (Buffer("x", "float32", (64,), "input", 256), Buffer("y", "float32", (64,), "output", 256))
    plan = ExecutionPlan("null", buffers, (), (), ("x",), ("y",), 0)
    with NullQueue(NullDevice(), 1024) as queue:
        block = queue.allocate(512, "both")
        check_places(plan, {"x": Location(block), "y": Location(block, 256)})
        for places in ({"x": Location(block)}, {"x": Location(block), "y": Location(block, 260)}):
            with pytest.raises(InputError, match="buffer 'y'"):
                queue.place(plan, places)
        with pytest.raises(InputError, match="inside both of 512 bytes"):
            queue.place(plan, {"x": Location(block), "y": Location(block, 512)})
