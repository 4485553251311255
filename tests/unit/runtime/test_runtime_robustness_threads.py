"""Threads that share a plan or an executable: every result is the right one; closing meanwhile is clear."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from opencl_samples import expected, random_plan, random_words
from runtime_samples import SIZE, diamond, diamond_result, random_floats

import tilewright as tw
from tilewright.codegen import EmulatorBuilder
from tilewright.runtime.emulator.device import EmulatorDevice
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.null.device import NullDevice
from tilewright.runtime.opencl.device import OpenClDevice

THREADS = 8
W = random_floats(2)
NETWORK = """module @m {
  graph.func @main(%x: f32[4, 16], %w: f32[16, 16]) -> f32[4, 16] {
    %y = graph.dense(%x, %w) : f32[4, 16]
    %z = graph.softmax(%y) : f32[4, 16]
    graph.return(%z)
  }
}"""


def together(work, threads=THREADS):
    """Run work(0), work(1), ... in threads that start at once; the first exception is raised."""
    start = threading.Barrier(threads)

    def begin(number):
        start.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))


@pytest.mark.parametrize("out_of_order", [False, True])
def test_one_plan_in_eight_threads(out_of_order):
    plan, weights = random_plan(1, launches=12), {"w": random_words(0)}
    with OpenClDevice(out_of_order=out_of_order) as device, device.load(plan, weights) as loaded:

        def work(number):
            for call in range(30):
                inputs = [random_words(1000 * number + call), random_words(number)]
                wanted = expected(plan, {"x0": inputs[0], "x1": inputs[1], **weights})
                for got, right in zip(loaded.run(inputs), wanted, strict=True):
                    np.testing.assert_array_equal(got, right)

        together(work)


def test_eight_plans_of_one_device_in_eight_threads():
    """They share weights and programs; each loads, runs and closes its own."""
    plan, weights = random_plan(2, launches=12), {"w": random_words(0)}
    with OpenClDevice() as device:

        def work(number):
            for call in range(4):
                with device.load(plan, weights) as loaded:
                    for turn in range(6):
                        inputs = [random_words(1000 * number + 10 * call + turn), random_words(number)]
                        wanted = expected(plan, {"x0": inputs[0], "x1": inputs[1], **weights})
                        for got, right in zip(loaded.run(inputs), wanted, strict=True):
                            np.testing.assert_array_equal(got, right)

        together(work)
        assert (device.pool.bytes_in_use, len(device.pool.weights)) == (0, 0)


@pytest.mark.parametrize("instances", [1, 3])
def test_one_executable_in_eight_threads(instances):
    module = tw.parse(NETWORK)
    w = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
    with tw.compile(module, target="opencl", instances=instances) as exe:

        def work(number):
            rng = np.random.default_rng(number)
            for _ in range(40):
                x = rng.standard_normal((4, 16)).astype(np.float32)
                (got,) = exe(x, w)
                np.testing.assert_allclose(got, tw.interpret(module, x, w)[0], rtol=1e-4, atol=1e-6)

        together(work)


@pytest.mark.emulator
def test_one_emulated_plan_in_threads():
    with EmulatorDevice(EmulatorBuilder()) as device, device.load(diamond("cuda"), {"w": W}) as loaded:

        def work(number):
            for call in range(3):
                x = random_floats(10 * number + call)
                np.testing.assert_allclose(loaded.run([x])[0], diamond_result(x, W), rtol=1e-6)

        together(work, threads=4)
        folder = loaded.folder
    assert not folder.exists()


def test_a_run_on_the_null_device_is_not_interleaved_with_another():
    with NullDevice() as device, device.load(diamond(), {"w": W}) as loaded:
        device.log.clear()
        together(lambda number: [loaded.run([random_floats(number)]) for _ in range(50)])
        one = ["copy-in", "launch", "launch", "wait", "launch", "wait", "launch", "copy-out"]
        assert [operation.action for operation in device.log] == one * 50 * THREADS


@pytest.mark.parametrize("kind", ["null", "opencl"])
def test_closing_while_others_run(kind):
    """Every run gives the right result or says that the plan was closed; memory is given back."""
    device = NullDevice() if kind == "null" else OpenClDevice()
    for _ in range(5):
        loaded = device.load(diamond(), {"w": W})
        running = threading.Event()

        def run_for_ever(x, loaded, running):
            while True:
                (y,) = loaded.run([x])
                running.set()
                if kind == "opencl":
                    np.testing.assert_allclose(y, diamond_result(x, W), rtol=1e-6)

        def work(number, loaded=loaded, running=running):
            if number == 0:
                running.wait()
                loaded.close()
                return
            with pytest.raises(DeviceError, match="was closed"):
                run_for_ever(random_floats(number), loaded, running)

        together(work, threads=4)
        in_use = device.bytes_in_use if kind == "null" else device.pool.bytes_in_use
        assert in_use == 0
    device.close()


def test_callers_keep_their_arrays():
    """Inputs may be changed as soon as run has returned, and outputs belong to the caller."""
    with OpenClDevice() as device, device.load(diamond(), {"w": W}) as loaded:
        x = np.empty(SIZE, np.float32)
        results = []
        for value in range(30):
            x[:] = value
            results.append(loaded.run([x])[0])
        for value, y in enumerate(results):
            np.testing.assert_allclose(y, diamond_result(np.full(SIZE, value, np.float32), W), rtol=1e-6)
