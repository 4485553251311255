"""What the report shows, collected from an executable: kernels, launches, choices, work and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import dedent
from typing import Any

from tilewright.compilation.kernel_records import KernelRecord
from tilewright.costmodel import CpuHardware, Hardware, fill_from_machine, load_hardware
from tilewright.costmodel.hardware.calibration import with_constants
from tilewright.costmodel.hardware.description import SHIPPED
from tilewright.costmodel.kernels.bound import LAUNCH, PEAK
from tilewright.ir import Func, InputError, Module, Op, show_func
from tilewright.measuring.stream_choice import kernel_costs, work_of
from tilewright.profiling.modelled_profile import modelled_profile
from tilewright.profiling.profile import Profile
from tilewright.running.executable import LEVELS, Executable
from tilewright.runtime.plan.execution_plan import ExecutionPlan, KernelResources
from tilewright.tools.report.candidates import Candidate, candidates_of
from tilewright.tools.report.fused_ops import FusedOps, locations_in
from tilewright.tools.report.kernel_work import kernel_bytes, kernel_operations
from tilewright.tools.report.operator_class import class_of, op_title, ops_by_location
from tilewright.tools.report.saved_facts import check_saved
from tilewright.tools.report.timing import Timing, timing_of


@dataclass(frozen=True)
class KernelFacts:
    """One compiled kernel. Times are seconds of one launch; `seconds` is their mean over its launches."""

    name: str
    operator_class: str
    skeleton: str
    calls: int
    seconds: float
    estimate_s: float
    bound_s: float
    limit: str
    operations: int
    bytes: int
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
    """One launch: the position of its kernel in `Facts.kernels`, the ops it computes, its seconds."""

    kernel: int
    ops: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Facts:
    """Everything on the page. `kernels` are ordered by time, longest first; `launches` as the plan has them.

    replay: one recorded replay of the network, or what the model says of it.
    convolutions: the algorithms that competed, alike convolutions once (see `Executable.report`).
    exact_ops: the ops of each launch are its own; else those of the first launch of the same kernel.
    passes: what the user brought into the compilation, as `graph: merge-relus`.
    """

    network: str
    target: str
    hardware: Hardware
    precision: str
    chosen_by: str
    timing: Timing
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
) -> Facts:
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
        self.hardware = _hardware(self.report)
        graph, tensor, thread = map(exe.artifact.module, LEVELS)
        self.tensor = _kernels(tensor, "tensor", self.plan)
        self.thread = _kernels(thread, "thread", self.plan)
        self.graph_ops = ops_by_location(graph)
        self.found = fused.of_launches(self.plan) if fused is not None else None

    def collect(self, network: str, repeats: int, seed: int) -> Facts:
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
        return Facts(
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

    def cost(self, name: str, given: dict[str, Any] | None) -> dict[str, Any]:
        """What the model said of a kernel; the plain roofline where its parameters were given by hand."""
        if given is not None:
            return given
        kernel, hardware = self.tensor[name], self.hardware
        seconds = {
            PEAK: kernel_operations(kernel) / hardware.peak_flops_per_s,
            "GM": kernel_bytes(kernel) / hardware.dram_bytes_per_s,
            LAUNCH: hardware.launch_floor_s,
        }
        limit = max(seconds, key=seconds.__getitem__)
        return {"estimate_s": seconds[limit], "bound_s": seconds[limit], "limit": limit, "considered": 1}

    def kernel(self, name: str, k: dict[str, Any], cost: dict[str, Any], timing: Timing) -> KernelFacts:
        tensor, code = self.tensor[name], self.plan.kernel_by_name[name]
        mine = [s for n, s in zip(self.launched(), timing.launches_s, strict=True) if n == name]
        operations = kernel_operations(tensor)
        ops: list[Op] = [op for at in locations_in(tensor) for op in self.graph_ops.get(at, ())]
        return KernelFacts(
            name=name,
            operator_class=class_of(tensor, ops, operations),
            skeleton=str(k["skeleton"]),
            calls=len(mine),
            seconds=sum(mine) / len(mine),
            estimate_s=cost["estimate_s"],
            bound_s=cost["bound_s"],
            limit=cost["limit"],
            operations=operations,
            bytes=kernel_bytes(tensor),
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
    found = {f.name: f for f in module.funcs if f.name != "main"}
    if missing := sorted({launch.kernel for launch in plan.launches} - found.keys()):
        raise InputError(f"expected every kernel in the text {name!r}, {missing[0]!r:.80} is missing")
    return found


def _text(f: Func) -> str:
    """A kernel's IR without origins and without what the page shows in tables."""
    attrs = tuple((k, v) for k, v in f.attrs if k not in ("candidates", "cost", "measured_s"))
    return dedent(show_func(replace(f, attrs=attrs), locations=False))


def _hardware(report: Mapping[str, Any]) -> Hardware:
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
