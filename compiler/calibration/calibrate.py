"""Measures a device: runs the trials and makes a calibration of what they took."""

from __future__ import annotations

from datetime import UTC, datetime

from tilewright.calibration.results import Results, cpu_constants, gpu_constants
from tilewright.calibration.timing import time_trials
from tilewright.calibration.trials import CpuSizes, GpuSizes, cpu_sizes, cpu_trials, gpu_sizes, gpu_trials
from tilewright.costmodel import GpuHardware
from tilewright.costmodel.hardware.calibration import Calibration
from tilewright.costmodel.kernels.relays import starts_early
from tilewright.devices.opening import open_device
from tilewright.devices.targets import Target, shipped_record
from tilewright.ir import InputError, WorkError

KINDS = ("cuda", "opencl")


def calibrate(
    target: Target, *, sizes: GpuSizes | CpuSizes | None = None, progress: bool | None = None
) -> Calibration:
    """Measure the device of a target; a few seconds.

    sizes: how much each trial does (default: for a whole calibration). Raises InputError for a target that is
    no device to measure, DeviceMissingError where there is none, WorkError where its clock shows nothing.
    """
    if target.kind not in KINDS:
        raise InputError(
            f"expected a target with a device to measure ({', '.join(KINDS)}), got '{target}'",
            where="calibrate",
        )
    record = shipped_record(target)
    with open_device(str(target)) as device:
        if isinstance(record, GpuHardware):
            chosen = sizes if isinstance(sizes, GpuSizes) else gpu_sizes(record)
            trials = gpu_trials(record, chosen, overlaps=starts_early(str(target)))
        else:
            small = sizes if isinstance(sizes, CpuSizes) else cpu_sizes(record)
            trials = cpu_trials(record, small)
        results = Results(trials, time_trials(trials, target, device, progress=progress))
        untimed = [t.name for t in trials if t.name not in results]
        if untimed:
            raise WorkError(f"the clock of {device.name} shows no time for the trial {untimed[0]!r}")
        if isinstance(record, GpuHardware):
            constants, facts = gpu_constants(results, record)
        else:
            constants, facts = cpu_constants(results, record)
        return Calibration(
            record=record.name,
            device=device.name,
            driver=device.driver_version,
            measured=datetime.now(UTC).isoformat(timespec="seconds"),
            constants=tuple(constants.items()),
            facts=tuple(facts.items()),
        )
