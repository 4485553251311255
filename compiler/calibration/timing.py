"""Times trials on a device: plans of launches in a row, in replays, and what one launch takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from tqdm import tqdm

from tilewright.calibration.trials import Trial
from tilewright.compilation.kernel_builds import build_codes, emit_kernels
from tilewright.devices.targets import Target
from tilewright.ir import Func, Module, Value
from tilewright.ir.types import itemsize, storage_dtype
from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.interface.device import Device
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch

#: replays of each plan
REPLAYS = 5
#: of the whole time, what the launches in a row must take, else starting the replay counts with them
_LEAST_SHARE = 0.5


@dataclass(frozen=True)
class TrialTimes:
    """Seconds of one launch: the best, the median, and the quartile distance over the median."""

    best_s: float
    median_s: float
    samples: int
    spread: float


def time_trials(
    trials: Sequence[Trial], target: Target, device: Device, *, progress: bool | None = None
) -> dict[str, TrialTimes]:
    """Times of one launch of every trial, by the trials' names; kernels are compiled all together.

    Raises WorkError and DeviceError.
    """
    plans = plans_of(trials, target)
    hidden = None if progress is None else not progress
    return {
        t.name: _times(t, plans[t.name], device)
        for t in tqdm(trials, desc="measuring", unit="trial", disable=hidden)
    }


def plans_of(trials: Sequence[Trial], target: Target) -> dict[str, ExecutionPlan]:
    """Per trial the plan that fills its buffers and launches its kernel once."""
    named = {f"{t.name}#{i}": f for t in trials for i, f in enumerate((*t.setup, t.timed))}
    module = Module("calibration", tuple(replace(f, name=_kernel_name(n)) for n, f in named.items()))
    sources = emit_kernels(module, target)
    codes = build_codes(sources, target, progress=False)
    out = {}
    for t in trials:
        names = [_kernel_name(f"{t.name}#{i}") for i in range(len(t.setup) + 1)]
        funcs = [module[n] for n in names]
        launches = [
            Launch(
                n,
                tuple(v.hint for v in f.params),
                sources[n].grid,
                sources[n].block,
                shared_bytes=sources[n].shared_bytes_dynamic,
                deps=(i - 1,) if i else (),
                writes=sources[n].writes,
            )
            for i, (n, f) in enumerate(zip(names, funcs, strict=True))
        ]
        out[t.name] = _plan(funcs, [codes[n] for n in names], launches, str(target))
    return out


def _kernel_name(name: str) -> str:
    return name.replace(" ", "_").replace("#", "_")


def _plan(
    funcs: Sequence[Func], codes: Sequence[KernelCode], launches: Sequence[Launch], target: str
) -> ExecutionPlan:
    """Outputs are what the last kernel writes."""
    values: Mapping[str, Value] = {v.hint: v for f in funcs for v in f.params}
    buffers = tuple(
        Buffer(
            name,
            storage_dtype(v.tensor.dtype).name,
            v.tensor.shape,
            "arena",
            v.tensor.size * itemsize(v.tensor.dtype),
        )
        for name, v in values.items()
    )
    written = tuple(launches[-1].args[i] for i in launches[-1].writes)
    plan = ExecutionPlan(target, buffers, tuple(codes), tuple(launches), (), written, 0)
    return validate(place_arena(plan))


def in_a_row(plan: ExecutionPlan, runs: int) -> ExecutionPlan:
    """The plan with its last launch `runs` times, each after the one before it."""
    *setup, last = plan.launches
    first = len(setup)
    again = (replace(last, deps=(i - 1,) if i else ()) for i in range(first, first + runs))
    return validate(place_arena(plan.replace(launches=(*setup, *again))))


def _times(trial: Trial, plan: ExecutionPlan, device: Device) -> TrialTimes:
    """What twice as many launches take more than so many: starting a replay and the setup cancel out."""
    runs, times = trial.runs, []
    for count in (runs, 2 * runs):
        with device.load(in_a_row(plan, count), {}) as loaded:
            times.append(np.array(loaded.time([], REPLAYS)))
    short, long = times
    low, _, high = np.quantile(long, (0.25, 0.5, 0.75))
    best = launch_s_of(float(short.min()), float(long.min()), runs)
    median = launch_s_of(float(np.median(short)), float(np.median(long)), runs)
    spread = float((high - low) / np.median(long)) if np.median(long) > 0 else 0.0
    return TrialTimes(best, max(best, median), 2 * REPLAYS, spread)


def launch_s_of(short_s: float, long_s: float, runs: int) -> float:
    """Seconds of one launch; with what surrounds the launches where noise hides the difference."""
    whole, difference = long_s / (2 * runs), (long_s - short_s) / runs
    return difference if _LEAST_SHARE * whole <= difference <= whole else whole
