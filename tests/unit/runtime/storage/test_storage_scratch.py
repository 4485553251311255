"""Scratch space for activations: written behind, read in any order, measured, gone without a trace."""

import errno
import os
import resource
import signal
import threading
from contextlib import suppress

import numpy as np
import pytest
from storage_samples import (
    BUFFERS,
    buffer_for,
    every_dtype,
    large_steps,
    open_descriptors,
    same,
    specs,
    threads_of_storage,
)

from tilewright.runtime.errors import InputError, StorageError
from tilewright.runtime.storage import direct_file, measure
from tilewright.runtime.storage.direct_file import DirectFile
from tilewright.runtime.storage.layout import BLOCK_BYTES
from tilewright.runtime.storage.measure import measure_storage, read_for
from tilewright.runtime.storage.prefetch import Prefetcher
from tilewright.runtime.storage.scratch import ScratchStore, StepWriter
from tilewright.runtime.storage.source import IoOptions

SMALL = IoOptions(chunk_bytes=BLOCK_BYTES, depth=2)


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    before = open_descriptors()
    yield
    assert (threads_of_storage(), open_descriptors(), os.listdir(tmp_path)) == ([], before, [])


def fill(writer, number, arrays):
    opened = writer.open(number)
    for name, array in opened.arrays().items():
        array[...] = arrays[name]
    writer.submit(opened)


@pytest.mark.parametrize("direct", [True, False])
def test_what_goes_forward_comes_back_backward(tmp_path, direct):
    steps = every_dtype() | large_steps(2)
    options = IoOptions(chunk_bytes=BLOCK_BYTES, depth=2, direct=direct, drop_cache=True)
    with ScratchStore(tmp_path, specs(steps), options) as scratch:
        for _ in range(2):  # the same space serves every iteration
            with StepWriter(scratch, BUFFERS) as writer:
                for number, arrays in enumerate(steps.values()):
                    fill(writer, number, arrays)
                backward = range(len(steps) - 1, -1, -1)
                with Prefetcher(scratch, backward, BUFFERS) as prefetcher:
                    for loaded in prefetcher:
                        with loaded:
                            assert same(loaded.arrays(), steps[loaded.stored.name])
                    assert all(used.transfer.verified for used in prefetcher.used)
                writer.flush()
                assert writer.overlap().steps == len(steps)
                assert writer.host_bytes == 2 * scratch.layout.largest_step_bytes
        scratch.settle()
        scratch.drop_cache()


def test_a_read_waits_for_the_write_before_it(tmp_path, monkeypatch):
    steps = large_steps(1)
    go = threading.Event()
    write_from = DirectFile.write_from

    def slow(self, view, offset, step):
        assert go.wait(10)
        write_from(self, view, offset, step)

    monkeypatch.setattr(DirectFile, "write_from", slow)
    with ScratchStore(tmp_path, specs(steps), SMALL) as scratch, StepWriter(scratch, BUFFERS) as writer:
        fill(writer, 0, steps["step0"])
        read = scratch.start(0, buffer := buffer_for(scratch))
        assert not read.done()
        go.set()
        assert read.wait().verified
        assert same(scratch.layout.steps[0].arrays(buffer.view), steps["step0"])


def test_a_step_never_written_cannot_be_read(tmp_path):
    with (
        ScratchStore(tmp_path, specs(large_steps(2))) as scratch,
        pytest.raises(InputError, match=r"step 'step1' of a scratch file in .* was not written yet"),
    ):
        scratch.start(1, buffer_for(scratch))


def test_a_drive_that_fails_in_the_middle_is_told_from_then_on(tmp_path, monkeypatch):
    steps = large_steps(3)
    with ScratchStore(tmp_path, specs(steps), SMALL) as scratch, StepWriter(scratch, BUFFERS) as writer:
        bad = scratch.layout.steps[1].offset
        pwritev = os.pwritev

        def failing(descriptor, buffers, offset):
            if offset == bad:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return pwritev(descriptor, buffers, offset)

        monkeypatch.setattr(direct_file.os, "pwritev", failing)
        message = rf"writing step 'step1' at byte {bad} failed: No space left on device"
        fill(writer, 0, steps["step0"])
        opened = writer.open(1)
        with suppress(StorageError):  # it may fail before `submit` returns
            writer.submit(opened)
        for call in (writer.flush, scratch.settle, lambda: writer.open(2)):
            with pytest.raises(StorageError, match=message):
                call()
        with pytest.raises(StorageError, match=message):
            scratch.start(1, buffer_for(scratch)).wait()
        scratch.start(0, buffer_for(scratch)).wait()


def test_requests_taken_in_part_are_continued(tmp_path, monkeypatch):
    steps = large_steps(1)
    pwritev = os.pwritev
    with ScratchStore(tmp_path, specs(steps), SMALL) as scratch, StepWriter(scratch, BUFFERS) as writer:
        monkeypatch.setattr(direct_file.os, "pwritev", lambda *_: 4086)
        with pytest.raises(StorageError, match="only 4086 bytes were taken"):
            scratch._file.write_from(BUFFERS.allocate(4097).view, 0, "s")
        monkeypatch.setattr(direct_file.os, "pwritev", lambda d, b, o: pwritev(d, [b[0][: 5 * 4096]], o))
        fill(writer, 0, steps["step0"])
        scratch.start(0, buffer := buffer_for(scratch)).wait()
        assert same(scratch.layout.steps[0].arrays(buffer.view), steps["step0"])


def test_bytes_that_changed_on_storage_are_found(tmp_path):
    steps = large_steps(1)
    with ScratchStore(tmp_path, specs(steps)) as scratch, StepWriter(scratch, BUFFERS) as writer:
        fill(writer, 0, steps["step0"])
        writer.flush()
        page = BUFFERS.allocate(4096)
        os.pwritev(scratch._file.fileno(), [page.view], BLOCK_BYTES)
        with pytest.raises(StorageError, match=f"the bytes from {BLOCK_BYTES} on have the checksum"):
            scratch.start(0, buffer_for(scratch)).wait()


def test_a_full_disk_shows_before_the_run(tmp_path, monkeypatch):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"bytes for a scratch file cannot be had \(File too large\)"):
            ScratchStore(tmp_path, specs(large_steps(1)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    with pytest.raises(StorageError, match=r"a scratch file cannot be made \(No such file or directory\)"):
        ScratchStore(tmp_path / "none", specs(large_steps(1)))


def test_buffers_of_a_writer(tmp_path):
    with ScratchStore(tmp_path, specs(large_steps(2, 10))) as scratch:
        with pytest.raises(InputError, match="at least 1 buffer"):
            StepWriter(scratch, BUFFERS, 0)
        with StepWriter(scratch, BUFFERS, 1) as writer:
            writer.open(0)
            with pytest.raises(InputError, match="submit a step before the next"):
                writer.open(1)
            with pytest.raises(InputError, match=r"a step in 0\.\.1, got 5"):
                writer.open(5)


def test_closing_with_writes_under_way(tmp_path):
    steps = large_steps(3)
    with ScratchStore(tmp_path, specs(steps), SMALL) as scratch, StepWriter(scratch, BUFFERS, 3) as writer:
        for number, arrays in enumerate(steps.values()):
            fill(writer, number, arrays)
    with pytest.raises(InputError, match="closed already"):
        scratch.start_write(0, buffer_for(scratch))


@pytest.mark.parametrize("direct", [True, False])
def test_measured_rates_follow_from_bytes_that_were_moved(tmp_path, direct):
    options = IoOptions(chunk_bytes=BLOCK_BYTES, depth=2, direct=direct)
    found = measure_storage(tmp_path, options, seconds=0.02, max_bytes=9 << 20)
    assert found.read_bytes_per_s > 0
    assert found.write_bytes_per_s > 0
    assert found.mixed_bytes_per_s > 0
    assert found.write_bytes in {(2 << 20) * count for count in range(1, 5)}
    assert found.read_bytes % (2 << 20) == 0 < found.read_bytes
    assert (found.chunk_bytes, found.depth, found.folder) == (BLOCK_BYTES, 2, str(tmp_path))
    assert found.direct or found.note


def test_measuring_keeps_to_what_is_free(tmp_path, monkeypatch):
    class Free:
        f_bavail, f_frsize = 10 << 10, 1 << 10

    monkeypatch.setattr(measure.os, "statvfs", lambda _: Free)
    found = measure_storage(tmp_path, seconds=0.01)
    assert found.write_bytes <= 5 << 20
    Free.f_bavail = 100
    with pytest.raises(StorageError, match="measuring takes 4194304 free bytes, there are 102400"):
        measure_storage(tmp_path)


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"max_bytes": 1000}])
def test_measuring_too_little(tmp_path, wrong):
    with pytest.raises(InputError, match="expected more than 0 s"):
        measure_storage(tmp_path, **wrong)


def test_measuring_where_nothing_is(tmp_path):
    with pytest.raises(StorageError, match="its free space cannot be found"):
        measure_storage(tmp_path / "none")


def test_a_source_is_read_at_least_once(tmp_path):
    with ScratchStore(tmp_path, specs({"s": {"x": np.zeros(5000, np.int8)}})) as scratch:
        scratch.start_write(0, BUFFERS.allocate(8192)).wait()
        facts = read_for(scratch, range(1), BUFFERS, 1e-9)
        assert (facts.steps, facts.nbytes) == (1, 8192)
