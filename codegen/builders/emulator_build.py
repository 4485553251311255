"""Build CUDA C for the CPU emulator with the system's C++ compiler, in parallel, through the disk cache."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path

from tilewright.codegen.builders.cache import BinaryCache, cache_key

HEADERS = ("emulator.h", "emulator_engine.h", "emulator_channels.h", "emulator_job.h")
COMPILERS = ("c++", "g++", "clang++")
COMMON_FLAGS = ("-std=c++17", "-w", "-fno-strict-aliasing", "-fwrapv", "-ffp-contract=off", "-pthread")
#: Array bounds and vector alignment are checked by handlers of the engine, so no sanitizer library is linked.
#: `-Og` builds a kernel in four fifths of the time of `-O1`, and few kernels run longer than they are built.
KERNEL_FLAGS = ("-Og", "-fPIC", "-shared", "-fsanitize=bounds,alignment", "-fno-sanitize-recover=all")
ENGINE_FLAGS = ("-O1", "-rdynamic")
#: without the library of C++, which the engine brings: linking it to each kernel takes a tenth of a build
KERNEL_LIBRARIES = ("-nodefaultlibs", "-lm", "-lc", "-lgcc")
#: fills local arrays with a pattern before use; older compilers do not know it
POISON_FLAG = "-ftrivial-auto-var-init=pattern"
#: assembly could read files of this machine, as `#include` could; generated code has none here
NO_ASSEMBLY = "#pragma GCC poison asm __asm __asm__\n"
COMPILE_SECONDS = 300


@dataclass(frozen=True)
class Build:
    """One built file, or the compiler's complaint where `log` is not empty."""

    path: Path
    log: str = ""


@cache  # builders are made for each device that is opened, and each question is a process
def _version_of(compiler: str) -> str:
    out = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False, timeout=60)
    return out.stdout.split("\n", 1)[0].strip()


@cache
def _knows_poison(compiler: str) -> bool:
    probe = subprocess.run(
        [compiler, POISON_FLAG, "-x", "c++", "-fsyntax-only", "-"],
        input="int x;", capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    return probe.returncode == 0


class EmulatorBuilder:
    """Builds kernels and the engine that runs them; `compiler` overrides `$CXX`, c++, g++ and clang++."""

    def __init__(
        self, *, compiler: str | None = None, cache: BinaryCache | None = None, jobs: int | None = None
    ) -> None:
        self._wanted = compiler
        self.cache = cache if cache is not None else BinaryCache()
        self.jobs = jobs or os.cpu_count() or 1

    @cached_property
    def compiler(self) -> str | None:
        """Path of the C++ compiler; None where there is none."""
        names = [self._wanted] if self._wanted else [os.environ.get("CXX", ""), *COMPILERS]
        return next((found for name in names if name and (found := shutil.which(name))), None)

    @property
    def missing(self) -> str:
        """The missing requirement, in words; empty where everything is there."""
        if self.compiler is not None:
            return ""
        wanted = self._wanted or "c++, g++, clang++ or $CXX"
        return (
            f"the emulator builds kernels with a C++ compiler, and there is none on this machine ({wanted})"
        )

    @cached_property
    def version(self) -> str:
        """The compiler's first line about itself."""
        return _version_of(str(self.compiler))

    @cached_property
    def _flags(self) -> tuple[str, ...]:
        return (*COMMON_FLAGS, POISON_FLAG) if _knows_poison(str(self.compiler)) else COMMON_FLAGS

    @cached_property
    def _headers(self) -> dict[str, str]:
        folder = files("tilewright.codegen")
        return {name: folder.joinpath(name).read_text(encoding="utf-8") for name in HEADERS}

    def build_engine(self, folder: Path) -> Build:
        """The program that runs jobs, as `engine` in `folder`."""
        return self._build('#include "emulator_engine.h"\n', ENGINE_FLAGS, ("-ldl",), folder / "engine")

    def build_kernels(
        self,
        kernels: Sequence[tuple[str, str]],
        folder: Path,
        done: Callable[[int], None] | None = None,
    ) -> list[Build]:
        """`(entry, source)` pairs as shared objects in `folder`, in order; `done(i)` is called for each."""

        def one(item: tuple[int, tuple[str, str]]) -> Build:
            index, (entry, source) = item
            head = f'#include "emulator.h"\n{NO_ASSEMBLY}#line 1 "kernel.cu"\n'
            text = f"{head}{source}\nTW_EMULATOR_ENTRY({entry})\n"
            built = self._build(text, KERNEL_FLAGS, KERNEL_LIBRARIES, folder / f"kernel{index}.so")
            if done is not None:
                done(index)
            return built

        with ThreadPoolExecutor(max(1, min(self.jobs, len(kernels)))) as pool:
            return list(pool.map(one, enumerate(kernels)))

    def _build(self, text: str, flags: Sequence[str], libraries: Sequence[str], target: Path) -> Build:
        flags = (*self._flags, *flags)
        key = cache_key(
            "emulator",
            self.version,
            platform.machine(),
            " ".join((*flags, *libraries)),
            *self._headers.values(),
            text,
        )
        stored = self.cache.get(key)
        if stored is None:
            log = self._compile(text, flags, libraries, target)
            if log:
                return Build(target, log)
            self.cache.put(key, target.read_bytes())
        else:
            target.write_bytes(stored)
        target.chmod(0o755)
        return Build(target)

    def _compile(self, text: str, flags: Sequence[str], libraries: Sequence[str], target: Path) -> str:
        with tempfile.TemporaryDirectory(prefix="tilewright-emulator-") as name:
            folder = Path(name)
            for header, content in self._headers.items():
                (folder / header).write_text(content, encoding="utf-8")
            (folder / "kernel.cpp").write_text(text, encoding="utf-8")
            command = [str(self.compiler), *flags, "kernel.cpp", "-o", str(target.resolve()), *libraries]
            try:
                out = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, check=False, timeout=COMPILE_SECONDS
                )
            except subprocess.TimeoutExpired:
                return f"the compiler took more than {COMPILE_SECONDS} s"
        return "" if out.returncode == 0 else (out.stderr[:4000] or f"exit status {out.returncode}")
