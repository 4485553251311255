"""Seconds of small programs of outlined kernels on a device, as they take them inside a network."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from functools import lru_cache

import numpy as np

from tilewright.codegen.builders.cache import cache_key
from tilewright.codegen.builders.nvrtc import BASE_FLAGS, nvrtc_version
from tilewright.compilation.kernel_builds import compiled, emit_kernels, kernel_codes
from tilewright.compilation.lowering import lower_program, with_packed_weights
from tilewright.compilation.planning import constants_of, plan_module
from tilewright.devices.opening import open_device
from tilewright.devices.targets import Target
from tilewright.ir import Builder, Constants, Module, TensorType, Value
from tilewright.ir.types import storage_dtype
from tilewright.measuring.repeated_plan import RUNS, SPREAD, copies_in, repeated
from tilewright.passes.analysis.work.weight_traffic import weights_leave_l2
from tilewright.runtime.interface.device import Device, LoadedPlan
from tilewright.runtime.opencl.programs import BUILD_OPTIONS
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch
from tilewright.tuning.database.database import TuningDatabase
from tilewright.tuning.database.records import METHOD, Key, Measurement

REPLAYS = 12
#: elements of one result that are compared with those of another program
SAMPLE = 1 << 20


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
class TimedProgram:
    """A small program ready to be built: what names its time, its plan without binaries, and its module.

    copies: how many copies of its weights take turns. packed: whether the weights in `module` are in the
    order of the plan.
    """

    key: Key
    plan: ExecutionPlan
    module: Module
    copies: int = 1
    packed: bool = True


class Measurer:
    """Times programs on the device of a target; what the tuning database has of them is not timed again.

    `measured` and `reused` count the programs asked for that were timed and that were found; `used` holds
    every measurement that was asked for. `cold_weights`, from `network` on: whether programs find their
    weights in DRAM, as kernels of a network do whose weights exceed the L2.
    """

    def __init__(self, target: Target, device: Device, database: TuningDatabase) -> None:
        self.target, self.device, self.database = target, device, database
        self.measured = self.reused = 0
        self.used: dict[Key, Measurement] = {}
        self._untimed: set[Key] = set()
        self._where = (device.name, device.driver_version, _compiler_of(target))
        self._loaded: LoadedPlan | None = None
        self.cold_weights = False

    def network(self, module: Module) -> None:
        """Measure from now on for this network, at graph or tensor level."""
        self.cold_weights = weights_leave_l2(module, self.target.hardware)

    def close(self) -> None:
        """Unload the last program, which is kept for what the next one may share with it."""
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def key(self, subject: str) -> Key:
        """The key of something by this name on this device.

        Of choices (`kernel:...`), which rest on times, those with cold weights are others.
        """
        cold = ":" in subject and self.cold_weights
        return Key(f"{subject}, cold weights" if cold else subject, *self._where)

    def program(self, module: Module) -> TimedProgram:
        """A program lowered and emitted: tensor level, kernels outlined, parameters chosen."""
        packed, plan = lowered(module, self.target, cold=self.cold_weights)
        return self._named(packed, plan)

    def program_of(self, module: Module, plan: ExecutionPlan) -> TimedProgram:
        """The program of a module whose plan was made elsewhere, by `lowered`."""
        return replace(self._named(module, plan), packed=False)

    def _named(self, module: Module, plan: ExecutionPlan) -> TimedProgram:
        copies = copies_in(plan, self.target.hardware) if self.cold_weights else 1
        return TimedProgram(self.key(_digest(plan, copies)), plan, module, copies)

    def known(self, program: TimedProgram) -> float | None:
        """Seconds of a program that was timed before, by this measurer or as the database knows."""
        if program.key in self._untimed:
            return 0.0
        measurement = self.database.get(program.key)
        if measurement is not None:
            self.used[program.key] = measurement
        return None if measurement is None else measurement.seconds

    def build(self, programs: Sequence[TimedProgram]) -> list[ExecutionPlan]:
        """The plans with their kernels compiled, all of them together; safe in several threads."""
        return _built([p.plan for p in programs], self.target)

    def measure(self, program: TimedProgram, built: ExecutionPlan) -> float:
        """Median seconds of one run; goes to the database at once.

        The program runs several times in a row, its launches one after the other; inputs are random.
        """
        times = np.array(self._times(program, built))
        low, seconds, high = (float(q) for q in np.quantile(times, (0.25, 0.5, 0.75)))
        self.measured += 1
        if seconds > 0:
            measurement = Measurement(seconds, high - low, len(times), int(time.time()))
            self.database.put(program.key, measurement)
            self.used[program.key] = measurement
        else:  # a device that runs nothing, or whose clock is too coarse, tells nothing
            self._untimed.add(program.key)
        return seconds

    def _times(self, program: TimedProgram, built: ExecutionPlan) -> list[float]:
        arrays = _inputs(program.module)
        plan, constants, runs = repeated(built, program.copies, self.target.hardware)
        # Of several copies, weights are views of the pools; what is left is called as before.
        constants |= {n: a for n, a in self._constants(program, built).items() if n in plan.buffer_by_name}
        loaded = self.device.load(plan, constants)
        try:
            return [seconds / runs for seconds in loaded.time(arrays, REPLAYS)]
        finally:
            self.close()
            self._loaded = loaded

    def outputs(self, program: TimedProgram, built: ExecutionPlan) -> list[np.ndarray]:
        """The results of one run, for the inputs and constants that all variants of a kernel are given.

        Inputs are an eighth of those that are timed, so that long sums of products stay small.
        """
        with self.device.load(built, self._constants(program, built)) as loaded:
            return loaded.run([_eighth(a) for a in _inputs(program.module)])

    def _constants(self, program: TimedProgram, plan: ExecutionPlan) -> dict[str, np.ndarray]:
        module = program.module if program.packed else with_packed_weights(program.module, self.target)
        return constants_of(plan, module.constants)

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
    with (
        TuningDatabase.open(database) as opened,
        open_device(str(target)) as device,
        closing(Measurer(target, device, opened)) as made,
    ):
        yield made


def _compiler_of(target: Target) -> str:
    """The compiler of kernel text, with its version and flags; that of OpenCL is the driver's."""
    if target.kind == "cuda":
        return " ".join(("NVRTC", nvrtc_version(), target.arch, *BASE_FLAGS))
    return " ".join((target.kind, *BUILD_OPTIONS)) if target.kind == "opencl" else target.kind


def lowered(module: Module, target: Target, *, cold: bool) -> tuple[Module, ExecutionPlan]:
    """A program at thread level and its plan, without binaries; its kernels prefetch where weights are cold.

    module: tensor level, kernels outlined, parameters chosen.
    """
    out = lower_program(module, target, cold=cold)
    sources = emit_kernels(out, target)
    return out, plan_module(out, sources, kernel_codes(sources, target), str(target))


def _built(plans: Sequence[ExecutionPlan], target: Target) -> list[ExecutionPlan]:
    """The plans with their kernels compiled, all of them together."""
    numbered = {f"{k.name}#{i}": k for i, plan in enumerate(plans) for k in plan.kernels}
    codes = compiled(numbered, target, progress=False, timed=numbered)
    out = []
    for i, plan in enumerate(plans):
        kernels = (replace(codes[f"{k.name}#{i}"], name=k.name) for k in plan.kernels)
        out.append(plan.replace(kernels=tuple(kernels)))
    return out


def _digest(plan: ExecutionPlan, copies: int) -> str:
    """SHA-256 of all that decides what is timed; names and origins do not count."""
    numbers = {b.name: i for i, b in enumerate(plan.buffers)}
    order = {k.name: i for i, k in enumerate(plan.kernels)}
    parts = [METHOD, str(RUNS), str(REPLAYS)]
    parts += [f"{copies} copies of weights, {SPREAD} of the L2"] if copies > 1 else []
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
    values = {f.name: getattr(node, f.name) for f in fields(node) if f.name not in without}
    return f"{type(node).__name__} {values}"


def _inputs(module: Module) -> list[np.ndarray]:
    types = [p.tensor for p in module.main.params]
    return [_constant_data(-1 - i, t.shape, t.dtype) for i, t in enumerate(types)]


def _eighth(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind in "biu" else (array / 8).astype(array.dtype)


def sample_of(array: np.ndarray) -> np.ndarray:
    """A part of the elements of a large array, in float64; an odd step meets all rows and columns."""
    flat = array.reshape(-1)
    return flat[:: max(1, -(-flat.size // SAMPLE)) | 1].astype(np.float64)


@lru_cache(maxsize=16)
def _constant_data(index: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    # Candidates of one kernel come one after the other and read the same weights.
    return random_array(np.random.default_rng((abs(index), index < 0)), shape, dtype)


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Standard normal numbers; integers are 0 and 1, which lie inside whatever they index."""
    stored = storage_dtype(dtype)
    if np.dtype(stored).kind in "iu":
        return rng.integers(0, 2, shape).astype(stored)
    return rng.standard_normal(shape, np.float32).astype(stored)
