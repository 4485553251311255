"""Facts that the report shows, collected from an executable: kernels, launches, choices, work and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import dedent
from typing import Any

import numpy as np

from tilewright.compilation.kernel_records import KernelRecord, plain
from tilewright.costmodel import CpuHardware, Hardware, fill_from_machine, load_hardware
from tilewright.costmodel.hardware.calibration import with_constants
from tilewright.costmodel.hardware.description import SHIPPED
from tilewright.costmodel.kernels.bound import LAUNCH, PEAK
from tilewright.ir import AttrRecord, Func, InputError, Module, Op, UnsupportedError, show_func
from tilewright.measuring.stream_choice import kernel_costs, work_of
from tilewright.passes.analysis.work.operator_work import kernel_operations
from tilewright.passes.kernels.decision import (
    KernelDecision,
    chosen_for,
    decision_of,
    has_parameters,
    with_decision,
)
from tilewright.passes.kernels.kernel_problem import traffic
from tilewright.passes.kernels.registry import template_of
from tilewright.profiling.profile import Profile, modelled_profile
from tilewright.running.checking import random_inputs
from tilewright.running.executable import LEVELS, Executable
from tilewright.runtime.errors import DeviceMissingError
from tilewright.runtime.plan.execution_plan import ExecutionPlan, KernelResources
from tilewright.tools.data_movement.kernel_rows import MovementRow, movement_row
from tilewright.tools.report.fused_ops import FusedOps, locations_in
from tilewright.tools.report.operator_class import class_of, op_title, ops_by_location
from tilewright.tools.report.saved_facts import check_saved


@dataclass(frozen=True)
class KernelFacts:
    """One compiled kernel. Times are seconds of one launch; `seconds` is their mean over its launches.

    bound_s: the least that such a launch takes: of a measured one wherever its data was, of a modelled one
    with its data in DRAM. dram_bound_s, limit: the latter, and what sets it.
    """

    name: str
    operator_class: str
    template: str
    calls: int
    seconds: float
    estimate_s: float
    bound_s: float
    dram_bound_s: float
    limit: str
    operations: int
    bytes: int
    movement: MovementRow
    grid: tuple[int, ...]
    block: int
    params: dict[str, Any]
    considered: int
    candidates: tuple[Candidate, ...]
    resources: KernelResources | None
    tensor_ir: str
    thread_ir: str
    source: str

    @property
    def total_s(self) -> float:
        """Seconds of all its launches."""
        return self.calls * self.seconds


@dataclass(frozen=True)
class LaunchFacts:
    """One launch: the position of its kernel in `ReportFacts.kernels`, the ops it computes, its seconds."""

    kernel: int
    ops: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class ReportFacts:
    """Everything on the page. `kernels` are ordered by time, longest first; `launches` as the plan has them.

    replay: one recorded replay of the network, or what the model says of it.
    convolutions: the algorithms that competed, equal convolutions once (see `Executable.report`).
    exact_ops: the ops of each launch are its own; else those of the first launch of the same kernel.
    passes: what the user brought into the compilation, as `graph: merge-relus`.
    """

    network: str
    target: str
    hardware: Hardware
    precision: str
    chosen_by: str
    timing: LaunchTimes
    replay: Profile
    kernels: tuple[KernelFacts, ...]
    launches: tuple[LaunchFacts, ...]
    plan: ExecutionPlan
    exact_ops: bool
    convolutions: tuple[dict[str, Any], ...] = ()
    passes: tuple[str, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Operator classes, the one that takes longest first."""
        return tuple(self.class_seconds())

    def class_seconds(self) -> dict[str, float]:
        """Seconds by operator class, longest first."""
        sums: dict[str, float] = {}
        for k in self.kernels:
            sums[k.operator_class] = sums.get(k.operator_class, 0.0) + k.total_s
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


def collect(
    exe: Executable, network: str, *, fused: FusedOps | None = None, repeats: int = 5, seed: int = 0
) -> ReportFacts:
    """Everything the page shows of a compiled or loaded executable; times it where its device is present.

    network: the name to show. fused: the instrument that watched the compilation; a loaded executable has
    none. repeats: timed runs; 0 takes the model's times. Raises WorkError where the device fails, InputError
    where a loaded one says odd things of itself.
    """
    return _Collector(exe, fused).collect(network, repeats, seed)


class _Collector:
    def __init__(self, exe: Executable, fused: FusedOps | None) -> None:
        self.exe, self.plan = exe, exe.plan
        self.report = exe.report()
        check_saved(self.report, self.plan)
        self.hardware = hardware_of(self.report)
        graph, tensor, thread = map(exe.artifact.module, LEVELS)
        self.tensor = _kernels(tensor, "tensor", self.plan)
        self.thread = _kernels(thread, "thread", self.plan)
        self.graph_ops = ops_by_location(graph)
        self.found = fused.of_launches(self.plan) if fused is not None else None

    def collect(self, network: str, repeats: int, seed: int) -> ReportFacts:
        facts = {k["name"]: k for k in self.report["kernels"]}
        costs = {name: self.cost(name, k["cost"]) for name, k in facts.items()}
        estimates = [costs[launch.kernel]["estimate_s"] for launch in self.plan.launches]
        timing = timing_of(self.exe, estimates, repeats=repeats, seed=seed)
        kernels = [
            self.kernel(name, facts[name], costs[name], timing) for name in dict.fromkeys(self.launched())
        ]
        kernels.sort(key=lambda k: -k.total_s)
        position = {k.name: i for i, k in enumerate(kernels)}
        launches = tuple(
            LaunchFacts(position[launch.kernel], self.titles(self.locations(i)), timing.launches_s[i])
            for i, launch in enumerate(self.plan.launches)
        )
        return ReportFacts(
            network=network,
            target=self.exe.target,
            hardware=self.hardware,
            precision=str(self.report.get("precision", "fp32")),
            chosen_by=str(self.report.get("chosen_by", "model")),
            timing=timing,
            replay=timing.profile or self.modelled_replay(),
            kernels=tuple(kernels),
            launches=launches,
            plan=self.plan,
            exact_ops=self.found is not None,
            convolutions=tuple(self.report.get("convolutions", ())),
            passes=tuple(f"{level}: {text}" for level, text in dict(self.report.get("passes", {})).items()),
        )

    def modelled_replay(self) -> Profile:
        """Launches of the plan by the model's times."""
        work = work_of(self.plan, kernel_costs(map(KernelRecord.read, self.report["kernels"])), self.hardware)
        return modelled_profile(self.plan, work, self.hardware.name)

    def launched(self) -> list[str]:
        return [launch.kernel for launch in self.plan.launches]

    def locations(self, launch: int) -> tuple[str, ...]:
        if self.found is not None:
            return self.found[launch]
        return locations_in(self.tensor[self.plan.launches[launch].kernel])

    def titles(self, locations: Sequence[str]) -> tuple[str, ...]:
        return tuple(op_title(at, self.graph_ops.get(at, ())) for at in locations)

    def cost(self, name: str, modelled: dict[str, Any] | None) -> dict[str, Any]:
        """The model's cost of a kernel; the plain roofline where its parameters were given by hand."""
        if modelled is not None:
            return modelled
        kernel, hardware = self.tensor[name], self.hardware
        seconds = {
            PEAK: kernel_operations(kernel) / hardware.peak_flops_per_s,
            "GM": kernel_bytes(kernel) / hardware.dram_bytes_per_s,
            LAUNCH: hardware.launch_floor_s,
        }
        limit = max(seconds, key=seconds.__getitem__)
        return {"estimate_s": seconds[limit], "bound_s": seconds[limit], "limit": limit, "considered": 1}

    def kernel(self, name: str, k: dict[str, Any], cost: dict[str, Any], timing: LaunchTimes) -> KernelFacts:
        tensor, code = self.tensor[name], self.plan.kernel_by_name[name]
        mine = [s for n, s in zip(self.launched(), timing.launches_s, strict=True) if n == name]
        operations = kernel_operations(tensor)
        ops: list[Op] = [op for at in locations_in(tensor) for op in self.graph_ops.get(at, ())]
        warm = cost.get("warm_bound_s")  # records of older compilations have none
        return KernelFacts(
            name=name,
            operator_class=class_of(tensor, ops, operations),
            template=str(KernelRecord.read(k).template),
            calls=len(mine),
            seconds=sum(mine) / len(mine),
            estimate_s=cost["estimate_s"],
            bound_s=warm if timing.measured and warm is not None else cost["bound_s"],
            dram_bound_s=cost["bound_s"],
            limit=cost["limit"],
            operations=operations,
            bytes=kernel_bytes(tensor),
            movement=movement_row(
                tensor,
                self.thread[name],
                KernelRecord.read({**k, "cost": cost}),
                self.hardware,
                calls=len(mine),
                seconds=sum(mine) / len(mine) if timing.measured else None,
            ),
            grid=tuple(k["grid"]),
            block=k["block"],
            params=k["params"] or {},
            considered=cost["considered"],
            candidates=candidates_of(tensor, self.hardware),
            resources=code.resources,
            tensor_ir=_text(tensor),
            thread_ir=_text(self.thread[name]),
            source=code.source,
        )


def _kernels(module: Module, name: str, plan: ExecutionPlan) -> dict[str, Func]:
    """The kernels at one level; raises InputError where one that is launched is not among them."""
    kernels = {f.name: f for f in module.funcs if f.name != "main"}
    if missing := sorted({launch.kernel for launch in plan.launches} - kernels.keys()):
        raise InputError(f"expected every kernel in the text {name!r}, {missing[0]!r:.80} is missing")
    return kernels


def _text(f: Func) -> str:
    """A kernel's IR without origins and without what the page shows in tables."""
    if has_parameters(f):
        f = with_decision(f, cost=None, measured_s=None, candidates=())
    return dedent(show_func(f, locations=False))


def hardware_of(report: Mapping[str, Any]) -> Hardware:
    """The record the compilation used, with what was measured; a CPU's with the cores of this machine."""
    try:
        record = load_hardware(str(report["hardware"]))
    except InputError as e:
        raise InputError(f"the executable was made for a device that has no record here: {e}") from e
    if isinstance(record, CpuHardware):
        record = fill_from_machine(record)
    record = replace(record, stands_for=str(report.get("hardware_stands_for", "")))
    constants = report.get("hardware_constants", {})
    if not isinstance(constants, dict):
        raise InputError(f"expected the calibrated constants of the executable, got {constants!r:.80}")
    return with_constants(record, constants, str(report.get("hardware_origin", SHIPPED)))


def kernel_bytes(kernel: Func) -> int:
    """Compulsory traffic: what the kernel's reads reach of its parameters, and its results."""
    return traffic(kernel)


#: likeliest points by the model that the page shows beside the chosen one
SHOWN = 8


@dataclass(frozen=True)
class Candidate:
    """Parameters with the model's and, where it was measured, the device's seconds of one launch."""

    params: dict[str, Any]
    estimate_s: float
    measured_s: float | None
    chosen: bool


def candidates_of(kernel: Func, hardware: Hardware) -> tuple[Candidate, ...]:
    """The candidates of a tensor-level kernel, fastest first; empty where the model had nothing to rank."""
    decision, template = decision_of(kernel), template_of(kernel)
    if decision is None or template is None:
        return ()
    if decision.candidates:
        rows = [_row(decision, c.parameters, c.estimate_s, c.measured_s) for c in decision.candidates]
    elif template.contraction is None or template.contraction.candidates is None or decision.cost is None:
        return ()
    else:
        found = map(chosen_for, template.contraction.candidates(kernel, hardware, SHOWN))
        rows = [
            _row(decision, d.parameters, d.cost.estimate_s, None) for d in found if d.parameters and d.cost
        ]
    return tuple(sorted(rows, key=lambda c: c.estimate_s if c.measured_s is None else c.measured_s))


def _row(
    decision: KernelDecision, parameters: AttrRecord, estimate_s: float, measured_s: float | None
) -> Candidate:
    chosen = parameters == decision.parameters
    return Candidate(plain(parameters.pairs()), estimate_s, measured_s, chosen)


#: targets whose clock says something about the device they stand for
TIMED = ("cuda", "opencl")


#: replays that are recorded at least; the one of median length is shown
RECORDED = 5


@dataclass(frozen=True)
class LaunchTimes:
    """Seconds per launch in plan order; `network_s` is the median of whole runs, None where not measured.

    source: `measured` or `modelled`. where: the device, or why nothing was measured. profile: a recorded
    replay; None where there is none, which `unrecorded` gives the reason for.
    """

    source: str
    where: str
    launches_s: tuple[float, ...]
    network_s: float | None = None
    profile: Profile | None = None
    unrecorded: str = ""

    @property
    def measured(self) -> bool:
        """Return whether a device was timed."""
        return self.source == "measured"


def timing_of(exe: Executable, estimates_s: Sequence[float], *, repeats: int, seed: int = 0) -> LaunchTimes:
    """Time an executable on random inputs, `repeats` times each; 0 repeats, or no device, give the estimates.

    estimates_s: the model's seconds of every launch. Raises WorkError where the device is there but fails.
    """
    modelled = tuple(estimates_s)
    kind = exe.target.partition(":")[0]
    if repeats == 0:
        return LaunchTimes("modelled", "not measured, as asked", modelled)
    if kind not in TIMED:
        return LaunchTimes("modelled", f"the {kind} target has no device to time", modelled)
    try:
        exe.load()
    except DeviceMissingError:
        return LaunchTimes("modelled", f"no device for {exe.target} on this machine", modelled)
    inputs = random_inputs(exe.input_names, exe.input_types, seed)
    network_s = float(np.median(exe.time(*inputs, repeats=repeats)))
    rows = exe.time_kernels(*inputs, repeats=repeats)
    timing = LaunchTimes("measured", exe.device, tuple(s for _, s in rows), network_s)
    try:
        profile = exe.profile(*inputs, repeats=max(repeats, RECORDED), compare_serial=True)
    except UnsupportedError as e:
        return replace(timing, unrecorded=str(e))
    return replace(timing, profile=profile)
