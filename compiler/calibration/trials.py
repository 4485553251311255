"""The trials of a calibration: which micro-benchmarks run on a device, of which sizes."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.calibration import compute_kernels as compute
from tilewright.calibration import memory_kernels as memory
from tilewright.costmodel import CpuHardware, GpuHardware
from tilewright.ir import Func
from tilewright.ir.hardware_facts import LINE_BYTES, MMA_M, MMA_N, WARP

_WORD = 4
MATRIX_DTYPES = ("f16", "bf16", "f32")
CHAINED_DTYPES = ("f16", "f32")


@dataclass(frozen=True, eq=False)
class Trial:
    """A kernel that is launched again and again, in a row, after kernels that fill what it reads.

    work: what one launch does, in the unit the trial counts (bytes, operations, steps). runs: launches in a
    row. Parameters are buffers by their names, which the kernels of a trial share.
    """

    name: str
    timed: Func
    work: float
    setup: tuple[Func, ...] = ()
    runs: int = 4


@dataclass(frozen=True)
class GpuSizes:
    """The amounts of work of the trials on a GPU.

    dram_words, cached_words: 32-bit elements of arrays far beyond the second-level cache, and well inside it.
    blocks: of the kernels that keep every multiprocessor busy. steps: of multiply-adds per thread; the other
    loops are in proportion. chain: dependent loads in a row. launches: empty kernels in a row.
    """

    dram_words: int
    cached_words: int
    blocks: int
    steps: int = 4096
    chain: int = 8192
    launches: int = 64
    threads: int = 256


@dataclass(frozen=True)
class CpuSizes:
    """The same of a CPU; groups: work-groups of the kernels that keep every core busy."""

    dram_words: int
    groups: int
    steps: int = 4096
    launches: int = 32
    small_groups: int = 4096


def gpu_sizes(hardware: GpuHardware) -> GpuSizes:
    """Sizes for a whole calibration: about 200 microseconds per launch."""
    threads = GpuSizes.threads
    # Both a multiple of what a block of the reading kernels takes.
    whole = threads * 16
    words = min(8 * hardware.l2_bytes, 1 << 29) // _WORD // whole * whole
    cached = hardware.l2_bytes // 4 // _WORD // whole * whole
    return GpuSizes(words, cached, hardware.sm_count * hardware.max_threads_per_sm // threads)


def cpu_sizes(hardware: CpuHardware) -> CpuSizes:
    """Sizes for a whole calibration: tens of milliseconds per launch at most."""
    words = max(2 * hardware.l3_bytes // _WORD, 1 << 24) // (1 << 12) * (1 << 12)
    return CpuSizes(words, 64 * hardware.cores)


def gpu_trials(hardware: GpuHardware, sizes: GpuSizes, *, overlaps: bool) -> list[Trial]:
    """The trials on a GPU; overlaps: whether kernels may start before those they depend on have ended."""
    trials = [Trial("launch", compute.empty(waits=False), 1.0, runs=sizes.launches)]
    if overlaps:
        trials += [
            Trial("launch early", compute.empty(waits=True), 1.0, runs=sizes.launches),
            Trial("launch first", compute.empty(waits=True, releases=True), 1.0, runs=sizes.launches),
        ]
    return [*trials, *_memory(sizes), *_chains(sizes), *_arithmetic(sizes), *_matrices(hardware, sizes)]


def _memory(s: GpuSizes) -> list[Trial]:
    x, cached = memory.fill("x", s.dram_words), memory.fill("x", s.cached_words)
    threads = s.dram_words // 16
    passes = max(2, s.steps // 128)
    chunk = 16 * s.threads
    return [
        Trial("dram copy", memory.copy(s.dram_words, s.threads), 2.0 * _WORD * s.dram_words, (x,)),
        Trial("dram read", memory.read(s.dram_words, s.threads), _WORD * (s.dram_words + threads), (x,)),
        Trial(
            "l2 read",
            memory.read_again(s.cached_words, s.blocks, s.threads, passes),
            float(_WORD * s.blocks * passes * chunk),
            (cached,),
        ),
        Trial(
            "shared read",
            memory.read_shared(s.blocks, s.threads, 4 * passes),
            float(_WORD * s.blocks * s.threads * 4 * passes * 8 * memory.AT_ONCE),
        ),
    ]


def _chains(s: GpuSizes) -> list[Trial]:
    """Chains of loads: the ring fits the first-level cache, the second-level one, none."""
    start, line = memory.start_chain("cursor"), LINE_BYTES // _WORD
    trials = []
    for name, words, steps in (
        ("l1", 1024, 2 * s.chain),
        ("l2", min(1 << 20, s.cached_words), s.chain // 2),
        ("dram", s.dram_words, s.chain // 8),
    ):
        stride = 1 if name == "l1" else line if name == "l2" else 513 * line
        ring = memory.ring(name, words // 1024 * 1024, stride)
        chase = memory.chase(name, words // 1024 * 1024, steps)
        trials.append(Trial(f"{name} chain", chase, float(steps), (ring, start)))
    trials.append(Trial("shared chain", memory.chase_shared(1024, 33, 2 * s.chain), 2.0 * s.chain))
    return trials


def _arithmetic(s: GpuSizes) -> list[Trial]:
    chains, steps = 8, s.steps
    busy = compute.multiply_add(chains, steps, 1, blocks=s.blocks, threads=s.threads)
    alone = compute.multiply_add(1, 16 * steps, 1, blocks=1, threads=WARP)
    factors = compute.factors()
    return [
        Trial("fma", busy, 2.0 * s.blocks * s.threads * chains * steps, (factors,)),
        Trial("fma chain", alone, 16.0 * steps, (factors,)),
        Trial("barrier", compute.barriers(2 * s.chain, s.threads), 2.0 * s.chain),
    ]


def _matrices(hardware: GpuHardware, s: GpuSizes) -> list[Trial]:
    if not hardware.tensor_fma_16bit_per_sm_per_clk:
        return []
    tiles, steps, trials = 8, max(4, s.steps // 4), []
    blocks = max(1, s.blocks // 4)
    for dtype in MATRIX_DTYPES:
        busy = compute.matrix(dtype, tiles, steps, blocks=blocks, threads=s.threads)
        one = 2.0 * MMA_M * MMA_N * compute.matrix_depth(dtype)
        work = one * tiles * steps * blocks * (s.threads // WARP)
        trials.append(Trial(f"matrix {dtype}", busy, work))
    for dtype in CHAINED_DTYPES:
        chain = compute.matrix(dtype, 1, 4 * s.steps, blocks=1, threads=WARP)
        trials.append(Trial(f"matrix chain {dtype}", chain, 4.0 * s.steps))
    return trials


def cpu_trials(hardware: CpuHardware, s: CpuSizes) -> list[Trial]:
    """The trials on a CPU."""
    chains = 12  # two pipes of four cycles need eight, and compilers move some
    busy = compute.multiply_add(chains, s.steps, hardware.simd_lanes, blocks=s.groups, threads=1)
    work = 2.0 * s.groups * chains * s.steps * hardware.simd_lanes
    return [
        Trial("launch", compute.empty(waits=False), 1.0, runs=s.launches),
        Trial("groups", compute.groups(s.small_groups), float(s.small_groups), runs=8),
        Trial(
            "dram copy",
            memory.copy(s.dram_words, 64),
            2.0 * _WORD * s.dram_words,
            (memory.fill("x", s.dram_words),),
            runs=2,
        ),
        Trial("fma", busy, work, (compute.factors(),)),
    ]
