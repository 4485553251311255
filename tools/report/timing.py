"""Seconds of every launch: measured on the target's device where this machine has it, else by the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir import UnsupportedError
from tilewright.profiling.profile import Profile
from tilewright.running.checking import random_inputs
from tilewright.running.executable import Executable
from tilewright.runtime.errors import DeviceMissingError

#: targets whose clock says something about the device they stand for
TIMED = ("cuda", "opencl")


#: replays that are recorded at least; the one of median length is shown
RECORDED = 5


@dataclass(frozen=True)
class Timing:
    """Seconds per launch in plan order; `network_s` is the median of whole runs, None where not measured.

    source: `measured` or `modelled`. where: the device, or why nothing was measured. profile: a recorded
    replay; None where there is none, which `unrecorded` gives the reason for.
    """

    source: str
    where: str
    launches_s: tuple[float, ...]
    network_s: float | None = None
    profile: Profile | None = None
    unrecorded: str = ""

    @property
    def measured(self) -> bool:
        """Whether a device was timed."""
        return self.source == "measured"


def timing_of(exe: Executable, estimates_s: Sequence[float], *, repeats: int, seed: int = 0) -> Timing:
    """Time an executable on random inputs, `repeats` times each; 0 repeats, or no device, give the estimates.

    estimates_s: the model's seconds of every launch. Raises WorkError where the device is there but fails.
    """
    modelled = tuple(estimates_s)
    kind = exe.target.partition(":")[0]
    if repeats == 0:
        return Timing("modelled", "not measured, as asked", modelled)
    if kind not in TIMED:
        return Timing("modelled", f"the {kind} target has no device to time", modelled)
    try:
        exe.load()
    except DeviceMissingError:
        return Timing("modelled", f"no device for {exe.target} on this machine", modelled)
    inputs = random_inputs(exe.input_names, exe.input_types, seed)
    network_s = float(np.median(exe.time(*inputs, repeats=repeats)))
    rows = exe.time_kernels(*inputs, repeats=repeats)
    timing = Timing("measured", exe.device, tuple(s for _, s in rows), network_s)
    try:
        profile = exe.profile(*inputs, repeats=max(repeats, RECORDED), compare_serial=True)
    except UnsupportedError as e:
        return replace(timing, unrecorded=str(e))
    return replace(timing, profile=profile)
