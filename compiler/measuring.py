"""Seconds of small programs of outlined kernels on a device, as they take them inside a network."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from tilewright.codegen.cache import cache_key
from tilewright.codegen.nvrtc import BASE_FLAGS, nvrtc_version
from tilewright.devices import open_device
from tilewright.executable import clear_errors
from tilewright.ir import Builder, Constants, Level, Module, TensorType, Value
from tilewright.ir.types import storage_dtype
from tilewright.kernel_builds import compiled, emit_kernels, kernel_codes
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.pipelines import PACKING, stage_texts
from tilewright.planning import plan_module
from tilewright.runtime.device import Device
from tilewright.runtime.memory import place_arena
from tilewright.runtime.opencl import BUILD_OPTIONS
from tilewright.runtime.plan import Buffer, ExecutionPlan, KernelCode, Launch
from tilewright.targets import Target
from tilewright.tuning_database import TuningDatabase
from tilewright.tuning_records import METHOD, Key, Measurement

#: runs of a program in one timed replay: boundaries between kernels count, as they do in a network
RUNS = 10
REPLAYS = 12


class RandomConstants:
    """Constants for a program under construction, normally distributed; equal ones are one array."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def constant(self, b: Builder, t: TensorType) -> Value:
        """A tensor.constant of this type."""
        name = f"constant{len(self.arrays)}"
        self.arrays[name] = _constant_data(len(self.arrays), t.shape, t.dtype)
        (value,) = b.emit("tensor.constant", (), {"name": name}, types=[t])
        return value

    def of(self, module: Module) -> Module:
        """The module with these constants."""
        return module.with_constants(Constants(self.arrays))


@dataclass(frozen=True, eq=False)
class Program:
    """A small program ready to be built: what names its time, its plan without binaries, and its module."""

    key: Key
    plan: ExecutionPlan
    module: Module


class Measurer:
    """Times programs on the device of a target; what the tuning database has of them is not timed again.

    `measured` and `reused` count the programs asked for that were timed and that were found; `used` holds
    every measurement that was asked for.
    """

    def __init__(self, target: Target, device: Device, database: TuningDatabase) -> None:
        self.target, self.device, self.database = target, device, database
        self.measured = self.reused = 0
        self.used: dict[Key, Measurement] = {}
        self._untimed: set[Key] = set()
        self._where = (device.name, device.driver_version, _compiler_of(target))
        text = f"{PACKING}, dce, {stage_texts(Level.TENSOR, target.language)['thread']}"
        self._pipeline = Pipeline.parse(text)

    def key(self, subject: str) -> Key:
        """The key of something by this name on this device."""
        return Key(subject, *self._where)

    def program(self, module: Module) -> Program:
        """A program lowered and emitted: tensor level, kernels outlined, parameters chosen."""
        context = PassContext(target=str(self.target), hardware=self.target.hardware)
        lowered = run_pipeline(module, self._pipeline, context)
        plan = _plan(lowered, self.target)
        return Program(self.key(_digest(plan)), plan, lowered)

    def known(self, program: Program) -> float | None:
        """Seconds of a program that was timed before, by this measurer or as the database knows."""
        if program.key in self._untimed:
            return 0.0
        found = self.database.get(program.key)
        if found is not None:
            self.used[program.key] = found
        return None if found is None else found.seconds

    def build(self, programs: Sequence[Program]) -> list[ExecutionPlan]:
        """The plans with their kernels compiled, all of them together; safe in several threads."""
        return _built([p.plan for p in programs], self.target)

    def measure(self, program: Program, built: ExecutionPlan) -> float:
        """Median seconds of one run; goes to the database at once.

        The program runs several times in a row, its launches one after the other; inputs are random.
        """
        times = np.array(_times(_repeated(built), program.module, self.device)) / RUNS
        low, seconds, high = (float(q) for q in np.quantile(times, (0.25, 0.5, 0.75)))
        self.measured += 1
        if seconds > 0:
            found = Measurement(seconds, high - low, len(times), int(time.time()))
            self.database.put(program.key, found)
            self.used[program.key] = found
        else:  # a device that runs nothing, or whose clock is too coarse, tells nothing
            self._untimed.add(program.key)
        return seconds

    def seconds(self, modules: Sequence[Module]) -> list[float]:
        """Median seconds of one run of each program: of those known as they were, the others are timed."""
        programs = [self.program(m) for m in modules]
        known = {p.key: s for p in programs if (s := self.known(p)) is not None}
        new = list({p.key: p for p in programs if p.key not in known}.values())
        self.reused += len(programs) - len(new)
        for program, built in zip(new, self.build(new), strict=True):
            known[program.key] = self.measure(program, built)
        return [known[p.key] for p in programs]


@contextmanager
def measurer(target: Target, database: str | os.PathLike[str] | None) -> Iterator[Measurer]:
    """A measurer on the target's device, with the database as `TuningDatabase.open` finds it.

    Both are closed at the end. Raises WorkError without a device, InputError for a bad database.
    """
    with clear_errors(), TuningDatabase.open(database) as opened, open_device(str(target)) as device:
        yield Measurer(target, device, opened)


def _compiler_of(target: Target) -> str:
    """What turns kernel text into machine code; of OpenCL the driver does, of the emulator its name tells."""
    if target.kind == "cuda":
        return " ".join(("NVRTC", nvrtc_version(), target.arch, *BASE_FLAGS))
    return " ".join((target.kind, *BUILD_OPTIONS)) if target.kind == "opencl" else target.kind


def _plan(module: Module, target: Target) -> ExecutionPlan:
    """The plan of a program, without binaries."""
    sources = emit_kernels(module, target)
    return plan_module(module, sources, kernel_codes(sources, target), str(target))


def _built(plans: Sequence[ExecutionPlan], target: Target) -> list[ExecutionPlan]:
    """The plans with their kernels compiled, all of them together."""
    numbered = {f"{k.name}#{i}": k for i, plan in enumerate(plans) for k in plan.kernels}
    codes = compiled(numbered, target, progress=False)
    out = []
    for i, plan in enumerate(plans):
        kernels = (replace(codes[f"{k.name}#{i}"], name=k.name) for k in plan.kernels)
        out.append(plan.replace(kernels=tuple(kernels)))
    return out


def _digest(plan: ExecutionPlan) -> str:
    """SHA-256 of all that decides what is timed; names and origins do not count."""
    numbers = {b.name: i for i, b in enumerate(plan.buffers)}
    order = {k.name: i for i, k in enumerate(plan.kernels)}
    parts = [METHOD, str(RUNS), str(REPLAYS)]
    parts += [_facts(b, ("name", "offset", "base", "strides", "start")) for b in plan.buffers]
    for k in plan.kernels:
        text = re.sub(rf"\b{re.escape(k.entry)}\b", "kernel", k.source)
        parts.append(re.sub(r"^ *//.*\n", "", text, flags=re.MULTILINE))
        parts.append(_facts(k, ("name", "entry", "source", "binary", "arch", "resources")))
    for x in plan.launches:
        parts.append(repr((order[x.kernel], *(numbers[a] for a in x.args))))
        parts.append(_facts(x, ("kernel", "args", "deps", "stream", "origin")))
    return cache_key(*parts)


def _facts(node: Buffer | KernelCode | Launch, without: tuple[str, ...]) -> str:
    """The fields of a node but those, so that one added later counts until somebody decides otherwise."""
    found = {f.name: getattr(node, f.name) for f in fields(node) if f.name not in without}
    return f"{type(node).__name__} {found}"


def _repeated(plan: ExecutionPlan) -> ExecutionPlan:
    """The same launches several times, each one after the one before it."""
    launches = plan.launches * RUNS
    chain = tuple(replace(x, deps=(i - 1,) if i else ()) for i, x in enumerate(launches))
    return place_arena(plan.replace(launches=chain)).validate()


def _times(plan: ExecutionPlan, module: Module, device: Device) -> list[float]:
    rng = np.random.default_rng(1)
    arrays = [random_array(rng, p.tensor.shape, p.tensor.dtype) for p in module.main.params]
    names = {b.name for b in plan.buffers if b.kind == "constant"}
    constants = {n: a for n, a in module.constants.items() if n in names}
    with device.load(plan, constants) as loaded:
        return loaded.time(arrays, REPLAYS)


@lru_cache(maxsize=16)
def _constant_data(index: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    # Candidates of one kernel come one after the other and read the same weights.
    return random_array(np.random.default_rng(index), shape, dtype)


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Standard normal numbers; integers are 0 and 1, which lie inside whatever they index."""
    stored = storage_dtype(dtype)
    if np.dtype(stored).kind in "iu":
        return rng.integers(0, 2, shape).astype(stored)
    return rng.standard_normal(shape, np.float32).astype(stored)
