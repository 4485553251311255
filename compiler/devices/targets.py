"""Targets: which language, architecture, device and cost-model record a compilation is for."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace

from tilewright.costmodel import (
    CpuHardware,
    GpuHardware,
    Hardware,
    compiled_for,
    fill_from_machine,
    find_hardware,
    load_hardware,
    nearest_hardware,
)
from tilewright.costmodel.hardware.provenance import nearest_text
from tilewright.devices.calibration_store import as_calibrated, has_calibrations
from tilewright.ir import InputError, WorkError
from tilewright.ir.errors import expect
from tilewright.runtime.errors import DeviceError, DeviceMissingError

NAMES = (
    "auto",
    "cuda",
    "cuda:sm_XY",
    "cuda:sm_XY:DEVICE",
    "opencl",
    "opencl:NAME",
    "emulator",
    "reference",
    "null",
)
DEFAULT_ARCH = "sm_90a"
FLOAT_BITS = 32
#: of OpenCL code for a device that is not there
LEAST_VECTOR_BITS = 128


@dataclass(frozen=True)
class Target:
    """`kind` is cuda, opencl, emulator, reference or null.

    `arch` is the architecture of CUDA C code; of opencl what names the device, where one was asked for.
    As text it is what code was compiled for, not the record: whoever compiles again hands on the target.
    """

    kind: str
    arch: str
    hardware: Hardware

    @property
    def language(self) -> str:
        """Kernel language: `cuda` or `opencl`."""
        return "cuda" if self.kind in ("cuda", "emulator", "null") else "opencl"

    def __str__(self) -> str:
        return f"{self.kind}:{self.arch}" if self.arch else self.kind


def resolve_target(text: str | Target, *, with_calibration: bool = True) -> Target:
    """The target `text` names; one that is resolved stays as it is.

    `auto` is CUDA where an NVIDIA GPU is present, else OpenCL.

    `cuda` takes the architecture of the GPU present, and sm_90a where there is none (compiling needs no GPU).
    The device found (of `auto`, `cuda` and `opencl`) brings its calibration, if it has one; a target that
    names an architecture has the record as it comes with Tilewright, and so has every one without
    `with_calibration`, whatever state its file is in. `opencl:NAME` picks the device whose
    implementation (`intel`, `pocl`) or name NAME means. A GPU or an architecture without a record has that of
    the nearest architecture, with a RuntimeWarning. `cuda:sm_90a:h200` is compiled for a device with a record
    that need not be present. Raises InputError for anything else, and WorkError where no OpenCL device has
    the name.
    """
    if isinstance(text, Target):
        return text
    kind, _, arch = expect(text, str, f"a target as text ({', '.join(NAMES)})").partition(":")
    if kind == "auto" and not arch:
        present = _gpu()
        if present is None:
            return resolve_target("opencl", with_calibration=with_calibration)
        return _present_gpu(present, with_calibration)
    if kind in ("cuda", "emulator", "null"):
        arch, named, device = arch.partition(":")
        if (arch or named) and not re.fullmatch(r"sm_\d{2,3}a?", arch):
            raise InputError(
                f"expected an architecture such as sm_80 or sm_90a, got '{arch}'", where=f"target {text}"
            )
        if named:
            return Target(kind, arch, _named_record(arch, device))
        gpu = None if arch or kind != "cuda" else _gpu()
        if gpu:
            return _present_gpu(gpu, with_calibration)
        return Target(kind, arch or DEFAULT_ARCH, _gpu_record(arch or DEFAULT_ARCH, ""))
    if kind == "opencl":
        return Target(kind, arch, _opencl_record(arch, with_calibration))
    if kind == "reference" and not arch:
        return Target(kind, "", _cpu_record())
    raise InputError(f"expected a target among {', '.join(NAMES)}, got '{text}'")


def target_here(text: str) -> Target:
    """The target of the device that runs here what was compiled for a target.

    The text of a target for GPUs names an architecture and no device: the record is that of the GPU present.
    """
    return resolve_target("cuda" if text.partition(":")[0] == "cuda" else text)


def shipped_record(target: Target) -> Hardware:
    """The record of a target's device as it comes with Tilewright, of a CPU with this machine's cores."""
    shipped = load_hardware(target.hardware.name)
    if isinstance(shipped, CpuHardware) and isinstance(target.hardware, CpuHardware):
        return fill_from_machine(shipped, FLOAT_BITS * target.hardware.simd_lanes)
    return replace(compiled_for(shipped, target.arch), stands_for=target.hardware.stands_for)


def device_name(target: Target) -> str:
    """The device that a target's kernels run on here, as `Device.name` says it.

    Of OpenCL the processor and the implementation; empty where there is none, or the target has none.
    """
    if target.kind == "cuda":
        present = _gpu()
        return present.name if present else ""
    if target.kind != "opencl":
        return ""
    from tilewright.runtime.opencl.platforms import full_name
    from tilewright.runtime.opencl.trust import find_device

    try:
        return full_name(find_device(target.arch or None)[0])
    except DeviceError:
        return ""


@dataclass(frozen=True)
class _Gpu:
    """An NVIDIA GPU of this machine."""

    arch: str
    name: str
    driver: str
    multiprocessors: int


def _present_gpu(gpu: _Gpu, with_calibration: bool) -> Target:
    record = _gpu_record(gpu.arch, gpu.name, gpu.multiprocessors)
    if with_calibration:
        record = as_calibrated(record, "cuda", gpu.name, gpu.driver)
    return Target("cuda", gpu.arch, record)


def _gpu() -> _Gpu | None:
    """The first NVIDIA GPU, or None where there is none."""
    from tilewright.runtime.cuda.device import CudaDevice

    try:
        with CudaDevice() as device:
            return _Gpu(device.arch, device.name, device.driver_version, device.multiprocessors)
    except DeviceError:
        return None


def _cpu_record(vector_bits: int | None = None) -> Hardware:
    record = load_hardware("opencl")
    return fill_from_machine(record, vector_bits) if isinstance(record, CpuHardware) else record


def _opencl_record(name: str, with_calibration: bool) -> Hardware:
    """The record of the OpenCL device that would run: vectors as wide as it takes, and its calibration.

    Without any device, and no name that asks for one, what is compiled has vectors that every CPU takes.
    """
    from tilewright.runtime.opencl.platforms import full_name, version_of
    from tilewright.runtime.opencl.trust import find_device

    try:
        device, vector_bits = find_device(name or None)
    except DeviceMissingError as missing:
        if name:
            raise WorkError(str(missing)) from missing
        return _cpu_record(LEAST_VECTOR_BITS)
    except DeviceError as refused:
        raise WorkError(str(refused)) from refused
    record = _cpu_record(vector_bits)
    if not with_calibration or not has_calibrations("opencl"):
        return record
    return as_calibrated(record, "opencl", full_name(device), version_of(device))


def _named_record(arch: str, device: str) -> Hardware:
    """The record of a GPU by its name; raises InputError naming the known devices."""
    record = load_hardware(device.replace("-", " "))
    if not isinstance(record, GpuHardware):
        raise InputError(f"expected a GPU, got {record.name}", where=f"target cuda:{arch}:{device}")
    return compiled_for(record, arch)


def _gpu_record(arch: str, device: str, multiprocessors: int | None = None) -> Hardware:
    """The record of the device, if one is named, else of the architecture.

    Where there is none, that of the nearest architecture, with a warning. The same warning comes where the
    record has the device's name and another number of multiprocessors: an RTX 2080 Ti is no RTX 2080. Raises
    InputError where a record is damaged, or several claim the device: it is given no other's record.
    """
    own = find_hardware(device or f"cuda:{arch}")
    same = not isinstance(own, GpuHardware) or multiprocessors in (None, own.sm_count)
    if own is not None and same:
        return compiled_for(own, arch)
    nearest = own or nearest_hardware(arch)
    without = device or f"the architecture {arch}"
    warnings.warn(nearest_text(nearest.name, without), RuntimeWarning, stacklevel=1)
    return replace(compiled_for(nearest, arch), stands_for=without)
