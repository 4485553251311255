"""Plans run end to end through OpenCL: right results, timing, clear refusals."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from runtime_samples import SIZE, diamond, diamond_result, floats, launch, random_floats

from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.errors import DeviceError, DeviceMissingError, InputError, KernelBuildError
from tilewright.runtime.opencl.device import OpenClDevice
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch

PLAN = diamond()
X, W = random_floats(1), random_floats(2)


@pytest.fixture(scope="module")
def device():
    with OpenClDevice() as device:
        yield device


@pytest.fixture(scope="module")
def loaded(device):
    with device.load(PLAN, {"w": W}) as loaded:
        yield loaded


def test_diamond(loaded):
    for seed in range(3):
        x = random_floats(seed)
        (y,) = loaded.run([x])
        np.testing.assert_allclose(y, diamond_result(x, W), rtol=1e-6)


def test_outputs_are_fresh_and_inputs_may_be_strided(loaded):
    first, second = loaded.run([X])[0], loaded.run([np.repeat(X, 2)[::2]])[0]
    assert first is not second
    np.testing.assert_array_equal(first, second)
    first[:] = 0
    np.testing.assert_array_equal(loaded.run([X])[0], second)


def test_out_of_order_queue_follows_the_dependencies():
    with OpenClDevice(out_of_order=True) as device, device.load(PLAN, {"w": W}) as loaded:
        for _ in range(20):
            np.testing.assert_allclose(loaded.run([X])[0], diamond_result(X, W), rtol=1e-6)


def test_timing(loaded):
    whole = loaded.time([X], 3)
    parts = loaded.time_kernels([X], 2)
    assert len(whole) == 3
    assert [len(row) for row in parts] == [2] * 4
    assert all(0 < seconds < 60 for seconds in [*whole, *(s for row in parts for s in row)])


def test_progress_names_every_kernel(device):
    seen = []
    device.load(PLAN, {"w": W}, progress=lambda *step: seen.append(step)).close()
    assert seen[-1][:2] == (3, 3)
    assert {name for _, _, name in seen} == {"scale", "shift", "join"}


def copy_plan(dtype: str, shape: tuple[int, ...]) -> ExecutionPlan:
    """The input, untouched, and a byte-wise copy of it as outputs."""
    nbytes = int(np.prod(shape, dtype=int)) * DTYPES[dtype].itemsize
    loop = f"for (int i = 0; i < {nbytes}; ++i) b[i] = a[i];"
    text = f"kernel void k(global const uchar* a, global uchar* b) {{ {loop} }}"
    buffers = (Buffer("x", dtype, shape, "input", nbytes), Buffer("y", dtype, shape, "output", nbytes))
    launches = (Launch("k", ("x", "y"), (1, 1, 1), 1, writes=(1,)),)
    return ExecutionPlan(
        "test", buffers, (KernelCode("k", "k", "opencl", text),), launches, ("x",), ("y", "x"), 0
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_type(device, dtype):
    x = (np.arange(6).reshape(2, 3) % 2).astype(DTYPES[dtype])
    with device.load(copy_plan(dtype, (2, 3)), {}) as loaded:
        for result in loaded.run([x]):
            assert result.dtype == x.dtype
            np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize("shape", [(), (0, 4)])
def test_scalars_and_empty_tensors(device, shape):
    x = np.ones(shape, np.float32)
    with device.load(copy_plan("float32", shape), {}) as loaded:
        for result in loaded.run([x]):
            np.testing.assert_array_equal(result, x)


def test_aliases_and_local_memory(device):
    """Two halves of one output are written through views; shared bytes become a local argument."""
    text = (
        "kernel void k(global const float* a, global float* b, local float* s)"
        " { int i = get_local_id(0); s[i] = a[i]; barrier(CLK_LOCAL_MEM_FENCE); b[i] = s[63 - i]; }"
    )
    halves = [Buffer(f"h{i}", "float32", (64,), "alias", 256, 256 * i, "y") for i in range(2)]
    buffers = (
        Buffer("x", "float32", (64,), "input", 256),
        Buffer("y", "float32", (128,), "output", 512),
        *halves,
    )
    launches = tuple(
        Launch("k", ("x", f"h{i}"), (1, 1, 1), 64, shared_bytes=256, writes=(1,)) for i in range(2)
    )
    plan = ExecutionPlan(
        "test", buffers, (KernelCode("k", "k", "opencl", text),), launches, ("x",), ("y", "h1"), 0
    )
    x = random_floats(0)[:64]
    with device.load(plan, {}) as loaded:
        y, second = loaded.run([x])
    np.testing.assert_array_equal(y, np.concatenate([x[::-1], x[::-1]]))
    np.testing.assert_array_equal(second, x[::-1])


def test_kernel_that_does_not_build_is_named(device):
    broken = tuple(replace(k, source="kernel void scale() { nonsense }") for k in PLAN.kernels)
    with pytest.raises(KernelBuildError, match=r"kernel 'scale': .*: line 1: .*'nonsense'"):
        device.load(PLAN.replace(kernels=broken[:1], launches=PLAN.launches[:1]), {"w": W})


def test_wrong_argument_count_is_named(device):
    wrong = replace(PLAN.launches[0], args=("x", "x", "t0"), writes=(2,))
    plan = PLAN.replace(launches=(wrong, *PLAN.launches[1:]))
    with pytest.raises(InputError, match=r"launch 0 .*'scale'.*#0: expected 2 arguments, got 3"):
        device.load(plan, {"w": W})


def test_limits_are_named(device):
    too_wide = replace(PLAN.launches[0], shared_bytes=1 << 20)
    with pytest.raises((DeviceError, InputError), match="launch 0"):
        device.load(PLAN.replace(launches=(too_wide, *PLAN.launches[1:]), kernels=PLAN.kernels), {"w": W})
    huge = Buffer("x", "uint8", (1 << 45,), "input", 1 << 45)
    with pytest.raises(DeviceError, match="one allocation of 35184372088832 bytes"):
        device.load(ExecutionPlan("test", (huge,), (), (), ("x",), (), 0), {})


def test_cuda_kernels_are_refused(device):
    with pytest.raises(InputError, match="expected OpenCL C"):
        device.load(diamond("cuda"), {"w": W})


def test_unaligned_views_are_refused(device):
    view = Buffer("v", "float32", (SIZE - 1,), "alias", 4 * SIZE - 4, 4, "x")
    buffers = (floats("x", "input"), floats("y", "output"), view)
    plan = ExecutionPlan("test", buffers, PLAN.kernels[:1], (launch("scale", "v", "y"),), ("x",), ("y",), 0)
    with pytest.raises(InputError, match="buffer 'v' starts at byte 4"):
        device.load(plan, {})


def test_wider_alignment_lays_the_arena_out_anew(device, monkeypatch):
    monkeypatch.setattr(OpenClDevice, "alignment", 8192)
    with device.load(PLAN, {"w": W}) as loaded:
        offsets = {b.name: b.offset for b in loaded.plan.buffers if b.kind == "arena"}
        assert sorted(offsets.values()) == [0, 8192, 16384]
        np.testing.assert_allclose(loaded.run([X])[0], diamond_result(X, W), rtol=1e-6)


def test_unknown_device_lists_the_known_ones(device):
    with pytest.raises(DeviceMissingError, match=r"'warp drive', found: \S+"):
        OpenClDevice("warp drive")


def test_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyopencl", None)
    with pytest.raises(DeviceMissingError, match=r"pip install 'tilewright\[opencl\]'"):
        OpenClDevice()


def test_closed_things_refuse_work(device):
    loaded = device.load(PLAN, {"w": W})
    loaded.close()
    loaded.close()
    with pytest.raises(DeviceError, match="closed"):
        loaded.run([X])
