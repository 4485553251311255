"""Page-locked buffers and GPUDirect Storage, with a driver and a kvikio made up for the test."""

import sys
from contextlib import contextmanager

import numpy as np
import pytest
from kvikio_samples import CuFile, made_up_kvikio
from storage_samples import large_steps, same, write

from tilewright.runtime.cuda.queue import PinnedAllocator
from tilewright.runtime.errors import DeviceMissingError, InputError, OutOfMemoryError, StorageError
from tilewright.runtime.storage.gpudirect import DeviceReader
from tilewright.runtime.storage.prefetch import Prefetcher
from tilewright.runtime.storage.reader import StepReader


class Context:
    """Hands out host memory that does not begin at a page, and knows whether it is current."""

    def __init__(self):
        self.blocks, self.inside, self.full = {}, 0, False

    @contextmanager
    def current(self):
        self.inside += 1
        yield
        self.inside -= 1

    def call(self, function, argument, doing=""):
        assert self.inside
        if function == "cuMemFreeHost":
            del self.blocks[argument]
            return None
        assert function == "cuMemAllocHost"
        if self.full:
            raise OutOfMemoryError(f"{function} ({doing}) failed")
        block = np.zeros(argument + 16, np.uint8)
        address = block.ctypes.data + 16
        self.blocks[address] = block
        return address


def test_page_locked_buffers_begin_at_a_page_and_go_back(tmp_path):
    context = Context()
    allocator = PinnedAllocator(context)
    steps = large_steps(3, 9000)
    with (
        StepReader(write(tmp_path / "a", steps)) as reader,
        Prefetcher(reader, range(3), allocator) as prefetcher,
    ):
        assert len(context.blocks) == 2
        for loaded in prefetcher:
            with loaded:
                assert loaded.buffer.address % 4096 == 0
                assert same(loaded.arrays(), steps[loaded.stored.name])
    assert context.blocks == {}
    context.full = True
    with pytest.raises(OutOfMemoryError, match="4096 bytes to read into"):
        allocator.allocate(1)


@pytest.fixture
def kvikio(monkeypatch):
    return made_up_kvikio(monkeypatch)


def test_steps_are_read_to_device_addresses(tmp_path, kvikio):
    steps = large_steps(2, 9000)
    path = write(tmp_path / "a", steps)
    with DeviceReader(path) as reader:
        stored = reader.layout.steps[1]
        device = np.zeros(stored.nbytes, np.uint8)
        transfer = reader.read_into_device(1, device.ctypes.data)
        assert (transfer.step, transfer.nbytes, transfer.verified) == (1, stored.nbytes, False)
        assert same(stored.arrays(device.data), steps["step1"])
        assert (reader.facts.direct, reader.facts.depth) == (False, 8)
        assert "goes through host memory" in reader.facts.note
        pending = reader.start_into_device(0, device.ctypes.data)
        assert pending.done()
        pending.cancel()
        with pytest.raises(InputError, match=r"a step in 0\.\.1, got 2"):
            reader.read_into_device(2, 4096)
        with pytest.raises(InputError, match="expected a device address, got 0"):
            reader.read_into_device(0, 0)
    kvikio.cufile_driver.get = {"is_gds_available": True}.__getitem__
    with DeviceReader(path) as reader:
        assert (reader.facts.direct, reader.facts.note) == (True, "")


@pytest.mark.parametrize(
    ("fault", "message"),
    [(RuntimeError("cuFile says no"), "failed: cuFile says no"), (4096, "expected 12288 bytes, got 4096")],
)
@pytest.mark.usefixtures("kvikio")
def test_faults_on_the_way_to_the_device(tmp_path, monkeypatch, fault, message):
    monkeypatch.setattr(CuFile, "fault", fault)
    with DeviceReader(write(tmp_path / "a", large_steps(1, 9000))) as reader:
        with pytest.raises(StorageError, match=rf"reading step 'step0' at byte 4096 into the GPU.*{message}"):
            reader.read_into_device(0, 4096)
        reader.start_into_device(0, 4096).cancel()


@pytest.mark.usefixtures("kvikio")
def test_no_store_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(b"something else")
    with pytest.raises(InputError, match="expected a store of tensors"):
        DeviceReader(tmp_path / "a")


def test_without_kvikio_the_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "kvikio", None)
    with pytest.raises(DeviceMissingError, match="needs the package kvikio"):
        DeviceReader(tmp_path / "a")
