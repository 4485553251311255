"""Reading steps: faults told with file, step and offset, threads side by side, nothing left behind."""

import errno
import fcntl
import os
import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from storage_samples import (
    BUFFERS,
    buffer_for,
    large_steps,
    open_descriptors,
    same,
    threads_of_storage,
    write,
)

from tilewright.runtime.errors import InputError, StorageError
from tilewright.runtime.storage import direct_file
from tilewright.runtime.storage.direct_file import DirectFile
from tilewright.runtime.storage.layout import BLOCK_BYTES, PAGE_BYTES
from tilewright.runtime.storage.reader import StepReader
from tilewright.runtime.storage.source import IoOptions
from tilewright.runtime.storage.transfers import ChunkedTransfer

SMALL = IoOptions(chunk_bytes=BLOCK_BYTES, depth=2)
STEPS = large_steps()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("store") / "weights.safetensors", STEPS)


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = open_descriptors()
    yield
    assert (threads_of_storage(), open_descriptors()) == ([], before)


def test_times_and_bytes_of_a_read(path):
    with StepReader(path, SMALL) as reader:
        first, again = (reader.read(1, buffer_for(reader)) for _ in range(2))
        assert (first.step, first.nbytes) == (1, reader.layout.steps[1].nbytes)
        assert first.began_s <= first.ended_s <= again.began_s <= again.ended_s
        assert (first.verified, again.verified) == (True, False)
    with StepReader(path, IoOptions(verify="always")) as reader:
        assert all(reader.read(1, buffer_for(reader)).verified for _ in range(2))


def test_several_threads_read_with_one_reader(path):
    with StepReader(path, SMALL) as reader, ThreadPoolExecutor(6) as users:

        def user(number):
            buffer = buffer_for(reader)
            for step in (number % 3, (number + 1) % 3):
                reader.read(step, buffer)
                assert same(reader.layout.steps[step].arrays(buffer.view), STEPS[f"step{step}"])
            return True

        assert all(users.map(user, range(12)))


def test_transfers_of_several_steps_run_at_once(path):
    with StepReader(path, SMALL) as reader:
        buffers = [buffer_for(reader) for _ in STEPS]
        pending = [reader.start(step, buffer) for step, buffer in enumerate(buffers)]
        assert [transfer.wait().step for transfer in reversed(pending)] == [2, 1, 0]
        assert all(transfer.done() for transfer in pending)


@pytest.mark.parametrize(("step", "message"), [(3, "a step in 0..2, got 3"), (-1, "a step in 0..2, got -1")])
def test_steps_that_are_not_there(path, step, message):
    with StepReader(path) as reader, pytest.raises(InputError, match=message):
        reader.start(step, buffer_for(reader))


def test_a_buffer_too_small_and_a_closed_reader_are_refused(path):
    with StepReader(path) as reader:
        with pytest.raises(InputError, match=r"a buffer of \d+ bytes, got 4096"):
            reader.start(0, BUFFERS.allocate(1))
        buffer = buffer_for(reader)
    with pytest.raises(InputError, match="closed already"):
        reader.start(0, buffer)
    reader.close()


def test_an_error_of_the_drive_names_file_step_and_offset(path, monkeypatch):
    with StepReader(path, SMALL) as reader:
        bad = reader.layout.steps[1].offset + BLOCK_BYTES
        preadv = os.preadv

        def failing(descriptor, buffers, offset):
            if offset == bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return preadv(descriptor, buffers, offset)

        monkeypatch.setattr(direct_file.os, "preadv", failing)
        buffer = buffer_for(reader)
        reader.read(0, buffer)
        pending = reader.start(1, buffer)
        for _ in range(2):
            with pytest.raises(
                StorageError,
                match=re.escape(f"{path}: reading step 'step1' at byte {bad} failed: Input/output"),
            ):
                pending.wait()
        monkeypatch.undo()
        reader.read(1, buffer)


def test_short_requests_are_asked_for_again(path, monkeypatch):
    preadv = os.preadv
    asked = []

    def short(descriptor, buffers, offset):
        asked.append(offset % PAGE_BYTES)
        # Whole pages and a part: what follows must begin at the page.
        return preadv(descriptor, [buffers[0][: 3 * PAGE_BYTES]], offset) - 100

    with StepReader(path, SMALL) as reader:
        monkeypatch.setattr(direct_file.os, "preadv", short)
        buffer = BUFFERS.allocate(5 * PAGE_BYTES)
        with pytest.raises(StorageError, match=r"only 3996 bytes came|bytes came; the file has"):
            reader._file.read_into(buffer.view[: 4 * PAGE_BYTES], reader.layout.steps[0].offset, "s")
        monkeypatch.setattr(direct_file.os, "preadv", lambda d, b, o: preadv(d, [b[0][: 2 * PAGE_BYTES]], o))
        assert reader.read(0, whole := buffer_for(reader)).verified
        assert same(reader.layout.steps[0].arrays(whole.view), STEPS["step0"])
    assert set(asked) == {0}


def test_a_file_cut_off_during_the_run(tmp_path):
    copy = write(tmp_path / "a", STEPS)
    with StepReader(copy, SMALL) as reader:
        buffer = buffer_for(reader)
        reader.read(2, buffer)
        os.truncate(copy, reader.layout.steps[2].offset + 100)
        with pytest.raises(
            StorageError, match=r"a: reading step 'step2' at byte \d+ failed: only \d+ bytes came"
        ):
            reader.read(2, buffer)
        with pytest.raises(StorageError, match="a: the file was changed while step 'step0' was read at byte"):
            reader.read(0, buffer)


def test_a_file_changed_or_replaced_during_the_run(tmp_path):
    copy = write(tmp_path / "a", STEPS)
    with StepReader(copy) as reader:
        os.rename(write(tmp_path / "b", large_steps(seed=1)), copy)
        buffer = buffer_for(reader)
        reader.read(0, buffer)
        assert same(reader.layout.steps[0].arrays(buffer.view), STEPS["step0"])
    with StepReader(copy) as reader:
        with open(copy, "r+b") as file:
            file.seek(reader.layout.steps[1].offset)
            file.write(b"new")
        os.utime(copy, ns=(1, 1))
        with pytest.raises(StorageError, match="was changed while step 'step0' was read"):
            reader.read(0, buffer)


def test_signals_do_not_disturb_reads(path):
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        with StepReader(path, IoOptions(chunk_bytes=BLOCK_BYTES, depth=2, verify="always")) as reader:
            buffer = buffer_for(reader)
            while len(seen) < 5:
                assert reader.read(0, buffer).verified
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("refusing", ["flag", "request", "silently"])
def test_file_systems_without_direct_requests_are_reported(path, monkeypatch, refusing):
    monkeypatch.setattr(direct_file, "_file_system", lambda _: "oddfs")
    preadv, change = os.preadv, fcntl.fcntl

    def no_flag(descriptor, command, flags=0):
        if command == fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return change(descriptor, command, flags)

    def ignored(descriptor, command, flags=0):
        return change(descriptor, command, flags & ~os.O_DIRECT)

    def no_request(descriptor, buffers, offset):
        if change(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return preadv(descriptor, buffers, offset)

    if refusing == "flag":
        monkeypatch.setattr(direct_file.fcntl, "fcntl", no_flag)
    elif refusing == "silently":
        monkeypatch.setattr(direct_file.fcntl, "fcntl", ignored)
    else:
        monkeypatch.setattr(direct_file.os, "preadv", no_request)
    with StepReader(path) as reader:
        assert not reader.facts.direct
        expected = "(oddfs) refuses direct requests of 4096 bytes (Invalid argument)"
        if refusing == "silently":
            expected = "the system ignores direct requests to this file system (oddfs)"
        assert expected in reader.facts.note
        reader.read(0, buffer := buffer_for(reader))
        assert same(reader.layout.steps[0].arrays(buffer.view), STEPS["step0"])


def test_what_is_asked_for_is_what_facts_say(path, monkeypatch):
    monkeypatch.setattr(direct_file, "_file_system", lambda _: "tmpfs")
    with StepReader(path, SMALL) as reader:
        facts = reader.facts
        assert (facts.path, facts.chunk_bytes, facts.depth) == (str(path), BLOCK_BYTES, 2)
        assert (facts.direct, "tmpfs keeps its files in memory" in facts.note) == (False, True)
    with StepReader(path, IoOptions(direct=False, drop_cache=True)) as reader:
        assert reader.facts.note == "direct requests were not asked for"
        assert reader.read(0, buffer_for(reader)).verified


def test_an_error_that_is_no_refusal_is_not_taken_for_one(path, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(direct_file.os, "preadv", broken)
    for direct in (True, False):
        with pytest.raises(StorageError, match=re.escape(f"{path}: reading at byte 0 failed: Input/output")):
            StepReader(path, IoOptions(direct=direct))


def test_a_cancelled_transfer_starts_no_more_requests():
    started, go = threading.Event(), threading.Event()
    ran = []

    def request(begin, end):
        ran.append((begin, end))
        started.set()
        go.wait(10)

    with ThreadPoolExecutor(1, "tilewright-test") as pool:
        transfer = ChunkedTransfer(pool, 4, 10, 3, request, False, lambda: ran.append("end"))
        started.wait(10)
        canceller = threading.Thread(target=transfer.cancel)
        canceller.start()
        canceller.join(0.05)
        assert canceller.is_alive()  # the request in flight still uses the buffer
        go.set()
        canceller.join(10)
        assert (ran, transfer.done()) == ([(0, 3)], True)
        with pytest.raises(StorageError, match="step number 4 was cancelled"):
            transfer.wait()


def test_the_first_failure_ends_a_transfer():
    ran = []

    def request(begin, end):
        ran.append(begin)
        if begin == 3:
            raise StorageError("made up")

    with ThreadPoolExecutor(1, "tilewright-test") as pool:
        transfer = ChunkedTransfer(pool, 0, 10, 3, request, False, lambda: ran.append("end"))
        with pytest.raises(StorageError, match="made up"):
            transfer.wait()
        transfer.cancel()
        with pytest.raises(StorageError, match="made up"):
            transfer.wait()
    assert ran == [0, 3]


def test_closing_in_the_middle_leaves_nothing(path, monkeypatch):
    started, go = threading.Event(), threading.Event()
    read_into = DirectFile.read_into

    def slow(self, view, offset, step):
        started.set()
        go.wait(10)
        read_into(self, view, offset, step)

    reader = StepReader(path, SMALL)
    monkeypatch.setattr(DirectFile, "read_into", slow)
    pending = reader.start(0, buffer_for(reader))
    started.wait(10)
    timer = threading.Timer(0.02, go.set)
    timer.start()
    reader.close()
    assert pending.done()
    timer.join()


@pytest.mark.parametrize(
    "wrong", [{"chunk_bytes": 0}, {"chunk_bytes": 4096}, {"depth": 0}, {"depth": 1000}, {"verify": "maybe"}]
)
def test_options_that_cannot_be(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        IoOptions(**wrong)
