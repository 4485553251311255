"""Instances of a plan: callers side by side get one each, batches stream in order, failures leave nothing."""

import threading

import numpy as np
import pytest

import tilewright as tw
from tilewright.running.instances import InstancePool, stream_batches
from tilewright.runtime.errors import DeviceError


class Fake:
    """A loaded plan that adds one, and notices two callers at once."""

    def __init__(self, log):
        self.log, self.busy, self.closed, self.started = log, False, False, None
        log.append("load")

    def run(self, inputs):
        assert not self.busy
        assert not self.closed
        self.busy = True
        threading.Event().wait(0.001)
        self.busy = False
        if inputs[0] < 0:
            raise DeviceError("lost")
        return [inputs[0] + 1]

    def start(self, inputs):
        assert self.started is None
        self.log.append("start")
        self.started = inputs

    def finish(self):
        self.log.append("finish")
        inputs, self.started = self.started, None
        return self.run(inputs)

    def close(self):
        self.closed = True
        self.log.append("close")


def call_from_threads(pool, calls=25, threads=8):
    wrong = []

    def work(seed):
        for i in range(calls):
            with pool.lent() as plan:
                if plan.run([seed * 1000 + i]) != [seed * 1000 + i + 1]:
                    wrong.append((seed, i))

    workers = [threading.Thread(target=work, args=(t,)) for t in range(threads)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    return wrong


@pytest.mark.parametrize("limit", [1, 3])
def test_callers_never_share_an_instance(limit):
    log = []
    pool = InstancePool(lambda: Fake(log), limit)
    assert call_from_threads(pool) == []
    assert 1 <= log.count("load") <= limit
    pool.close()
    assert log.count("close") == log.count("load")


def test_an_instance_whose_device_fails_is_replaced():
    log = []
    pool = InstancePool(lambda: Fake(log), 1)
    with pytest.raises(DeviceError), pool.lent() as plan:
        plan.run([-1])
    assert log == ["load", "close"]
    with pool.lent() as plan:
        assert plan.run([1]) == [2]
    assert log == ["load", "close", "load"]


def test_a_failed_load_leaves_room_for_the_next():
    log = []
    outcomes = [DeviceError("full"), None]

    def load():
        if error := outcomes.pop(0):
            raise error
        return Fake(log)

    pool = InstancePool(load, 1)
    with pytest.raises(DeviceError), pool.lent():
        pass
    assert pool.empty
    with pool.lent() as plan:
        assert plan.run([4]) == [5]


def test_closing_while_somebody_works():
    log = []
    pool = InstancePool(lambda: Fake(log), 1)
    with pool.lent():
        pool.close()
    assert log == ["load", "close"]
    with pytest.raises(DeviceError, match="was closed while a call waited"), pool.lent():
        pass


def test_closing_while_others_wait_or_load():
    """Nothing stays open, and whoever waits is told."""
    log, told = [], []
    loading, go_on = threading.Event(), threading.Event()

    def load():
        loading.set()
        go_on.wait()
        return Fake(log)

    pool = InstancePool(load, 1)

    def call():
        try:
            with pool.lent() as plan:
                plan.run([1])
        except DeviceError as error:
            told.append(str(error))

    threads = [threading.Thread(target=call) for _ in range(3)]
    for t in threads:
        t.start()
    loading.wait()
    pool.close()
    go_on.set()
    for t in threads:
        t.join()
    assert len(told) == 3
    assert log == ["load", "close"]


def test_batches_stay_in_order_and_overlap():
    log = []
    plans = [Fake(log), Fake(log)]
    assert list(stream_batches(plans, [(i,) for i in range(5)])) == [[i + 1] for i in range(5)]
    assert log[2:6] == ["start", "start", "finish", "start"]


def test_a_caller_that_stops_early_leaves_nothing_under_way():
    plans = [Fake([]), Fake([])]
    stream = stream_batches(plans, [(i,) for i in range(5)])
    next(stream)
    stream.close()
    assert all(plan.started is None for plan in plans)


@pytest.fixture(scope="module")
def exe(data_dir):
    path = data_dir / "relay" / "mlp.relay"
    module = tw.frontends.relay.load(str(path), params="random", seed=0)
    with tw.compile(module, target="opencl") as compiled:
        yield compiled


def test_mapping_equals_calling(exe):
    rng = np.random.default_rng(0)
    xs = [rng.standard_normal(exe.input_types[0].shape).astype(np.float32) for _ in range(5)]
    wanted = [exe(x) for x in xs]
    for got, want in zip(exe.map(xs), wanted, strict=True):
        np.testing.assert_array_equal(got[0], want[0])
    for got, want in zip(exe.map((x,) for x in xs), wanted, strict=True):
        np.testing.assert_array_equal(got[0], want[0])


def test_threads_calling_one_executable(exe):
    rng = np.random.default_rng(1)
    xs = [rng.standard_normal(exe.input_types[0].shape).astype(np.float32) for _ in range(8)]
    wanted = [exe(x)[0] for x in xs]
    wrong = []

    def work(k):
        wrong.extend(k for _ in range(50) if not np.array_equal(exe(xs[k])[0], wanted[k]))

    workers = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert wrong == []


def test_a_bad_batch_ends_the_stream_with_its_error(exe):
    x = np.zeros(exe.input_types[0].shape, np.float32)
    with pytest.raises(tw.InputError, match="shape"):
        list(exe.map([x, x[..., :-1], x]))
    assert len(exe(x)) == 1
