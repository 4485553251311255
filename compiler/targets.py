"""Targets: which language, architecture, device and cost-model record a compilation is for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.calibration.store import as_calibrated, has_calibrations
from tilewright.costmodel import CpuHardware, Hardware, compiled_for, fill_from_machine, load_hardware
from tilewright.ir import InputError
from tilewright.runtime.errors import DeviceError

NAMES = ("auto", "cuda", "cuda:sm_XY", "opencl", "emulator", "reference", "null")
DEFAULT_ARCH = "sm_90a"


@dataclass(frozen=True)
class Target:
    """`kind` is cuda, opencl, emulator, reference or null; `arch` is the architecture of CUDA C code."""

    kind: str
    arch: str
    hardware: Hardware

    @property
    def language(self) -> str:
        """Kernel language: `cuda` or `opencl`."""
        return "cuda" if self.kind in ("cuda", "emulator", "null") else "opencl"

    def __str__(self) -> str:
        return f"{self.kind}:{self.arch}" if self.arch else self.kind


def resolve_target(text: str) -> Target:
    """The target `text` names. `auto` is CUDA where an NVIDIA GPU is present, else OpenCL.

    `cuda` takes the architecture of the GPU present, and sm_90a where there is none (compiling needs no GPU).
    The device found (of `auto`, `cuda` and `opencl`) brings its calibration, if it has one; a target that
    names an architecture has the record as it comes with Tilewright. Raises InputError for anything else.
    """
    kind, _, arch = text.partition(":")
    if kind == "auto" and not arch:
        present = _gpu()
        return _present_gpu(present) if present else resolve_target("opencl")
    if kind in ("cuda", "emulator", "null"):
        if arch and not re.fullmatch(r"sm_\d{2,3}a?", arch):
            raise InputError(
                f"expected an architecture such as sm_80 or sm_90a, got '{arch}'", where=f"target {text}"
            )
        found = None if arch or kind != "cuda" else _gpu()
        if found:
            return _present_gpu(found)
        return Target(kind, arch or DEFAULT_ARCH, _gpu_record(arch or DEFAULT_ARCH, ""))
    if kind in ("opencl", "reference") and not arch:
        record = _cpu_record()
        return Target(kind, "", _calibrated_cpu(record) if kind == "opencl" else record)
    raise InputError(f"expected a target among {', '.join(NAMES)}, got '{text}'")


def shipped_record(target: Target) -> Hardware:
    """The record of a target's device as it comes with Tilewright, of a CPU with this machine's cores."""
    shipped = load_hardware(target.hardware.name)
    return (
        fill_from_machine(shipped) if isinstance(shipped, CpuHardware) else compiled_for(shipped, target.arch)
    )


@dataclass(frozen=True)
class _Gpu:
    """An NVIDIA GPU of this machine."""

    arch: str
    name: str
    driver: str


def _present_gpu(gpu: _Gpu) -> Target:
    record = _gpu_record(gpu.arch, gpu.name)
    return Target("cuda", gpu.arch, as_calibrated(record, "cuda", gpu.name, gpu.driver))


def _gpu() -> _Gpu | None:
    """The first NVIDIA GPU, or None where there is none."""
    from tilewright.runtime.cuda import CudaDevice

    try:
        with CudaDevice() as device:
            return _Gpu(device.arch, device.name, device.driver_version)
    except DeviceError:
        return None


def _cpu_record() -> Hardware:
    record = load_hardware("opencl")
    return fill_from_machine(record) if isinstance(record, CpuHardware) else record


def _calibrated_cpu(record: Hardware) -> Hardware:
    """The record with the calibration of the OpenCL device present; none is opened without a calibration."""
    if not has_calibrations("opencl"):
        return record
    from tilewright.runtime.opencl.device import OpenClDevice

    try:
        with OpenClDevice() as device:
            return as_calibrated(record, "opencl", device.name, device.driver_version)
    except DeviceError:
        return record


def _gpu_record(arch: str, device: str) -> Hardware:
    """The record of the device by name, else of its architecture, else of the closest one recorded."""
    for name in (device, f"cuda:{arch}"):
        try:
            if name:
                return compiled_for(load_hardware(name), arch)
        except InputError:
            continue
    number = int(re.sub(r"\D", "", arch))
    closest = "sm_90a" if number >= 90 else "sm_80" if number >= 80 else "sm_75" if number >= 75 else "sm_70"
    return compiled_for(load_hardware(f"cuda:{closest}"), arch)
