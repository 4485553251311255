"""Ways to divide a training step over a few devices, and what each takes by the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from tilewright.cluster.planning.op_seconds import OpSeconds, with_batch
from tilewright.cluster.planning.parallel_plan import ParallelPlan
from tilewright.cluster.planning.prediction import RankTimes, predict
from tilewright.cluster.planning.search import RequestedShape
from tilewright.compilation.lowering import training_step
from tilewright.compilation.option_values import LEAST_WEIGHT_BYTES, Precision
from tilewright.costmodel import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.costmodel.links import Link
from tilewright.distributed.compilation import rank_module
from tilewright.ir import InputError, Module, TilewrightError, WorkError
from tilewright.ir.modules.divisions import divisions_of
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.pipelines import GRAPH, PRECISIONS
from tilewright.training.optim import Optimizer
from tilewright.training.step import train_step

StepMode = Literal["batch", "weights", "pipeline"]
#: micro-batches of a pipeline that are tried without being asked for: at most so many times the stages
MOST_PER_STAGE = 4
#: the share of its peak that a device reaches in a training step, where none was measured: Narayanan et al.
#: 2021 (Efficient Large-Scale Language Model Training, table 1) report 44 to 52 %
EXPECTED_EFFICIENCY = 0.45


@dataclass(frozen=True)
class StepSize:
    """The kernels of a way: samples that they compute at once, and runs that make one update."""

    samples: int
    runs: int = 1


@dataclass(frozen=True)
class TrainingTask:
    """A network (graph level, the batch in front of its first input), and how it is trained."""

    network: Module
    name: str
    loss: str
    optimizer: Optimizer
    precision: Precision

    @cached_property
    def batch(self) -> int:
        """Samples of one update."""
        shapes = [t.shape for t in self.network.input_types]
        if not shapes or not shapes[0]:
            raise InputError(f"expected a network whose first input has a batch in front, got {self.name}")
        return shapes[0][0]

    def step(self, size: StepSize) -> Module:
        """The training step of kernels of this size."""
        network = self.network if size.samples == self.batch else with_batch(self.network, size.samples)
        return train_step(network, self.loss, self.optimizer, accumulate=size.runs)

    def graph(self, size: StepSize) -> Module:
        """The step after the passes that come before it is divided."""
        step = training_step(self.step(size), self.precision, PassContext())
        narrowed = PRECISIONS[self.precision].get("graph", Pipeline())
        return run_pipeline(step, GRAPH + narrowed, PassContext())


@dataclass(frozen=True)
class DivisionRates:
    """The rates by which messages of a divided step are joined and placed: of a device, and of its link."""

    flops_per_s: float
    link: Link

    @staticmethod
    def of(cluster: Cluster, precision: str) -> DivisionRates:
        """Those of a record."""
        return DivisionRates(cluster.device.flops_per_s(precision), cluster.intra)

    @staticmethod
    def expected(hardware: Hardware, precision: str, devices: int, link: Link) -> DivisionRates:
        """What can be said before a step was measured: `EXPECTED_EFFICIENCY` of the peak of its products.

        Devices that are CPUs are the shares of one.
        """
        peak = hardware.peak_flops_per_s / (devices if isinstance(hardware, CpuHardware) else 1)
        if isinstance(hardware, GpuHardware) and precision in ("fp16", "bf16", "tf32"):
            narrow = precision != "tf32"
            fma = (
                hardware.tensor_fma_16bit_per_sm_per_clk
                if narrow
                else hardware.tensor_fma_tf32_per_sm_per_clk
            )
            peak = max(peak, 2.0 * fma * hardware.sm_count * hardware.clock_hz)
        return DivisionRates(EXPECTED_EFFICIENCY * peak, link)


@dataclass(frozen=True)
class StepWay:
    """One way to divide a step over all devices.

    batch: each has its samples; with `zero` 1 also its part of the optimizer's state (ZeRO-1). weights: its
    part of every large weight. pipeline: its layers, which `micro_batches` parts of the batch pass.
    """

    mode: StepMode
    devices: int
    micro_batches: int = 1
    zero: int = 0

    @property
    def division(self) -> ParallelPlan:
        """The places of ranks; the cuts of a pipeline are those of the pass split-pipeline."""
        n = self.devices
        if self.mode == "pipeline":
            return ParallelPlan(p=n, micro_batches=self.micro_batches, cuts=tuple(range(1, n)))
        return ParallelPlan(dp=n) if self.mode == "batch" else ParallelPlan(tp=n)

    @property
    def row(self) -> dict[str, Any]:
        """The numbers by which it is known."""
        d = self.division
        shape = {"dp": d.dp, "wp": d.tp, "p": d.p, "micro_batches": self.micro_batches, "zero": self.zero}
        return {"mode": self.mode, **shape}

    @property
    def text(self) -> str:
        """In words."""
        return f"{self.division.text}, ZeRO-1" if self.zero else self.division.text

    def size(self, batch: int) -> StepSize:
        """The size of its kernels."""
        if self.mode == "pipeline":
            return StepSize(batch // self.micro_batches, self.micro_batches)
        return StepSize(batch // self.devices if self.mode == "batch" else batch)

    def options(self, rates: DivisionRates, least_bytes: int) -> str:
        """The options of the pass that divides; least_bytes: smaller parameters stay whole."""
        link = rates.link
        shared = [f"tflops={rates.flops_per_s / 1e12:.6g}", f"link_gbs={link.bytes_per_s / 1e9:.6g}"]
        if self.mode == "pipeline":
            return ", ".join([f"micro_batches={self.micro_batches}", *shared])
        own = [f"zero={self.zero}"] if self.mode == "batch" else []
        own += [f"min_bytes={least_bytes}"]
        return ", ".join([*own, *shared, f"latency_us={1e6 * (link.latency_s + link.call_s):.6g}"])


def ways_of(devices: int, batch: int, wanted: RequestedShape, zero: int | None = None) -> list[StepWay]:
    """The ways that have the numbers asked for. Raises InputError where there is none.

    Pipelines have 2 to `MOST_PER_STAGE` x stages micro-batches, or as many as are asked for.
    """
    out = [StepWay("batch", devices, zero=z) for z in (0, 1) if zero in (None, z)]
    if not zero:
        most = wanted.micro_batches or MOST_PER_STAGE * devices
        counts = [m for m in range(1, min(batch, most) + 1) if batch % m == 0]
        out.append(StepWay("weights", devices))
        out += [StepWay("pipeline", devices, m) for m in counts if m > 1 or wanted.micro_batches == 1]
    fitting = [way for way in out if wanted.takes(way.row)]
    if not fitting:
        raise InputError(
            f"expected numbers of one of the ways to divide a step of {batch} samples over {devices} devices "
            f"(dp, wp or p is {devices}, micro-batches of a pipeline divide the batch), got "
            f"dp {wanted.dp}, wp {wanted.tp}, p {wanted.p}, {wanted.micro_batches} micro-batches"
        )
    return fitting


@dataclass(frozen=True)
class PricedWay:
    """A way with the predicted times of its ranks, or why it cannot be executed.

    state_bytes: of the rank that has most of it. measured: whether kernels of its size were measured.
    """

    way: StepWay
    ranks: tuple[RankTimes, ...]
    state_bytes: int
    measured: bool
    why: str = ""

    @property
    def division(self) -> ParallelPlan:
        """The places of ranks."""
        return self.way.division

    @property
    def predicted_s(self) -> float:
        """Seconds of one update on the slowest rank; infinite where it cannot be executed."""
        return max((r.total_s for r in self.ranks), default=float("inf"))


@dataclass
class StepSearch:
    """The ways to divide a task, priced by seconds of ops that are known for some sizes of kernels.

    known: seconds by size; that of the whole batch stands for sizes that are not known, in proportion to the
    work of each op. least_bytes: smaller parameters stay whole. rates: by which steps are divided, those of
    the cluster where none are given.
    """

    task: TrainingTask
    cluster: Cluster
    ways: Sequence[StepWay]
    known: dict[StepSize, OpSeconds]
    measures: bool
    least_bytes: int = LEAST_WEIGHT_BYTES
    rates: DivisionRates | None = None
    _parts: dict[StepWay, list[Module] | str] = field(default_factory=dict)

    def priced(self, way: StepWay) -> PricedWay:
        """One way: the modules of its ranks are made once."""
        size = way.size(self.task.batch)
        if way not in self._parts:
            self._parts[way] = self._made(way, size)
        parts = self._parts[way]
        measured = size in self.known and self.measures
        if isinstance(parts, str):
            return PricedWay(way, (), 0, measured, parts)
        state_bytes = max(sum(p.main.params[i].tensor.nbytes for i, _ in p.main.updates) for p in parts)
        room = self.cluster.device.memory_bytes
        if state_bytes > room:
            why = f"{state_bytes} bytes of state do not fit into the {room:.0f} of a device"
            return PricedWay(way, (), state_bytes, measured, why)
        seconds = self.known.get(size) or self.known[StepSize(self.task.batch)]
        try:
            ranks = predict([p.main for p in parts], way.division, seconds, self.cluster.intra)
        except WorkError as error:
            return PricedWay(way, (), state_bytes, measured, str(error))
        return PricedWay(way, tuple(ranks), state_bytes, measured)

    def _made(self, way: StepWay, size: StepSize) -> list[Module] | str:
        batch, precision = self.task.batch, self.task.precision
        if way.mode == "batch" and batch % way.devices:
            return f"{way.devices} devices do not share a batch of {batch} evenly"
        step = self.task.step(StepSize(batch) if way.mode == "batch" else size)
        options = way.options(self.rates or DivisionRates.of(self.cluster, precision), self.least_bytes)
        try:
            ranks = range(way.devices)
            parts = [rank_module(step, way.mode, way.devices, r, options, precision) for r in ranks]
        except TilewrightError as error:
            return str(error)
        if (way.zero or way.mode == "weights") and divisions_of(parts[0]).keys().isdisjoint(step.state_names):
            return (
                f"expected a parameter of at least {self.least_bytes} bytes that {way.devices} devices can "
                "share, got none"
            )
        return parts

    def best(
        self,
        share: Callable[[Mapping[int, PricedWay]], list[PricedWay]],
        own: Sequence[int],
        measure: Callable[[StepSize], OpSeconds] | None,
        most_sizes: int,
    ) -> tuple[PricedWay, list[PricedWay]]:
        """The fastest way, and all of them as they are priced.

        own: the ways that this rank prices; share: what all ranks priced. measure: seconds of kernels of a
        size, asked as long as the fastest way rests on none, at most `most_sizes` times; then the fastest of
        those that do is the plan.
        Raises WorkError with the first reason where no way can be executed.
        """
        for left in range(most_sizes if measure is not None else 0, -1, -1):
            found = share({i: self.priced(self.ways[i]) for i in own})
            best = min(found, key=lambda p: p.predicted_s)
            if not best.ranks:
                raise WorkError(f"no division of this step of {self.task.name} can be executed: {best.why}")
            if best.measured or measure is None:
                break
            if left:
                size = best.way.size(self.task.batch)
                self.known[size] = measure(size)
        sure = [p for p in found if p.measured and p.ranks]
        return min(sure, key=lambda p: p.predicted_s, default=best), found
