"""Targets: which language, architecture, device and cost-model record a compilation is for."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tilewright.costmodel import CpuHardware, Hardware, fill_from_machine, load_hardware
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
    Raises InputError for anything else.
    """
    kind, _, arch = text.partition(":")
    if kind == "auto" and not arch:
        found = _gpu()
        return Target("cuda", found[0], _gpu_record(*found)) if found else resolve_target("opencl")
    if kind in ("cuda", "emulator", "null"):
        if arch and not re.fullmatch(r"sm_\d{2,3}a?", arch):
            raise InputError(
                f"expected an architecture such as sm_80 or sm_90a, got '{arch}'", where=f"target {text}"
            )
        found = None if arch or kind != "cuda" else _gpu()
        return Target(
            kind,
            arch or (found[0] if found else DEFAULT_ARCH),
            _gpu_record(*(found or (arch or DEFAULT_ARCH, ""))),
        )
    if kind in ("opencl", "reference") and not arch:
        record = load_hardware("opencl")
        return Target(kind, "", fill_from_machine(record) if isinstance(record, CpuHardware) else record)
    raise InputError(f"expected a target among {', '.join(NAMES)}, got '{text}'")


def _gpu() -> tuple[str, str] | None:
    """Architecture and name of the first NVIDIA GPU, or None where there is none."""
    from tilewright.runtime.cuda import CudaDevice

    try:
        with CudaDevice() as device:
            return device.arch, device.name
    except DeviceError:
        return None


def _gpu_record(arch: str, device: str) -> Hardware:
    """The record of the device by name, else of its architecture, else of the closest one recorded."""
    for name in (device, f"cuda:{arch}"):
        try:
            if name:
                return load_hardware(name)
        except InputError:
            continue
    number = int(re.sub(r"\D", "", arch))
    closest = "sm_90a" if number >= 90 else "sm_80" if number >= 80 else "sm_75" if number >= 75 else "sm_70"
    return load_hardware(f"cuda:{closest}")
