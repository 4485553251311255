"""Kernels to search without a device, and stand-ins for the one that measures."""

from dataclasses import dataclass

import numpy as np
from decision_samples import parameters, template

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.runtime.null.device import NullDevice
from tilewright.tuning.database.records import Key
from tilewright.tuning.kernels.kernel_search import KernelSearch
from tilewright.tuning.kernels.search import Task
from tilewright.tuning.kernels.search_space import search_space

TARGET = resolve_target("cuda:sm_90a")


def dense_kernel(rows=64, columns=64, depth=256, dtype="f32", precision="fp32"):
    """The tensor-level contraction of a dense layer, parameters chosen by the model."""
    module = tw.parse(
        f"module @m {{ graph.func @main(%x: {dtype}[{rows}, {depth}], %w: {dtype}[{columns}, {depth}])"
        f" -> {dtype}[{rows}, {columns}] {{ %0 = graph.dense(%x, %w) : {dtype}[{rows}, {columns}]"
        " graph.return(%0) } }"
    )
    found = []
    lower(module, TARGET, precision=precision, choose=lambda m: found.append(m) or m)
    return next(f for f in found[0].funcs if template(f) in ("contract", "matrix"))


@dataclass(eq=False)
class StandInProgram:
    """What a measurer makes of a kernel: the parameters are all that tells programs apart."""

    kernel: object
    key: Key
    plan: object = None


class StandInMeasurer:
    """Times by a function of a kernel, no device; every measurement takes `takes_s` of `now`."""

    target = TARGET

    def __init__(self, seconds, *, takes_s=1.0, known=None):
        self.seconds_of, self.takes_s = seconds, takes_s
        self.device = NullDevice()
        self.measured = self.reused = 0
        self.now = 0.0
        self.asked = []
        self.times = known or {}

    def key(self, subject):
        return Key(subject, "stand-in", "1", "none")

    def program(self, kernel):
        return StandInProgram(kernel, self.key(f"{kernel.name} {parameters(kernel)}"))

    def known(self, program):
        return self.times.get(program.key)

    def build(self, programs):
        return list(programs)

    def measure(self, program, built):
        self.measured += 1
        self.now += self.takes_s
        self.asked.append(program.kernel)
        return self.times.setdefault(program.key, self.seconds_of(program.kernel))

    def clock(self):
        return self.now


def task_of(kernel, *, patience=None, occurrences=1, name=None):
    """A search of the whole space of a kernel, which is its own program."""
    space = search_space(kernel, TARGET.hardware)
    search = KernelSearch(space, occurrences=occurrences, patience=patience)
    return Task(name or kernel.name, "kernel:" + (name or kernel.name), search, lambda f: f)


def efficiencies(space, seed):
    """Seconds by parameters: each bound over a random efficiency, equal for kernels that are equal."""
    rng = np.random.default_rng(seed)
    times, best = {}, {}
    for i in range(len(space)):
        params = parameters(space.variant(i))
        least = float(space.least_s[i])
        best[params] = max(best.get(params, 0.0), least)
    for params, least in best.items():
        times[params] = least / rng.uniform(0.35, 0.95)
    return times
