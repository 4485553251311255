"""On an NVIDIA GPU: streamed networks give the bits of unstreamed ones, under the cap, both schedules."""

import numpy as np
import pytest

import tilewright as tw
from tilewright import streaming
from tilewright.frontends.zoo.gpt import gpt
from tilewright.streaming.executable import StreamOptions

SIZE = {"layers": 4, "width": 256, "heads": 4, "vocabulary": 512, "context": 64, "sequence": 64}
CAP = 8 << 20


@pytest.fixture(scope="module")
def network():
    return gpt(**SIZE)


@pytest.fixture(scope="module")
def batches():
    rng = np.random.default_rng(0)
    return [[rng.integers(0, 512, (1, 64)).astype(np.int32)] for _ in range(3)]


@pytest.fixture(scope="module")
def wanted(network, batches):
    with tw.compile(network, target="cuda") as exe:
        return [exe(*inputs)[0] for inputs in batches]


@pytest.fixture(scope="module")
def streamed(network):
    with streaming.compile(network, "cuda", memory_cap=CAP) as exe:
        yield exe


@pytest.mark.parametrize("schedule", ["pr", "ar", "auto"])
def test_the_same_bits_again_and_again(streamed, batches, wanted, schedule):
    for _ in range(5):
        for (got,), want in zip(streamed.run(batches, schedule), wanted, strict=True):
            np.testing.assert_array_equal(got, want)
    report = streamed.report()
    assert report["steps"] > 3
    assert report["device_bytes_peak"] <= CAP < report["weight_bytes"]


@pytest.mark.parametrize("host_bytes", [None, 1])
def test_values_wait_on_the_host_and_on_storage(streamed, batches, wanted, monkeypatch, host_bytes):
    monkeypatch.setattr(streamed, "options", StreamOptions(streamed.memory.device_bytes, host_bytes))
    for (got,), want in zip(streamed.run(batches, "pr"), wanted, strict=True):
        np.testing.assert_array_equal(got, want)


def test_every_part_is_measured(streamed, batches):
    prediction = streamed.predict(3, "ar")
    streamed.run(batches, "ar")
    record = streamed.record
    assert min(prediction.storage_s, prediction.copy_s, prediction.compute_s) > 0
    assert min(sum(record.copy_s), sum(record.compute_s), record.storage.busy_s) > 0
