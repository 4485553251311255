"""Prefetching: how far ahead, in which order, what is measured, and that errors come where they belong."""

import itertools
import threading

import pytest
from storage_samples import BUFFERS, large_steps, open_descriptors, same, specs, threads_of_storage, write

from tilewright.runtime.errors import InputError, OutOfMemoryError, StorageError
from tilewright.runtime.storage.layout import BLOCK_BYTES, plan_layout
from tilewright.runtime.storage.prefetch import OverlapFacts, Prefetcher, UsedStep, overlap_facts
from tilewright.runtime.storage.reader import StepReader
from tilewright.runtime.storage.source import IoFacts, IoOptions, Transfer

STEPS = large_steps(4, 3000)


class Allocator:
    """Counts its buffers and fails after `limit` of them."""

    pinned = False

    def __init__(self, limit=100):
        self.live, self.limit = 0, limit

    def allocate(self, nbytes):
        if self.live == self.limit:
            raise OutOfMemoryError("no memory left")
        self.live += 1
        return BUFFERS.allocate(nbytes)

    def free(self, buffer):
        self.live -= 1


class Source:
    """A source whose reads end when told, and fail for the steps named in `bad`."""

    facts = IoFacts("memory", True, "", BLOCK_BYTES, 1, "never")

    def __init__(self, bad=()):
        self.layout, self.bad = plan_layout(specs(STEPS)), bad
        self.started, self.cancelled = [], []
        self.go = threading.Event()
        self.go.set()

    def start(self, step, buffer):
        if not 0 <= step < len(self.layout.steps):
            raise InputError(f"no step {step}")
        self.started.append(step)
        return _Read(self, step)


class _Read:
    def __init__(self, source, step):
        self.source, self.step = source, step

    def done(self):
        return self.source.go.is_set()

    def wait(self):
        assert self.source.go.wait(10)
        if self.step in self.source.bad:
            raise StorageError(f"step {self.step} cannot be read")
        return Transfer(self.step, 4096, 1.0, 2.0, False)

    def cancel(self):
        self.source.cancelled.append(self.step)


def test_steps_come_in_the_order_of_the_schedule_with_their_bytes(tmp_path):
    path = write(tmp_path / "a", STEPS)
    before = open_descriptors()
    order = [2, 0, 0, 3, 1]
    with StepReader(path) as reader, Prefetcher(reader, order, BUFFERS) as prefetcher:
        for expected, loaded in zip(order, prefetcher, strict=True):
            with loaded:
                assert loaded.number == expected
                assert same(loaded.arrays(), STEPS[f"step{expected}"])
        assert prefetcher.take() is None
        assert [used.transfer.step for used in prefetcher.used] == order
        facts = prefetcher.overlap()
        assert (facts.steps, facts.nbytes) == (5, 5 * 4096)
        assert 0 < facts.busy_s <= facts.span_s
        assert 0 <= facts.hidden_share <= 1
        assert prefetcher.host_bytes == 2 * 4096
    assert (threads_of_storage(), open_descriptors()) == ([], before)


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_as_many_steps_are_ahead_as_there_are_buffers(buffers):
    source = Source()
    with Prefetcher(source, itertools.cycle(range(4)), BUFFERS, buffers) as prefetcher:
        assert len(source.started) == buffers
        for taken in range(1, 9):
            with prefetcher.take() as loaded:
                assert loaded.number == (taken - 1) % 4
                assert len(source.started) == buffers + taken - 1
            assert len(source.started) == buffers + taken
    assert len(source.cancelled) == buffers


def test_taking_without_releasing_is_an_error_not_a_hang():
    source = Source()
    with Prefetcher(source, range(4), BUFFERS) as prefetcher:
        one, two = prefetcher.take(), prefetcher.take()
        with pytest.raises(InputError, match="all 2 buffers are in use: release a step"):
            prefetcher.take()
        two.release()
        two.release()
        assert source.started == [0, 1, 2]
        assert prefetcher.take().number == 2
        assert one.buffer is not two.buffer


def test_a_step_may_be_released_by_another_thread():
    source = Source()
    with Prefetcher(source, range(4), BUFFERS, 1) as prefetcher:
        loaded = prefetcher.take()
        thread = threading.Thread(target=loaded.release)
        thread.start()
        thread.join()
        assert prefetcher.take().number == 1


def test_errors_come_where_the_step_is_taken_and_stay():
    allocator = Allocator()
    with Prefetcher(Source(bad={2}), range(4), allocator, 3) as prefetcher:
        for expected in (0, 1):
            loaded = prefetcher.take()
            assert loaded.number == expected
        for _ in range(2):
            with pytest.raises(StorageError, match="step 2 cannot be read"):
                prefetcher.take()
        loaded.release()
        with pytest.raises(StorageError, match="step 2 cannot be read"):
            prefetcher.take()
    assert allocator.live == 0


def test_a_schedule_with_a_step_that_is_not_there():
    with Prefetcher(Source(), [0, 9, 1], BUFFERS) as prefetcher:
        prefetcher.take().release()
        for _ in range(2):
            with pytest.raises(InputError, match="no step 9"):
                prefetcher.take()


def test_an_empty_schedule_ends_at_once():
    with Prefetcher(Source(), [], BUFFERS) as prefetcher:
        assert (prefetcher.take(), prefetcher.overlap()) == (None, OverlapFacts(0, 0, 0.0, 0.0, 0.0, 0.0))


def test_closing_cancels_what_is_under_way_and_frees_every_buffer():
    source, allocator = Source(), Allocator()
    source.go.clear()
    prefetcher = Prefetcher(source, range(4), allocator, 3)
    assert allocator.live == 3
    prefetcher.close()
    assert (sorted(source.cancelled), allocator.live) == ([0, 1, 2], 0)
    with pytest.raises(InputError, match="was closed"):
        prefetcher.take()
    prefetcher.close()


def test_a_step_released_after_the_end_starts_nothing():
    source = Source()
    with Prefetcher(source, range(4), BUFFERS) as prefetcher:
        loaded = prefetcher.take()
    loaded.release()
    assert source.started == [0, 1]


def test_buffers_are_given_back_where_one_cannot_be_had():
    allocator = Allocator(limit=2)
    with pytest.raises(OutOfMemoryError, match="no memory left"):
        Prefetcher(Source(), range(4), allocator, 3)
    assert allocator.live == 0
    with pytest.raises(InputError, match="at least 1 buffer"):
        Prefetcher(Source(), range(4), allocator, 0)


def test_closing_in_the_middle_of_real_reads_leaves_nothing(tmp_path):
    path = write(tmp_path / "a", large_steps(3))
    before = open_descriptors()
    for taken in range(3):
        with (
            StepReader(path, IoOptions(chunk_bytes=BLOCK_BYTES, depth=3)) as reader,
            Prefetcher(reader, itertools.cycle(range(3)), BUFFERS) as prefetcher,
        ):
            for _ in range(taken):
                prefetcher.take().release()
    assert (threads_of_storage(), open_descriptors()) == ([], before)


def test_a_checksum_fault_reaches_the_user_of_the_step(tmp_path):
    path = write(tmp_path / "a", large_steps(3))
    with open(path, "r+b") as file:
        file.seek(-8000, 2)
        file.write(b"\0" * 4000)
    with StepReader(path) as reader, Prefetcher(reader, range(3), BUFFERS, 3) as prefetcher:
        assert [prefetcher.take().number, prefetcher.take().number] == [0, 1]
        with pytest.raises(StorageError, match=f"{path}: step 'step2': the bytes from .* checksum"):
            prefetcher.take()


def test_overlap_of_known_times():
    used = [
        UsedStep(Transfer(0, 100, 10.0, 12.0, True), 10.0, 12.0),
        UsedStep(Transfer(1, 100, 11.0, 14.0, True), 13.0, 14.0),
        UsedStep(Transfer(2, 100, 20.0, 21.0, True), 30.0, 30.0),
    ]
    facts = overlap_facts(used)
    assert facts == OverlapFacts(3, 300, busy_s=5.0, waited_s=3.0, first_wait_s=2.0, span_s=20.0)
    assert (facts.hidden_share, facts.read_bytes_per_s) == (pytest.approx(0.4), pytest.approx(60.0))
