"""The micro-benchmarks of a calibration: right results on the emulator, no spills, what they count."""

import numpy as np
import pytest

from tilewright.calibration import compute_kernels as compute
from tilewright.calibration import memory_kernels as memory
from tilewright.calibration.timing import in_a_row, plans_of
from tilewright.calibration.trials import CpuSizes, GpuSizes, Trial, cpu_trials, gpu_sizes, gpu_trials
from tilewright.codegen import EmulatorBuilder, emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.costmodel import known_hardware, load_hardware
from tilewright.devices.targets import resolve_target
from tilewright.ir import Func, Module, verify
from tilewright.runtime.emulator.device import EmulatorDevice

H100 = load_hardware("H100")
SMALL = GpuSizes(
    dram_words=1 << 14, cached_words=1 << 14, blocks=4, steps=256, chain=256, launches=2, threads=64
)
TARGET = resolve_target("emulator:sm_90a")
TRIALS = {t.name: t for t in gpu_trials(H100, SMALL, overlaps=True)}


@pytest.fixture(scope="module")
def results() -> dict[str, np.ndarray]:
    """What every trial's kernel leaves when it is launched twice in a row."""
    plans, out = plans_of(list(TRIALS.values()), TARGET), {}
    with EmulatorDevice(EmulatorBuilder()) as device:
        for name, plan in plans.items():
            if plan.outputs:
                with device.load(in_a_row(plan, 2), {}) as loaded:
                    (out[name],) = loaded.run([])
    return out


def filled(count: int) -> np.ndarray:
    return (np.arange(count) % memory.PERIOD).astype(np.float32)


def chunks_read(words: int, blocks: int, threads: int, passes: int) -> np.ndarray:
    """Sums per thread as `read_again` reads: passes over chunks of four vectors per thread."""
    chunk = 16 * threads
    x = filled(words).reshape(-1, 4, threads, 4)
    block, p = np.meshgrid(np.arange(blocks), np.arange(passes), indexing="ij")
    picked = x[(block + p * memory.STRIDE) % (words // chunk)]
    return picked.sum(axis=(1, 2, 4)).reshape(-1)


@pytest.mark.emulator
def test_memory_kernels_compute_what_they_say(results):
    x = filled(SMALL.dram_words)
    np.testing.assert_array_equal(results["dram copy"], x)
    np.testing.assert_array_equal(results["dram read"], chunks_read(len(x), len(x) // 1024, 64, 1))
    passes = SMALL.steps // 128
    np.testing.assert_array_equal(results["l2 read"], chunks_read(len(x), SMALL.blocks, 64, passes))
    tile = filled(1024).reshape(256, 4).sum(axis=1)
    thread, p, i = np.ogrid[:64, : 4 * passes, :8]
    shared = tile[(thread + p + i * memory.STRIDE) % 256].sum(axis=(1, 2))
    np.testing.assert_array_equal(results["shared read"], np.tile(shared, SMALL.blocks))


@pytest.mark.emulator
@pytest.mark.parametrize("name", ["l1 chain", "l2 chain", "dram chain"])
def test_chains_go_on_from_launch_to_launch(results, name):
    trial = TRIALS[name]
    words = trial.timed.params[0].tensor.size
    stride = {"l1 chain": 1, "l2 chain": 32, "dram chain": 513 * 32}[name]
    assert results[name] == 2 * int(trial.work) * stride % words


@pytest.mark.emulator
def test_arithmetic_kernels_compute_what_they_say(results):
    assert results["shared chain"] == int(TRIALS["shared chain"].work) * 33 % 1024
    # v = v / 2 + 1 ends at 2, from wherever it starts.
    np.testing.assert_array_equal(results["fma"], np.full(256, 16.0, np.float32))
    np.testing.assert_array_equal(results["fma chain"], np.full(32, 2.0, np.float32))
    np.testing.assert_array_equal(results["barrier"], np.arange(64, dtype=np.float32))
    for dtype, depth in (("f16", 16), ("bf16", 16), ("f32", 8)):
        found = results[f"matrix {dtype}"]
        assert found.shape == (1 * 2 * 16, 8 * 8)
        np.testing.assert_array_equal(found, np.full(found.shape, depth * 0.25 * (SMALL.steps // 4)))
    for dtype, depth in (("f16", 16), ("f32", 8)):
        expected = np.full((16, 8), depth * 0.25 * 4 * SMALL.steps)
        np.testing.assert_array_equal(results[f"matrix chain {dtype}"], expected)


def whole_kernels(arch: str) -> list[Func]:
    """The kernels of a whole calibration, those of one name once."""
    trials = gpu_trials(H100, gpu_sizes(H100), overlaps=arch != "sm_80")
    return list({f.name: f for t in trials for f in (*t.setup, t.timed)}.values())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_kernels_of_a_whole_calibration_compile_without_spills(arch):
    for f in whole_kernels(arch):
        verify(Module("m", (f,)))
        (resources,) = compile_cuda(emit_cuda(f).source, arch=arch).kernels.values()
        assert resources.spill_bytes == 0, f.name
        # Four blocks of those that shall fill it fit a multiprocessor.
        assert resources.registers * f["block"] * (f["grid"][0] >= H100.sm_count) <= 65536 // 4, f.name


def test_vectors_are_moved_as_vectors():
    for f in (memory.copy(1 << 14, 64), memory.read(1 << 14, 64), memory.read_again(1 << 16, 4, 64, 8)):
        assert emit_cuda(f).source.count("*(const float4*)&x[") == 4
    assert emit_cuda(memory.read_shared(2, 64, 8)).source.count("*(const float4*)&tile[") == 8


def test_every_gpu_has_trials_of_what_it_can_do():
    for record in known_hardware():
        if record.targets == ("opencl",):
            continue
        names = {t.name for t in gpu_trials(record, gpu_sizes(record), overlaps=False)}
        assert ("matrix f16" in names) == bool(record.tensor_fma_16bit_per_sm_per_clk)
        sizes = gpu_sizes(record)
        assert 4 * sizes.cached_words < record.l2_bytes / 2
        assert 4 * sizes.dram_words >= 4 * record.l2_bytes
        assert sizes.dram_words % (16 * sizes.threads) == sizes.cached_words % (16 * sizes.threads) == 0


def test_work_is_counted_per_launch():
    assert TRIALS["dram copy"].work == 2 * 4 * SMALL.dram_words
    assert TRIALS["fma"].work == 2 * 4 * 64 * 8 * SMALL.steps
    assert TRIALS["matrix f16"].work == 2 * 16 * 8 * 16 * 8 * (SMALL.steps // 4) * 1 * 2
    cpu = load_hardware("opencl")
    work = {t.name: t.work for t in cpu_trials(cpu, CpuSizes(1 << 12, groups=4, steps=64))}
    assert work["fma"] == 2 * 4 * 12 * 64 * cpu.simd_lanes
    assert work["groups"] == 4096


def test_launches_of_a_trial_follow_each_other():
    trial = Trial("t", compute.factors(), 1.0, (compute.factors(),))
    plan = in_a_row(plans_of([trial], TARGET)["t"], 3)
    assert [x.deps for x in plan.launches] == [(), (0,), (1,), (2,)]
    assert plan.outputs == ("factors",)
