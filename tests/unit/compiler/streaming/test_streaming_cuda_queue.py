"""The queue of a GPU on a made-up driver whose streams run as late and as mixed as their order allows."""

# ruff: noqa: N802, N815 - the driver's own names

import ctypes
import random
from collections import deque
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from kvikio_samples import CuFile, made_up_kvikio

from tilewright.runtime.cuda.queue import CudaQueue
from tilewright.runtime.errors import DeviceError, OutOfMemoryError
from tilewright.runtime.interface.queue import ARENA, Location
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan
from tilewright.runtime.storage.gpudirect import DeviceReader
from tilewright.runtime.storage.layout import StepSpec, TensorSpec
from tilewright.runtime.storage.reader import StepReader
from tilewright.runtime.storage.source import IoOptions
from tilewright.runtime.storage.store_writer import StoreWriter
from tilewright.streaming.opening import open_reader
from tilewright.streaming.parts.schedule import Visit
from tilewright.streaming.run import StreamMachine, run_visits

STEPS, WORDS = 5, 2048


class Driver:
    """Streams are queues of work; waiting for something runs work at random until that is done."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.streams, self.events, self.memory = {}, {}, {}
        self.api = SimpleNamespace(CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=1))
        self.inside, self.next, self.failing = 0, 0, ""

    @contextmanager
    def current(self):
        self.inside += 1
        yield
        self.inside -= 1

    def allocate(self, nbytes, what):
        return self.call("cuMemAllocHost", nbytes)

    def call(self, function, *args, doing=""):
        assert self.inside
        if function == self.failing:
            raise DeviceError(f"{function} failed")
        return getattr(self, function)(*args)

    def number(self):
        self.next += 1
        return self.next

    def queue(self, stream, ready, work):
        token = {"done": False, "ready": ready, "work": work}
        self.streams[stream].append(token)
        return token

    def run_until(self, done):
        while not done():
            heads = [q for q in self.streams.values() if q and q[0]["ready"]()]
            assert heads, "a deadlock of streams"
            token = self.random.choice(heads).popleft()
            token["work"]()
            token["done"] = True

    def cuStreamCreate(self, _):
        self.streams[number := self.number()] = deque()
        return number

    def cuStreamDestroy(self, stream):
        assert not self.streams.pop(stream)

    def cuStreamSynchronize(self, stream):
        self.run_until(lambda: not self.streams[stream])

    def cuEventCreate(self, _):
        self.events[number := self.number()] = {"done": True}
        return number

    def cuEventDestroy(self, event):
        del self.events[event]

    def cuEventRecord(self, event, stream):
        self.events[event] = self.queue(stream, lambda: True, lambda: None)

    def cuStreamWaitEvent(self, stream, event, _):
        awaited = self.events[event]
        self.queue(stream, lambda: awaited["done"], lambda: None)

    def cuEventSynchronize(self, event):
        awaited = self.events[event]
        self.run_until(lambda: awaited["done"])

    def cuEventElapsedTime(self, first, second):
        assert self.events[first]["done"]
        assert self.events[second]["done"]
        return 2.0

    def cuMemAllocHost(self, nbytes):
        block = np.zeros(nbytes, np.uint8)
        self.memory[block.ctypes.data] = block
        return block.ctypes.data

    def cuMemFreeHost(self, address):
        del self.memory[address]

    cuMemFree = cuMemFreeHost

    def cuMemcpyHtoDAsync(self, target, source, nbytes, stream):
        self.queue(stream, lambda: True, lambda: ctypes.memmove(target, source, nbytes))

    def cuMemcpyDtoDAsync(self, target, source, nbytes, stream):
        self.cuMemcpyHtoDAsync(target, source, nbytes, stream)

    def cuMemcpyDtoHAsync(self, target, source, nbytes, stream):
        self.cuMemcpyHtoDAsync(target, source, nbytes, stream)


class Loaded:
    """Its kernel notes the first and last word of the constants, as they are when it runs."""

    def __init__(self, driver, address, seen):
        self.driver, self.address, self.seen = driver, address, seen

    def replay(self, stream):
        words = (ctypes.c_int32 * WORDS).from_address(self.address)
        self.driver.queue(stream, lambda: True, lambda: self.seen.append((words[0], words[-1])))

    def close(self):
        self.driver = None


class Gpu:
    name = "made up"

    def __init__(self, seed):
        self.context, self.seen, self.closed = Driver(seed), [], 0

    def load_placed(self, plan, addresses, arena):
        assert set(addresses) == {"c"}
        assert arena
        return Loaded(self.context, addresses["c"], self.seen)

    def close(self):
        self.closed += 1


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "weights.store"
    names = [f"c{k}" for k in range(STEPS)]
    specs = [StepSpec(n, (TensorSpec(n, "int32", (WORDS,)),)) for n in names]
    with StoreWriter(path, specs) as writer:
        for k, name in enumerate(names):
            writer.write_step({name: np.full(WORDS, k, np.int32)})
    return path


class Bound:
    """Stands for bindings: one plan per slot."""

    def __init__(self, queue):
        buffers = (Buffer("c", "int32", (WORDS,), "constant", 4 * WORDS),)
        self.queue, self.plan = queue, ExecutionPlan("cuda", buffers, (), (), (), (), 256)
        self.arena = queue.allocate(256, "the arena")

    def of(self, step, slot, window):
        plan = self.queue.place(self.plan, {"c": Location(slot), ARENA: Location(self.arena)})
        return SimpleNamespace(submit=lambda queue: plan.submit())


NOTHING = SimpleNamespace(fetch=lambda *_: None, keep=lambda *_: None, results=lambda batch: [batch])


@pytest.mark.parametrize("seed", range(8))
def test_every_kernel_sees_its_own_weights(store, seed):
    gpu = Gpu(seed)
    order = [Visit(k, (0, 1)) for k in (0, 1, 2, 3, 4, 0, 2, 1)]
    with StepReader(store) as reader, CudaQueue(gpu, None) as queue:
        slots = [queue.new_slot(reader.layout.largest_step_bytes, "slot") for _ in range(2)]
        machine = StreamMachine(queue, slots, Bound(queue), reader)
        results, record = run_visits(machine, order, NOTHING, STEPS - 1)
        assert results == [[0], [1]]
        assert record.copy_s == [0.002] * len(order)
        assert record.compute_s == [0.002] * len(order)
        assert queue.memory.peak_bytes == 2 * reader.layout.largest_step_bytes + 256
    assert gpu.seen == [(v.step, v.step) for v in order for _ in v.batches]
    driver = gpu.context
    assert (driver.memory, driver.events, driver.streams, gpu.closed) == ({}, {}, {}, 1)


@pytest.mark.parametrize("seed", range(8))
def test_storage_writes_to_the_gpu_itself_when_kernels_let_go(store, seed, monkeypatch):
    gpu = Gpu(seed)
    made_up_kvikio(monkeypatch)
    read = CuFile.pread

    def pread(file, *arguments):
        assert gpu.context.inside  # the context is current
        return read(file, *arguments)

    monkeypatch.setattr(CuFile, "pread", pread)
    order = [Visit(k % STEPS, (0,)) for k in range(12)]
    with CudaQueue(gpu, None, direct=True) as queue, open_reader(store, IoOptions(), queue) as reader:
        assert isinstance(reader, DeviceReader)
        slots = [queue.new_slot(reader.layout.largest_step_bytes, "slot") for _ in range(2)]
        machine = StreamMachine(queue, slots, Bound(queue), reader)
        _, record = run_visits(machine, order, NOTHING, STEPS - 1)
        assert record.copy_s == [0.0] * len(order)
        assert record.read_bytes == sum(reader.layout.steps[v.step].nbytes for v in order)
    assert gpu.seen == [(v.step, v.step) for v in order]
    assert (gpu.context.memory, gpu.context.events, gpu.context.streams, gpu.closed) == ({}, {}, {}, 1)


def test_copies_and_marks():
    gpu = Gpu(0)
    with CudaQueue(gpu, 4096) as queue:
        block = queue.allocate(1024, "values")
        array, out = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
        before = queue.mark()
        queue.upload(array, Location(block))
        queue.copy(Location(block), Location(block, 512), array.nbytes)
        queue.download(Location(block, 512), out)
        np.testing.assert_array_equal(out, array)
        after = queue.mark()
        after.wait()
        assert after.seconds_after(before) == 0.002
        with pytest.raises(OutOfMemoryError, match="more takes 4096 bytes"):
            queue.allocate(4096, "more")


def test_a_driver_that_fails_does_not_hide_why(store):
    gpu = Gpu(0)
    with StepReader(store) as reader, CudaQueue(gpu, None) as queue:
        slots = [queue.new_slot(reader.layout.largest_step_bytes, "slot") for _ in range(2)]
        gpu.context.failing = "cuMemcpyHtoDAsync"
        with pytest.raises(DeviceError, match="cuMemcpyHtoDAsync failed"):
            run_visits(
                StreamMachine(queue, slots, Bound(queue), reader), [Visit(0, (0,))], NOTHING, STEPS - 1
            )
        gpu.context.failing = "cuMemFree"
    assert gpu.closed == 1
