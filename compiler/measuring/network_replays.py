"""The replay of a whole network, timed with one choice of its kernels or another.

A plan with one kernel exchanged is lowered and compiled for that kernel alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from tilewright.compilation.kernel_builds import compiled, emit_kernels, kernel_codes
from tilewright.compilation.kernel_records import KernelRecord
from tilewright.compilation.lowering import lower_program
from tilewright.compilation.planning import constants_of, plan_module
from tilewright.devices.targets import Target
from tilewright.ir import Func, Module, Op, Ref, Value
from tilewright.measuring.measurer import random_array
from tilewright.measuring.network_validation import Choices
from tilewright.measuring.stream_choice import CANDIDATES, GAIN, MAX_STREAMS, kernel_costs, work_of
from tilewright.passes.analysis.work.weight_traffic import weights_leave_l2
from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.interface.device import Device, LoadedPlan
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import ExecutionPlan, Launch, version_for
from tilewright.runtime.streams import StreamPlan, choose_plan, plan_streams, replay_time
from tilewright.runtime.streams.assignment import with_streams

#: pairs of turns, and replays of each turn, of which the fastest counts: what disturbs only takes time
ROUNDS = 9
REPLAYS = 5


@dataclass(frozen=True, eq=False)
class NetworkPlan:
    """A plan with its kernels built, the constants it reads, and whether these exceed the device's L2."""

    plan: ExecutionPlan
    constants: Mapping[str, np.ndarray] = field(repr=False)  # and what state starts as
    cold_weights: bool = False

    def on_streams(self, streams: StreamPlan) -> NetworkPlan:
        """The plan with its launches on these streams."""
        return replace(self, plan=with_streams(self.plan, streams))


class NetworkReplays(ExitStack):
    """Replays of a network by choice, the two last ones loaded; a context that unloads them.

    plan_of: the network's plan with a choice of its kernels, with streams.
    """

    def __init__(
        self, plan_of: Callable[[Choices], NetworkPlan], device: Device, inputs: Sequence[np.ndarray]
    ) -> None:
        super().__init__()
        self._plan_of, self._device, self._inputs = plan_of, device, inputs
        self._loaded: dict[frozenset[tuple[str, int]], LoadedPlan] = {}
        self.callback(self._unload_all_but)

    def pairs(self, old: Choices, new: Choices) -> tuple[list[float], list[float]]:
        """Seconds of one replay per round, one choice and another alternating.

        Both stay loaded, weights they share stored once, until other choices take their places.
        """
        self._unload_all_but(old, new)
        plans = [self._load(choices) for choices in (old, new)]
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for loaded, seconds in zip(plans, times, strict=True):
                seconds.append(min(loaded.time(self._inputs, REPLAYS)))
        return times

    def _load(self, choices: Choices) -> LoadedPlan:
        key = frozenset(choices.items())
        if key not in self._loaded:
            made = self._plan_of(choices)
            self._loaded[key] = self._device.load(made.plan, made.constants)
        return self._loaded[key]

    def _unload_all_but(self, *needed: Choices) -> None:
        keys = {frozenset(choices.items()) for choices in needed}
        with ExitStack() as stack:
            for key in [k for k in self._loaded if k not in keys]:
                stack.callback(self._loaded.pop(key).close)


class KernelVariants:
    """Plans of a network by choice of its kernels' variants; each is made of a plan that differs in few.

    module: tensor level, kernels outlined, parameters chosen. variants: per group the kernels of a candidate.
    All plans have the streams that `policy` gives the first one.
    """

    def __init__(
        self,
        module: Module,
        variants: Mapping[str, Callable[[int], tuple[Func, ...]]],
        first: Choices,
        target: Target,
        policy: str = "model",
    ) -> None:
        self._variants, self._target = variants, target
        funcs = {f.name: f for name, point in first.items() for f in variants[name](point)}
        self._module = module.with_funcs(tuple(funcs.get(f.name, f) for f in module.funcs))
        base = network_plan(self._module, target)
        self._plans = {frozenset(first.items()): base}
        self._streams = planned_streams(self._module, base.plan, target, policy)

    def plan_of(self, choices: Choices) -> NetworkPlan:
        """The plan of some choices; it and the one it is made of are remembered."""
        key = frozenset(choices.items())
        if key not in self._plans:
            nearest = min(self._plans, key=lambda k: len(key - k))
            changed = dict(key - nearest)
            funcs = {f.name: f for name, point in changed.items() for f in self._variants[name](point)}
            made = with_kernels(self._plans[nearest], self._module, funcs, self._target)
            self._plans = {nearest: self._plans[nearest], key: made}
        return self._plans[key].on_streams(self._streams)


def random_inputs(module: Module) -> list[np.ndarray]:
    """Random arrays for the inputs of a network; its state is none of them."""
    rng = np.random.default_rng(0)
    kept = {p for p, _ in module.main.updates}
    types = [p.tensor for i, p in enumerate(module.main.params) if i not in kept]
    return [random_array(rng, t.shape, t.dtype) for t in types]


def planned_streams(module: Module, plan: ExecutionPlan, target: Target, policy: str) -> StreamPlan:
    """The streams of a network's plan by the model, or by the policy that was asked for."""
    records = [KernelRecord.of(f) for f in module.funcs if f.name != "main"]
    work, dag = work_of(plan, kernel_costs(records), target.hardware), plan.dag
    if policy not in ("model", "auto"):
        return plan_streams(dag, policy, work)
    modelled = partial(replay_time, work=work)
    return choose_plan(dag, modelled, work, CANDIDATES, max_streams=MAX_STREAMS, gain=GAIN).plan


def network_plan(module: Module, target: Target, *, cold_weights: bool | None = None) -> NetworkPlan:
    """The plan of a module at tensor level with chosen parameters, its kernels built from the cache.

    cold_weights: whether its kernels prefetch; by default where its constants exceed the L2. Launches come in
    program order. Raises as the passes and the compiler do.
    """
    cold = weights_leave_l2(module, target.hardware) if cold_weights is None else cold_weights
    thread = lower_program(module, target, cold=cold)
    sources = emit_kernels(thread, target)
    codes = compiled(kernel_codes(sources, target), target, progress=False, timed=sources)
    plan = plan_module(thread, sources, codes, str(target))
    return NetworkPlan(plan, constants_of(plan, thread.constants), cold)


def with_kernels(
    base: NetworkPlan, module: Module, variants: Mapping[str, Func], target: Target
) -> NetworkPlan:
    """The plan with other variants of some kernels, by the names they have in `module`.

    base: the plan of `module`, in program order. Weights that a variant reads in another order become other
    constants; equal ones stay the same arrays, so that a device keeps one copy. Memory is placed anew.
    """
    plan, constants = base.plan, dict(base.constants)
    for name, variant in variants.items():
        part = network_plan(_calls_of(module, variant), target, cold_weights=base.cold_weights)
        renamed = _renamed(part, constants)
        constants |= {renamed[n]: part.constants[n] for n in renamed if renamed[n] not in constants}
        buffers = {b.name: b for b in plan.buffers}
        for b in part.plan.buffers:
            if b.name in renamed:
                buffers.setdefault(renamed[b.name], replace(b, name=renamed[b.name]))
        others = iter([x for x in part.plan.launches if x.kernel == name])
        launches = tuple(
            _exchanged(x, next(others), renamed) if x.kernel == name else x for x in plan.launches
        )
        code = part.plan.kernel_by_name[name]
        kernels = tuple(code if k.name == name else k for k in plan.kernels)
        plan = plan.replace(buffers=tuple(buffers.values()), launches=launches, kernels=kernels)
    read = {a for x in plan.launches for a in x.args} | set(plan.outputs)
    used_buffers = tuple(b for b in plan.buffers if b.kind != "constant" or b.name in read)
    version = version_for(used_buffers, plan.launches)
    plan = validate(place_arena(plan.replace(buffers=used_buffers, format_version=version)))
    return NetworkPlan(plan, _constants(plan, constants), base.cold_weights)


def _calls_of(module: Module, variant: Func) -> Module:
    """The calls of one kernel, in their order; what is no constant is an input, all results are returned."""
    main = module.main
    constants = {op.result: op for op in main.body.ops if op.name == "tensor.constant"}
    inputs: list[Value] = []
    calls: list[Op] = []
    for op in main.body.ops:
        if op.get("callee") != Ref(variant.name):
            continue
        operands = []
        for v in op.operands:
            operands.append(v if v in constants else Value(v.type, f"x{len(inputs)}"))
            if v not in constants:
                inputs.append(operands[-1])
        calls.append(replace(op, operands=tuple(operands), results=tuple(Value(r.type) for r in op.results)))
    used = {v for op in calls for v in op.operands}
    used_constants = [op for v, op in constants.items() if v in used]
    results = tuple(r for op in calls for r in op.results)
    returned = Op("tensor.return", operands=results)
    body = replace(main.body, params=tuple(inputs), ops=(*used_constants, *calls, returned))
    entry = replace(main, body=body, result_types=tuple(r.type for r in results), attrs=())
    return replace(module, funcs=(variant, entry), attrs=())


def _renamed(part: NetworkPlan, constants: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The names in the network of the part's constants: their own where it means the same array."""
    out = {}
    for name, array in part.constants.items():
        new = name
        while new in constants and not _same(constants[new], array):
            new += "_"
        out[name] = new
    return out


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a is b or (a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())


def _exchanged(old: Launch, new: Launch, renamed: Mapping[str, str]) -> Launch:
    """The launch of another variant in the place of the old one, with its arguments, order and stream."""
    args = tuple(renamed.get(b, a) for a, b in zip(old.args, new.args, strict=True))
    return replace(new, args=args, deps=old.deps, stream=old.stream, origin=old.origin)


def _constants(plan: ExecutionPlan, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {b.name: np.asarray(arrays[b.name]) for b in plan.buffers if b.kind in ("constant", "state")}
