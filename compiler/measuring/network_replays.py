"""Times the replay of a whole network with one choice of kernel parameters or another, in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Self

import numpy as np

from tilewright.compilation.kernel_records import KernelRecord
from tilewright.devices.targets import Target
from tilewright.ir import Func, Module
from tilewright.measuring.measurer import random_array
from tilewright.measuring.plan_swap import NetworkPlan, network_plan, with_kernels
from tilewright.measuring.stream_choice import CANDIDATES, GAIN, MAX_STREAMS, kernel_costs, work_of
from tilewright.runtime.interface.device import Device, LoadedPlan
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.streams import StreamPlan, choose_plan, plan_streams, replay_time
from tilewright.runtime.streams.assignment import with_streams

#: pairs of turns, and replays of each turn, of which the fastest counts: what disturbs only takes time
ROUNDS = 9
REPLAYS = 5

Choices = Mapping[str, int]


class NetworkTrials:
    """Plans of one module by choice, the two last ones loaded; a context that unloads them.

    module: tensor level, kernels outlined, parameters chosen. variants: per group the kernels of a point.
    Exchanging a kernel costs its lowering and a new load; the network is lowered once.
    """

    def __init__(
        self,
        module: Module,
        variants: Mapping[str, Callable[[int], tuple[Func, ...]]],
        first: Choices,
        target: Target,
        device: Device,
        *,
        streams: str = "model",
    ) -> None:
        self._variants, self._target, self._device = variants, target, device
        funcs = {f.name: f for name, point in first.items() for f in variants[name](point)}
        self._module = module.with_funcs(tuple(funcs.get(f.name, f) for f in module.funcs))
        base = network_plan(self._module, target)
        self._plans: dict[tuple[tuple[str, int], ...], NetworkPlan] = {_key(first): base}
        self._loaded: dict[tuple[tuple[str, int], ...], LoadedPlan] = {}
        self._streams = planned_streams(self._module, base.plan, target, streams)
        self._inputs = random_inputs(module)

    def pairs(self, old: Choices, new: Choices) -> tuple[list[float], list[float]]:
        """Seconds of one replay per round, with one choice and with another, in turns.

        Both stay loaded, weights they share stored once, until other choices take their places.
        """
        kept = {_key(old), _key(new)}
        for key in [k for k in self._loaded if k not in kept]:
            self._loaded.pop(key).close()
        first, second = self._load(old), self._load(new)
        for key in [k for k in self._plans if k not in kept]:
            del self._plans[key]
        return in_turns(first, second, self._inputs)

    def _load(self, choices: Choices) -> LoadedPlan:
        key = _key(choices)
        if key not in self._loaded:
            found = self._plan(choices)
            plan = with_streams(found.plan, self._streams)
            self._loaded[key] = self._device.load(plan, found.constants)
        return self._loaded[key]

    def _plan(self, choices: Choices) -> NetworkPlan:
        """The plan of some choices, made of the known plan that differs in the fewest kernels."""
        wanted = _key(choices)
        if wanted not in self._plans:
            key = min(self._plans, key=lambda k: len(set(wanted) - set(k)))
            changed = dict(set(wanted) - set(key))
            funcs = {f.name: f for name, point in changed.items() for f in self._variants[name](point)}
            self._plans[wanted] = with_kernels(self._plans[key], self._module, funcs, self._target)
        return self._plans[wanted]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            for loaded in self._loaded.values():
                stack.callback(loaded.close)
            self._loaded = {}


def in_turns(
    first: LoadedPlan, second: LoadedPlan, inputs: Sequence[np.ndarray]
) -> tuple[list[float], list[float]]:
    """Seconds of one replay per round of two plans."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for loaded, found in zip((first, second), times, strict=True):
            found.append(min(loaded.time(inputs, REPLAYS)))
    return times


def random_inputs(module: Module) -> list[np.ndarray]:
    """Random arrays for the inputs of a network."""
    rng = np.random.default_rng(0)
    types = [p.tensor for p in module.main.params]
    return [random_array(rng, t.shape, t.dtype) for t in types]


def planned_streams(module: Module, plan: ExecutionPlan, target: Target, policy: str) -> StreamPlan:
    """The streams of a network's plan by the model, or by the policy that was asked for."""
    records = [KernelRecord.of(f) for f in module.funcs if f.name != "main"]
    work, dag = work_of(plan, kernel_costs(records), target.hardware), plan.dag
    if policy not in ("model", "auto"):
        return plan_streams(dag, policy, work)
    modelled = partial(replay_time, work=work)
    return choose_plan(dag, modelled, work, CANDIDATES, max_streams=MAX_STREAMS, gain=GAIN).plan


def _key(choices: Choices) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(choices.items()))
