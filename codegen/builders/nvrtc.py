"""CUDA C text to CUBIN through NVRTC, with what each kernel takes in registers, local and shared memory.

NVRTC needs neither a GPU nor a driver, so every kernel can be compiled anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType
from typing import Any

from tilewright.codegen.builders.cubin import Resources, read_resources
from tilewright.ir.errors import InputError, WorkError

BASE_FLAGS = ("-default-device", "--std=c++17")
_ARCH = re.compile(r"sm_(\d+)[af]?")
#: what ptxas says where it puts a wait behind every multiplication of warpgroups (C7510 to C7515)
SERIALISED = re.compile(r"\(C75\d\d\)[^\n]*instructions are serialized[^\n]*")


@dataclass(frozen=True)
class CudaBinary:
    """A CUBIN for one architecture, its kernels' resources by entry name, and the compiler's remarks."""

    cubin: bytes = field(repr=False)
    arch: str
    kernels: Mapping[str, Resources]
    log: str = ""

    @property
    def serialised(self) -> str:
        """Why ptxas multiplies on warpgroups one instruction after the other; empty where it does not."""
        found = SERIALISED.search(self.log)
        return found[0] if found else ""


@cache
def load_nvrtc() -> ModuleType:
    """The NVRTC bindings; raises `WorkError` naming the extra to install where something is missing."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        # The bindings report a library that cannot be loaded as RuntimeError.
        raise WorkError(
            f"compiling CUDA needs NVRTC 13: pip install 'tilewright[cuda]' ({_first_line(str(error))})"
        ) from None
    module: ModuleType = nvrtc
    return module


def nvrtc_version() -> str:
    """The version of NVRTC in use, for instance `13.0`."""
    nvrtc = load_nvrtc()
    _, major, minor = nvrtc.nvrtcVersion()
    return f"{major}.{minor}"


def supported_archs() -> tuple[int, ...]:
    """The compute capabilities (75, 80, ...) this NVRTC compiles for."""
    nvrtc = load_nvrtc()
    return tuple(_checked(nvrtc, "nvrtcGetSupportedArchs", nvrtc.nvrtcGetSupportedArchs()))


def check_arch(arch: str) -> None:
    """Raise `InputError` unless NVRTC compiles for `arch` (`sm_75`, `sm_90a`, ...)."""
    match = _ARCH.fullmatch(arch)
    supported = supported_archs()
    if match is None or int(match[1]) not in supported:
        known = ", ".join(f"sm_{number}" for number in supported)
        raise InputError(f"expected an architecture NVRTC {nvrtc_version()} knows ({known}), got {arch!r}")


def compile_cuda(source: str, *, arch: str = "sm_90a", flags: Sequence[str] = ()) -> CudaBinary:
    """Compile one translation unit to a CUBIN.

    Raises `InputError` for an unknown architecture and `WorkError`, with the source lines around the first
    error, where the text does not compile.
    """
    check_arch(arch)
    nvrtc = load_nvrtc()
    program = _checked(
        nvrtc, "nvrtcCreateProgram", nvrtc.nvrtcCreateProgram(source.encode(), b"kernel.cu", 0, [], [])
    )
    try:
        options = [flag.encode() for flag in (f"--gpu-architecture={arch}", *BASE_FLAGS, *flags)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        log = _read_log(nvrtc, program)
        if status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION:
            raise WorkError(f"NVRTC refused the source for {arch}:\n{explain_log(log, source)}")
        _checked(nvrtc, "nvrtcCompileProgram", (status,))
        size = _checked(nvrtc, "nvrtcGetCUBINSize", nvrtc.nvrtcGetCUBINSize(program))
        cubin = bytearray(size)
        _checked(nvrtc, "nvrtcGetCUBIN", nvrtc.nvrtcGetCUBIN(program, cubin))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return CudaBinary(bytes(cubin), arch, read_resources(bytes(cubin)), log)


def _checked(nvrtc: ModuleType, call: str, answer: tuple[Any, ...]) -> Any:
    status, *rest = answer
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        text = nvrtc.nvrtcGetErrorString(status)[1].decode()
        raise WorkError(f"{call} failed: {text}")
    return rest[0] if rest else None


def _read_log(nvrtc: ModuleType, program: Any) -> str:
    size = _checked(nvrtc, "nvrtcGetProgramLogSize", nvrtc.nvrtcGetProgramLogSize(program))
    text = bytearray(size)
    _checked(nvrtc, "nvrtcGetProgramLog", nvrtc.nvrtcGetProgramLog(program, text))
    return text.rstrip(b"\0 \n").decode(errors="replace")


def _first_line(text: str) -> str:
    return text.strip().split("\n", 1)[0][:200]


_ERROR_LINE = re.compile(r"^kernel\.cu\((\d+)\): (?:catastrophic )?error", re.MULTILINE)


def explain_log(log: str, source: str, *, around: int = 3) -> str:
    """The compiler's errors followed by the source lines around the first of them."""
    shown = log[:4000] + ("\n..." if len(log) > 4000 else "")
    first = _ERROR_LINE.search(log)
    if first is None:
        return shown
    wrong = int(first[1])
    lines = source.splitlines()
    excerpt = (
        f"{'>' if number == wrong else ' '}{number:5d} | {lines[number - 1]}"
        for number in range(max(1, wrong - around), min(len(lines), wrong + around) + 1)
    )
    return shown + "\n" + "\n".join(excerpt)
