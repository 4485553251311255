"""Streamed networks give the same bits as unstreamed ones, under both schedules, wherever values wait."""

import threading
from functools import partial

import numpy as np
import pytest
from streaming_samples import ROWS, WIDTH, numbers, table_network

import tilewright as tw
from tilewright import streaming
from tilewright.frontends.zoo.gpt import gpt
from tilewright.frontends.zoo.layers import Layers, image
from tilewright.ir import InputError, WorkError
from tilewright.runtime.storage.measure import measure_storage
from tilewright.streaming import calibration, executable, step_planning
from tilewright.streaming.executable import StreamOptions
from tilewright.streaming.run import compared

SIZE = {"layers": 2, "width": 32, "heads": 2, "vocabulary": 60, "context": 8, "sequence": 8}
CAP = 60_000


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch):
    monkeypatch.setattr(calibration, "READING_S", 0.05)
    monkeypatch.setattr(
        executable, "measure_storage", partial(measure_storage, seconds=0.05, max_bytes=1 << 22)
    )


@pytest.fixture(scope="module")
def network():
    return gpt(**SIZE)


@pytest.fixture(scope="module")
def batches():
    rng = np.random.default_rng(0)
    return [[rng.integers(0, 60, (1, 8)).astype(np.int32)] for _ in range(3)]


@pytest.fixture(scope="module")
def wanted(network, batches):
    with tw.compile(network, target="opencl") as exe:
        return [exe(*inputs) for inputs in batches]


@pytest.fixture(scope="module")
def streamed(network):
    with streaming.compile(network, "opencl", memory_cap=CAP) as exe:
        yield exe


def assert_same(got, wanted):
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(a[0], b[0])


def test_steps_are_under_the_cap_and_share_plans(streamed, batches):
    streamed(*batches[0])
    report = streamed.report()
    assert report["steps"] > 3
    assert report["plans"] < report["steps"]
    assert report["weight_bytes"] > CAP
    memory = 2 * report["slot_bytes"] + report["arena_bytes"] + report["window_bytes"]
    assert report["device_bytes_peak"] == report["device_bytes"] == memory <= CAP
    assert report["last_run"]["read_bytes"] == report["weight_bytes"]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("schedule", ["pr", "ar", "auto"])
def test_both_schedules_give_the_same_bits(streamed, batches, wanted, schedule, count):
    before = threading.active_count()
    assert_same(streamed.run(batches[:count], schedule), wanted[:count])
    assert threading.active_count() <= before + streamed.options.io.depth
    fetched = {"pr": 1, "ar": count}.get(schedule)
    if fetched is not None:
        assert streamed.record.read_bytes == fetched * streamed.report()["weight_bytes"]


@pytest.mark.parametrize(("host_bytes", "where"), [(None, "host"), (1, "storage")])
def test_values_that_do_not_fit_wait_elsewhere(streamed, batches, wanted, monkeypatch, host_bytes, where):
    # Just what one micro-batch takes: no window for a second one.
    monkeypatch.setattr(streamed, "options", StreamOptions(streamed.memory.device_bytes, host_bytes))
    assert streamed.where_values_wait("parameter-resident", 3) == where
    assert_same(streamed.run(batches, "pr"), wanted)
    moved, staying = streamed.predict(3, "pr"), streamed.predict(3, "ar")
    assert moved.compute_s > staying.compute_s
    assert moved.storage_s < staying.storage_s


def test_without_need_all_weights_stay_on_the_device():
    inputs = [[numbers(seed)] for seed in range(3)]
    wanted = [tw.interpret(table_network(), *given)[0] for given in inputs]
    with streaming.compile(table_network(), "opencl", memory_cap="1GiB") as exe:
        for (got,), want in zip(exe.run(inputs, "pr"), wanted, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        report = exe.report()
        assert (report["steps"], report["slots"], report["last_run"]["read_bytes"]) == (1, 1, 0)
        assert exe.predict(3).storage_s == 0


def test_a_table_larger_than_a_slot_is_split():
    with streaming.compile(table_network(), "opencl", memory_cap=14_000) as exe:
        (got,) = exe(numbers())
        report = exe.report()
        assert report["slot_bytes"] < ROWS * WIDTH * 4
        assert report["device_bytes_peak"] <= 14_000
    (wanted,) = tw.interpret(table_network(), numbers())
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_an_image_network():
    data, net = image(1, 3, 8), Layers(0)
    with net.scope("net"):
        x = net.relu(net.norm(net.conv(data, 16, 3, name="first"), "bn0"))
        y = net.relu(net.norm(net.conv(x, 16, 3, name="second"), "bn1"))
        y = net.relu(net.norm(net.conv(y, 16, 3, name="third"), "bn2"))
        result = net.add(x, net.relu(net.norm(net.conv(y, 16, 3, name="fourth"), "bn3")))
    module = net.module("small_cnn", (data,), result)
    images = [[np.random.default_rng(i).standard_normal((1, 3, 8, 8)).astype(np.float32)] for i in range(2)]
    with tw.compile(module, target="opencl") as exe:
        wanted = [exe(*inputs) for inputs in images]
    with streaming.compile(module, "opencl", memory_cap=38_000) as exe:
        assert exe.report()["steps"] > 1
        for schedule in ("pr", "ar"):
            assert_same(exe.run(images, schedule), wanted)


def test_prediction_and_run_are_compared_per_part(streamed, batches):
    prediction = streamed.predict(3, "pr")
    streamed.run(batches, "pr")
    found = compared(streamed.record, prediction)
    assert found["micro_batches"] == 3
    assert found["overlap"] > 0
    for part in ("total", "storage", "compute"):
        assert found[part]["measured_s"] > 0
        assert found[part]["predicted_s"] > 0
    assert prediction.total_s >= prediction.slower_s


def test_a_cap_that_is_too_small_names_one_that_does(monkeypatch):
    monkeypatch.setattr(step_planning, "ATTEMPTS", 2)
    with pytest.raises(WorkError, match="least that would do is") as caught:
        streaming.compile(table_network(), "opencl", memory_cap=9_000)
    least = str(caught.value).split("would do is ")[1].split(" ")[0]
    with streaming.compile(table_network(), "opencl", memory_cap=least) as exe:
        assert exe.report()["device_bytes"] <= exe.options.cap_bytes


def test_bad_arguments_are_refused(network, streamed, batches):
    with pytest.raises(InputError, match="memory_cap"):
        streaming.compile(network, "opencl", memory_cap="much")
    with pytest.raises(InputError, match="needs a target among"):
        streaming.compile(network, "reference", memory_cap="1GiB")
    with pytest.raises(InputError, match="folder"):
        streaming.compile(network, "opencl", memory_cap="1GiB", folder="/nowhere/at/all")
    with pytest.raises(InputError, match="schedule among"):
        streamed.run(batches, "best")
    with pytest.raises(InputError, match="expected 1 inputs"):
        streamed(*batches[0], 1)
    with pytest.raises(InputError, match="expected dtype int32"):
        streamed(batches[0][0].astype(np.int64))
    assert streamed.run([]) == []
