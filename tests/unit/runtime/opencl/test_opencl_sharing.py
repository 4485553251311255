"""Plans on one OpenCL device share weights by content and programs by source, freed with the last user."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from opencl_samples import expected, random_plan, random_words
from runtime_samples import SIZE, diamond, diamond_result, floats, launch, random_floats

from tilewright.codegen.dialect import OpenClDialect
from tilewright.codegen.emit.kernel import emit_opencl  # noqa: F401  (defines the helpers)
from tilewright.codegen.prelude.registry import Prelude
from tilewright.runtime.errors import DeviceError, InputError, KernelBuildError, OutOfMemoryError
from tilewright.runtime.opencl.build_process import BuildProcess
from tilewright.runtime.opencl.device import OpenClDevice
from tilewright.runtime.opencl.memory import OpenClPool
from tilewright.runtime.opencl.programs import ProgramBuilder
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan

PLAN = diamond()
X, W = random_floats(1), random_floats(2)


@pytest.fixture
def device():
    with OpenClDevice() as device:
        yield device
        assert (device.pool.bytes_in_use, len(device.pool.weights), len(device.pool.programs)) == (0, 0, 0)


def own_bytes(plan):
    return max(1, plan.arena_bytes) + sum(b.nbytes for b in plan.buffers if b.kind in ("input", "output"))


def test_equal_weights_and_programs_are_stored_once(device):
    first = device.load(PLAN, {"w": W})
    second = device.load(PLAN, {"w": W.copy()})
    assert device.pool.bytes_in_use == 2 * own_bytes(PLAN) + W.nbytes
    assert (len(device.pool.weights), len(device.pool.programs)) == (1, 3)
    first.close()
    assert device.pool.bytes_in_use == own_bytes(PLAN) + W.nbytes
    np.testing.assert_allclose(second.run([X])[0], diamond_result(X, W), rtol=1e-6)
    second.close()


def test_other_weights_stay_apart(device):
    with device.load(PLAN, {"w": W}) as first, device.load(PLAN, {"w": X}) as second:
        assert len(device.pool.weights) == 2
        np.testing.assert_allclose(first.run([X])[0], diamond_result(X, W), rtol=1e-6)
        np.testing.assert_allclose(second.run([X])[0], diamond_result(X, X), rtol=1e-6)


def test_the_same_bytes_of_another_byte_order_are_other_weights(device):
    plan, words, inputs = random_plan(0), random_words(0), [random_words(1), random_words(2)]
    swapped = words.view(words.dtype.newbyteorder())
    with device.load(plan, {"w": words}), device.load(plan, {"w": swapped}) as second:
        assert len(device.pool.weights) == 2
        wanted = expected(plan, {"x0": inputs[0], "x1": inputs[1], "w": words.byteswap()})
        for got, right in zip(second.run(inputs), wanted, strict=True):
            np.testing.assert_array_equal(got, right)


def test_plans_of_one_source_share_its_program(device):
    """Different plans too: all kernels of the random plans come from one text."""
    weights = {"w": random_words(0)}
    plans = [random_plan(seed, launches=8) for seed in range(3)]
    loaded = [device.load(plan, weights) for plan in plans]
    assert (len(device.pool.weights), len(device.pool.programs)) == (1, 1)
    inputs = [random_words(1), random_words(2)]
    for plan, one in zip(plans, loaded, strict=True):
        wanted = expected(plan, {"x0": inputs[0], "x1": inputs[1], **weights})
        for got, right in zip(one.run(inputs), wanted, strict=True):
            np.testing.assert_array_equal(got, right)
        one.close()


def test_kernels_of_a_plan_are_built_together(device, monkeypatch):
    texts = []
    program, build = device.cl.Program, BuildProcess.build
    watched = SimpleNamespace(**{**vars(device.cl), "Program": None})
    watched.Program = lambda c, *given: (len(given) == 1 and texts.append(*given)) or program(c, *given)
    monkeypatch.setattr(BuildProcess, "build", lambda p, text, *a: texts.append(text) or build(p, text, *a))
    monkeypatch.setattr(device, "builder", ProgramBuilder(watched, device.context, device.device, None))
    with device.load(PLAN, {"w": W}) as loaded:
        np.testing.assert_allclose(loaded.run([X])[0], diamond_result(X, W), rtol=1e-6)
        with device.load(PLAN, {"w": W}):
            pass
    assert texts == ["\n".join(k.source for k in PLAN.kernels)]


def test_helpers_that_kernels_share_are_defined_once(device):
    prelude = Prelude(OpenClDialect())
    for function, dtype in (("sign", "f32"), ("truncmod", "i32"), ("unaligned4", "f32")):
        prelude.need(function, dtype)
    device.cl.Program(device.context, f"{prelude.text()}\n{prelude.text()}").build(["-cl-std=CL1.2"])


def broken(index):
    source = PLAN.kernels[index].source.replace("{", "{ nonsense;", 1)
    kernels = [replace(k, source=source) if i == index else k for i, k in enumerate(PLAN.kernels)]
    return PLAN.replace(kernels=tuple(kernels))


def test_a_load_that_fails_leaves_nothing_and_the_device_works_on(device):
    view = Buffer("v", "float32", (SIZE - 1,), "alias", 4 * SIZE - 4, 4, "x")
    buffers = (floats("x", "input"), floats("y", "output"), view)
    unaligned = ExecutionPlan(
        "test", buffers, PLAN.kernels[:1], (launch("scale", "v", "y"),), ("x",), ("y",), 0
    )
    wide = replace(PLAN.launches[3], block=4096 * 4)
    for plan, constants, error, fault in (
        (broken(1), {"w": W}, KernelBuildError, "kernel 'shift'"),
        (unaligned, {}, InputError, "buffer 'v' starts at byte 4"),
        (PLAN.replace(launches=(*PLAN.launches[:3], wide)), {"w": W}, InputError, "launch 3"),
    ):
        with pytest.raises(error, match=fault):
            device.load(plan, constants)
        assert (device.pool.bytes_in_use, len(device.pool.programs)) == (0, 0)
    with device.load(PLAN, {"w": W}) as loaded:
        np.testing.assert_allclose(loaded.run([X])[0], diamond_result(X, W), rtol=1e-6)


def test_limits_of_the_device_are_named(device):
    real = device.device
    limits = {"max_work_group_size": 100, "local_mem_size": 2000, "max_mem_alloc_size": 1 << 30}
    device.device = SimpleNamespace(**limits, mem_base_addr_align=real.mem_base_addr_align)
    hungry = replace(PLAN.launches[3], block=100, shared_bytes=4000)
    for launches, asked in (
        (PLAN.launches[3:], "128 work-items per group; .* has 100"),
        ((hungry,), "4000 bytes of local memory; .* has 2000"),
    ):
        alone = tuple(replace(step, deps=()) for step in launches)
        with pytest.raises(DeviceError, match=f"launch 0 of kernel 'join' for net:multiply#2, .* {asked}"):
            device.load(PLAN.replace(launches=alone), {"w": W})


@pytest.mark.parametrize("missing", ["constant 'w'", "input 'x'", "output 'y'", "the arena"])
def test_out_of_memory_says_what_and_how_much(device, missing):
    """A device with room for all but one buffer (allocated in the order arena, input, output, constant)."""
    sizes = {"the arena": PLAN.arena_bytes, "input 'x'": 4 * SIZE, "output 'y'": 4 * SIZE}
    names = list(sizes)
    room = sum(sizes[name] for name in names[: names.index(missing) if missing in sizes else len(names)])
    small = SimpleNamespace(global_mem_size=room + 100)
    queue = device.new_queue(out_of_order=False)
    device.pool = OpenClPool(device.cl, device.context, queue, small, device.name)
    with pytest.raises(
        OutOfMemoryError, match=rf"^{missing} takes \d+ bytes; .* has 100 of {room + 100} free"
    ):
        device.load(PLAN, {"w": W})
    assert device.pool.bytes_in_use == 0


def test_a_plan_outlives_its_device_object_only_to_be_closed():
    device = OpenClDevice()
    pool, loaded = device.pool, device.load(PLAN, {"w": W})
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        loaded.run([X])
    loaded.close()
    assert (pool.bytes_in_use, len(pool.weights), len(pool.programs)) == (0, 0, 0)


def test_times_are_taken_on_a_queue_of_their_own(device, monkeypatch):
    opened = []
    new_queue = device.new_queue
    monkeypatch.setattr(device, "new_queue", lambda **kw: opened.append(kw) or new_queue(**kw))
    with device.load(PLAN, {"w": W}) as loaded:
        for _ in range(2):
            np.testing.assert_allclose(loaded.run([X])[0], diamond_result(X, W), rtol=1e-6)
            assert min(loaded.time([X], 3)) > 0
            assert min(map(min, loaded.time_kernels([X], 2))) > 0
    assert [kw.get("times", True) for kw in opened] == [False, True]
