"""Times of trials -> constants of a hardware record, and facts beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.calibration.timing import TrialTimes
from tilewright.calibration.trials import CHAINED_DTYPES, MATRIX_DTYPES, Trial
from tilewright.costmodel import CpuHardware, GpuHardware
from tilewright.costmodel.hardware.calibration import Measured

Quantities = dict[str, Measured]


class Results:
    """Rates and durations of trials by name; the best ones are for the bound, medians for the estimators."""

    def __init__(self, trials: Sequence[Trial], times: Mapping[str, TrialTimes]) -> None:
        self._work = {t.name: t.work for t in trials}
        self._times = {name: t for name, t in times.items() if t.best_s > 0.0}

    def __contains__(self, name: str) -> bool:
        return name in self._times

    def rate(self, name: str) -> float:
        """Work per second at best."""
        return self._work[name] / self._times[name].best_s

    def usual_rate(self, name: str) -> float:
        """Work per second in the median."""
        return self._work[name] / self._times[name].median_s

    def measured(self, name: str, value: float, unit: str) -> Measured:
        """A quantity that comes from a trial."""
        t = self._times[name]
        return Measured(value, unit, t.samples, t.spread)

    def fastest(self, names: Sequence[str]) -> str:
        """The trial of the greatest rate among those that were timed; raises ValueError where none was."""
        return max((n for n in names if n in self), key=self.rate)


def gpu_constants(r: Results, hardware: GpuHardware) -> tuple[Quantities, Quantities]:
    """Constants of a GPU's record and facts.

    Rates per clock are at the greater of the record's clock and the one the multiply-adds ran at, with which
    the bound turns them back into seconds.
    """
    lanes = hardware.sm_count * hardware.fma_per_sm_per_clk
    sustained = r.rate("fma") / (2.0 * lanes)
    clock = max(hardware.clock_hz, sustained)
    dram = max(("dram copy", "dram read"), key=r.rate)
    dram_s = max(hardware.dram_bytes_per_s, r.rate(dram))
    sms = hardware.sm_count
    launches = [n for n in ("launch", "launch early", "launch first") if n in r]
    floor = r.fastest(launches)
    # Kernels start early where they can, and none lets others start first.
    usual = "launch early" if "launch early" in r else "launch"
    per_sm = r.usual_rate("l2 read") / (sms * clock)
    shared = r.rate("shared read") / (sms * clock)
    constants = {
        "clock_hz": r.measured("fma", sustained, "Hz"),
        "dram_bytes_per_s": r.measured(dram, r.rate(dram), "B/s"),
        "l2_bytes_per_clk": r.measured("l2 read", r.rate("l2 read") / clock, "B/clk"),
        "smem_bytes_per_sm_per_clk": r.measured("shared read", shared, "B/clk"),
        "launch_floor_s": r.measured(floor, 1.0 / r.rate(floor), "s"),
        "estimate_launch_s": r.measured(usual, 1.0 / r.usual_rate(usual), "s"),
        "estimate_dram_efficiency": r.measured(
            "dram copy", min(1.0, r.usual_rate("dram copy") / dram_s), "1"
        ),
        "estimate_l2_bytes_per_sm_per_clk": r.measured("l2 read", per_sm, "B/clk"),
        "estimate_barrier_clk": r.measured("barrier", clock / r.usual_rate("barrier"), "clk"),
    }
    for name, trial in (
        ("lat_fetch_clk", "l1 chain"),
        ("lat_smem_clk", "shared chain"),
        ("lat_fma_clk", "fma chain"),
        ("lat_l2_clk", "l2 chain"),
    ):
        constants[name] = r.measured(trial, clock / r.rate(trial), "clk")
    facts = {
        "dram_copy_bytes_per_s": r.measured("dram copy", r.rate("dram copy"), "B/s"),
        "dram_read_bytes_per_s": r.measured("dram read", r.rate("dram read"), "B/s"),
        "fma_flops_per_s": r.measured("fma", r.rate("fma"), "1/s"),
        "dram_latency_s": r.measured("dram chain", 1.0 / r.rate("dram chain"), "s"),
        **{f"{n.replace(' ', '_')}_s": r.measured(n, 1.0 / r.usual_rate(n), "s") for n in launches},
    }
    matrix_constants, matrix_facts = _matrix_constants(r, hardware, clock)
    return constants | matrix_constants, facts | matrix_facts


def _matrix_constants(r: Results, hardware: GpuHardware, clock: float) -> tuple[Quantities, Quantities]:
    """Tensor cores: the best share of their peak in any format, and how steadily that is reached."""
    names = [f"matrix {dtype}" for dtype in MATRIX_DTYPES if f"matrix {dtype}" in r]
    if not names:
        return {}, {}
    per_clk = {
        "f16": hardware.tensor_fma_16bit_per_sm_per_clk,
        "bf16": hardware.tensor_fma_16bit_per_sm_per_clk,
        "f32": hardware.tensor_fma_tf32_per_sm_per_clk,
    }
    peaks = {f"matrix {d}": 2.0 * n * hardware.sm_count * clock for d, n in per_clk.items()}
    best = max(names, key=lambda n: r.rate(n) / peaks[n])
    share = min(1.0, r.rate(best) / peaks[best])
    usual = r.usual_rate(best) / (peaks[best] * max(share, hardware.mma_sync_share))
    chain = r.fastest([f"matrix chain {dtype}" for dtype in CHAINED_DTYPES])
    constants = {
        "mma_sync_share": r.measured(best, share, "1"),
        "estimate_mma_efficiency": r.measured(best, min(1.0, usual), "1"),
        "lat_mma_clk": r.measured(chain, clock / r.rate(chain), "clk"),
    }
    facts = {f"{n.replace(' ', '_')}_flops_per_s": r.measured(n, r.rate(n), "1/s") for n in names}
    return constants, facts


def cpu_constants(r: Results, hardware: CpuHardware) -> tuple[Quantities, Quantities]:
    """Constants of a CPU's record and facts; the clock is the one that the multiply-adds imply."""
    per_clk = 2.0 * hardware.simd_lanes * hardware.fma_per_core_per_clk * hardware.cores
    launch = 1.0 / r.usual_rate("launch")
    # All cores start work-groups at a time.
    group = max(1.0 / r.usual_rate("groups"), 1e-12) * hardware.cores
    constants = {
        "clock_hz": r.measured("fma", r.rate("fma") / per_clk, "Hz"),
        "dram_bytes_per_s": r.measured("dram copy", r.rate("dram copy"), "B/s"),
        "launch_floor_s": r.measured("launch", 1.0 / r.rate("launch"), "s"),
        "estimate_clock_hz": r.measured("fma", r.usual_rate("fma") / per_clk, "Hz"),
        "estimate_dram_bytes_per_s": r.measured("dram copy", r.usual_rate("dram copy"), "B/s"),
        "estimate_launch_s": r.measured("launch", launch, "s"),
        "estimate_work_group_s": r.measured("groups", group, "s"),
    }
    return constants, {"fma_flops_per_s": r.measured("fma", r.rate("fma"), "1/s")}
