"""Seconds of small programs of outlined kernels on a device, as they take them inside a network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.codegen import KernelSource
from tilewright.ir import Builder, Constants, Level, Module, TensorType, Value
from tilewright.ir.types import storage_dtype
from tilewright.kernel_builds import build_codes, emit_kernels
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.pipelines import PACKING, stage_texts
from tilewright.planning import plan_module
from tilewright.runtime.device import Device
from tilewright.runtime.memory import place_arena
from tilewright.runtime.plan import ExecutionPlan
from tilewright.targets import Target

#: runs of a program in one timed replay: boundaries between kernels count, as they do in a network
RUNS = 10
REPLAYS = 12


class RandomConstants:
    """Constants for a program under construction, normally distributed."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self.arrays: dict[str, np.ndarray] = {}

    def constant(self, b: Builder, t: TensorType) -> Value:
        """A tensor.constant of this type."""
        name = f"constant{len(self.arrays)}"
        self.arrays[name] = _normal(self._rng, t)
        (value,) = b.emit("tensor.constant", (), {"name": name}, types=[t])
        return value

    def of(self, module: Module) -> Module:
        """The module with these constants."""
        return module.with_constants(Constants(self.arrays))


def measured_s(modules: Sequence[Module], target: Target, device: Device) -> list[float]:
    """Median seconds of one run of each program.

    modules: tensor level, kernels outlined, parameters chosen. Every program runs several times in a row, its
    launches one after the other; inputs are random.
    """
    text = f"{PACKING}, dce, {stage_texts(Level.TENSOR, target.language)['thread']}"
    context = PassContext(target=str(target), hardware=target.hardware)
    lowered = [run_pipeline(m, Pipeline.parse(text), context) for m in modules]
    sources = [emit_kernels(m, target) for m in lowered]
    plans = _plans(lowered, sources, target)
    return [_seconds(_repeated(p), m, device) for p, m in zip(plans, lowered, strict=True)]


def _plans(
    modules: Sequence[Module], sources: Sequence[dict[str, KernelSource]], target: Target
) -> list[ExecutionPlan]:
    """A plan per program; the kernels of all of them are built together."""
    named = {(i, name): s for i, group in enumerate(sources) for name, s in group.items()}
    labels = {key: f"{key[1]}#{key[0]}" for key in named}
    codes = build_codes({labels[key]: s for key, s in named.items()}, target, progress=False)
    out = []
    for i, (module, group) in enumerate(zip(modules, sources, strict=True)):
        own = {name: replace(codes[labels[i, name]], name=name) for name in group}
        out.append(plan_module(module, group, own, str(target)))
    return out


def _repeated(plan: ExecutionPlan) -> ExecutionPlan:
    """The same launches several times, each one after the one before it."""
    launches = plan.launches * RUNS
    chain = tuple(replace(x, deps=(i - 1,) if i else ()) for i, x in enumerate(launches))
    return place_arena(plan.replace(launches=chain)).validate()


def _seconds(plan: ExecutionPlan, module: Module, device: Device) -> float:
    rng = np.random.default_rng(1)
    arrays = [_normal(rng, p.tensor) for p in module.main.params]
    names = {b.name for b in plan.buffers if b.kind == "constant"}
    constants = {n: a for n, a in module.constants.items() if n in names}
    with device.load(plan, constants) as loaded:
        return float(np.median(loaded.time(arrays, REPLAYS))) / RUNS


def _normal(rng: np.random.Generator, t: TensorType) -> np.ndarray:
    return rng.standard_normal(t.shape, np.float32).astype(storage_dtype(t.dtype))
