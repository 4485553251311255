"""Failures and lost devices: a clear error that names kernel and op, nothing leaked, the rest works on."""

from dataclasses import replace

import numpy as np
import pytest
from runtime_samples import diamond, random_floats

import tilewright as tw
from tilewright.codegen import EmulatorBuilder
from tilewright.ir import WorkError
from tilewright.runtime.emulator.device import EmulatorDevice
from tilewright.runtime.errors import (
    DeviceError,
    DeviceLostError,
    InputError,
    KernelBuildError,
    OutOfMemoryError,
)
from tilewright.runtime.null.device import NullDevice
from tilewright.runtime.opencl.driver import driver_error
from tilewright.runtime.opencl.platforms import import_pyopencl
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch

PLAN = diamond()
X, W = random_floats(1), random_floats(2)
JOIN = "launch 3 of kernel 'join' for net:multiply#2, net:add#3"
BYTES = PLAN.arena_bytes + sum(b.nbytes for b in PLAN.buffers if b.kind != "arena")


@pytest.fixture
def device():
    with NullDevice() as device:
        yield device


@pytest.mark.parametrize("index", range(4))
def test_a_launch_that_fails_is_named_and_the_plan_works_on(device, index):
    with device.load(PLAN, {"w": W}) as loaded:
        device.fail("launch", skip=index)
        launch = PLAN.launches[index]
        origin = f" for {', '.join(launch.origin)}" if launch.origin else ""
        with pytest.raises(DeviceError, match=f"^launch {index} of kernel '{launch.kernel}'{origin}: failed"):
            loaded.run([X])
        assert loaded.run([X])[0].shape == (1024,)


@pytest.mark.parametrize(
    ("action", "count", "error", "fault"),
    [
        ("allocate", 4, OutOfMemoryError, "allocating '(arena|x|w|y)'"),
        ("upload", 1, DeviceError, "uploading constant 'w'"),
        ("build", 3, KernelBuildError, "kernel '(scale|shift|join)'"),
    ],
)
def test_a_load_that_fails_leaves_nothing(device, action, count, error, fault):
    for skip in range(count):
        device.fail(action, skip=skip)
        with pytest.raises(error, match=fault):
            device.load(PLAN, {"w": W})
        assert device.bytes_in_use == 0
    with device.load(PLAN, {"w": W}) as loaded:
        assert device.bytes_in_use == BYTES
        loaded.run([X])
    assert device.bytes_in_use == 0


@pytest.mark.parametrize(("action", "fault"), [("copy-in", "input 'x'"), ("copy-out", "output 'y'")])
def test_a_copy_that_fails_is_named(device, action, fault):
    with device.load(PLAN, {"w": W}) as loaded:
        device.fail(action)
        with pytest.raises(DeviceError, match=f"copying {fault}"):
            loaded.run([X])
        loaded.run([X])


def test_memory_beyond_the_limit_is_refused():
    device = NullDevice(memory_bytes=BYTES + 1)
    first = device.load(PLAN, {"w": W})
    with pytest.raises(OutOfMemoryError, match=r"'arena' takes \d+ bytes; the null device has 1 free"):
        device.load(PLAN, {"w": W})
    first.close()
    device.load(PLAN, {"w": W}).close()
    assert device.bytes_in_use == 0


@pytest.mark.parametrize("action", ["launch", "copy-in", "wait", "copy-out"])
def test_every_call_to_a_lost_device_says_so_and_closing_works(device, action):
    loaded, other = device.load(PLAN, {"w": W}), device.load(PLAN, {"w": W})
    device.fail(action, lost=True)
    with pytest.raises(DeviceLostError, match="lost"):
        loaded.run([X])
    for call in (
        lambda: loaded.run([X]),
        lambda: other.run([X]),
        lambda: other.time([X], 1),
        lambda: other.time_kernels([X], 1),
        lambda: device.load(PLAN, {"w": W}),
    ):
        with pytest.raises(DeviceLostError, match="the null device is gone"):
            call()
    loaded.close()
    other.close()
    assert device.bytes_in_use == 0
    device.close()


def test_only_known_operations_can_fail(device):
    with pytest.raises(InputError, match="expected an operation that may fail"):
        device.fail("explode")
    with pytest.raises(InputError, match="expected an operation that may fail"):
        device.fail("free")


@pytest.fixture
def network(monkeypatch):
    """An executable whose null devices are listed, the newest last."""
    opened = []

    def open_device(target):
        opened.append(NullDevice())
        return opened[-1]

    monkeypatch.setattr("tilewright.devices.opening.open_device", open_device)
    text = "module @m { graph.func @main(%x: f32[4, 8], %w: f32[8, 8]) -> f32[4, 8] {\n"
    text += "%y = graph.dense(%x, %w) : f32[4, 8] %z = graph.softmax(%y) : f32[4, 8] graph.return(%z) } }"
    with tw.compile(tw.parse(text), target="null") as exe:
        yield exe, opened


def inputs_of(exe):
    return [np.zeros(t.shape, t.dtype) for t in exe.input_types]


def test_an_executable_works_on_after_a_failed_launch(network):
    exe, opened = network
    exe(*inputs_of(exe))
    opened[-1].fail("launch", skip=len(exe.plan.launches) - 1)
    with pytest.raises(WorkError, match=rf"launch {len(exe.plan.launches) - 1} of kernel .*: failed"):
        exe(*inputs_of(exe))
    exe(*inputs_of(exe))
    exe.close()
    assert [device.bytes_in_use for device in opened] == [0] * len(opened)
    exe(*inputs_of(exe))


def test_an_executable_that_cannot_be_loaded_leaves_nothing(network, monkeypatch):
    exe, opened = network

    def open_small(target):
        opened.append(NullDevice(memory_bytes=100))
        return opened[-1]

    monkeypatch.setattr("tilewright.devices.opening.open_device", open_small)
    for _ in range(2):
        with pytest.raises(WorkError, match=r"takes \d+ bytes; the null device has \d+ free"):
            exe(*inputs_of(exe))
        assert opened[-1].bytes_in_use == 0


def test_a_lost_device_is_told_and_opened_anew(network):
    exe, opened = network
    exe(*inputs_of(exe))
    opened[-1].fail("launch", lost=True)
    with pytest.raises(WorkError, match="the null device was lost"):
        exe(*inputs_of(exe))
    exe.close()
    assert opened[-1].bytes_in_use == 0
    exe(*inputs_of(exe))
    assert len(opened) == 2


def test_a_launch_beyond_the_plans_own_limits_is_refused_before_anything_is_allocated(device):
    huge = replace(PLAN.launches[3], block=1 << 20)
    with pytest.raises(InputError, match=r"launch 3 \(join\): expected block in 1\.\.4096"):
        device.load(PLAN.replace(launches=(*PLAN.launches[:3], huge)), {"w": W})
    assert device.log == []


def test_a_lost_opencl_device_is_told_apart():
    cl = import_pyopencl()

    class GoneError(cl.Error):
        code = cl.status_code.DEVICE_NOT_AVAILABLE

    with pytest.raises(DeviceLostError, match=r"^running the plan: the OpenCL device is gone"):
        raise driver_error(cl, "running the plan", GoneError("clFinish failed"))
    assert not isinstance(driver_error(cl, "running the plan", cl.Error("clFinish failed")), DeviceLostError)


@pytest.mark.emulator
def test_an_emulated_plan_works_on_after_a_fault():
    """The kernel reads where its input says."""
    body = "y[threadIdx.x] = x[(int)x[threadIdx.x]];"
    text = f'extern "C" __global__ void gather(const float* x, float* y) {{ {body} }}'
    buffers = (Buffer("x", "float32", (32,), "input", 128), Buffer("y", "float32", (32,), "output", 128))
    launches = (Launch("gather", ("x", "y"), (1, 1, 1), 32, origin=("net:take#7",), writes=(1,)),)
    kernels = (KernelCode("gather", "gather", "cuda", text),)
    plan = ExecutionPlan("test", buffers, kernels, launches, ("x",), ("y",), 0)
    inside, outside = np.arange(32, dtype=np.float32)[::-1], np.full(32, 1e6, np.float32)
    with EmulatorDevice(EmulatorBuilder()) as device, device.load(plan, {}) as loaded:
        for _ in range(2):
            with pytest.raises(DeviceError, match=r"launch 0 of kernel 'gather' for net:take#7, .* outside"):
                loaded.run([outside])
            np.testing.assert_array_equal(loaded.run([inside])[0], inside[::-1])
