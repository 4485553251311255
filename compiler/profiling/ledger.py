"""`Ledger`: where the time of every launch of a replay goes, and what each remedy could save of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from tilewright.codegen.emit.phases import phase_marks
from tilewright.codegen.emit.stamps import DATA, END, LOOP, START
from tilewright.compilation.kernel_records import KernelRecord
from tilewright.costmodel import GpuHardware, Hardware
from tilewright.devices.targets import Target
from tilewright.ir import Func, InputError, Level, Module, Ref, UnsupportedError
from tilewright.ir.thread.launch_ops import releases_dependents, waits_for_launches
from tilewright.passes.analysis.work.weight_traffic import RESIDENT_SHARE, WeightBytes, weight_bytes
from tilewright.profiling.kernel_times import Subject, TellsLaunchSpans, profile_loaded
from tilewright.profiling.replay_record import Clock, LaunchSpan
from tilewright.profiling.stamps import Stamps, launch_spans, span_ns, stamped_plan
from tilewright.profiling.timeline import Timeline
from tilewright.runtime.plan.arrays import check_repeats
from tilewright.runtime.plan.execution_plan import starts_early

NANOSECOND = 1e-9


@dataclass(frozen=True)
class Remedies:
    """What each remedy could save of a launch at most, in seconds; they overlap, so they do not add up.

    relay: its weights are in shared memory when its predecessor ends, as far as half of all shared memory
    holds them. edges: it starts as soon after its predecessor as an empty kernel. splits: as many blocks as
    multiprocessors share its work up to the end of its main loop, for one more launch.
    """

    relay_s: float
    edges_s: float
    splits_s: float


@dataclass(frozen=True)
class LedgerRow:
    """One launch, in seconds; None where nothing tells.

    boundary_s: from the last end of what it waits for to its first instruction behind the wait. seconds: from
    there to its last block's end. The parts of that follow the block that ends last: spread_s until it
    starts, first_load_s until its first data are there, loop_s to the end of its main loop, tail_s to its
    end. weights: bytes of its constants, and of those that it asks for only after its wait. early: the
    launch before it releases it, so that its blocks have places and wait before that one ends.
    """

    index: int
    kernel: str
    blocks: int
    boundary_s: float
    seconds: float
    spread_s: float | None = None
    first_load_s: float | None = None
    loop_s: float | None = None
    tail_s: float | None = None
    weights: WeightBytes | None = None
    remedies: Remedies | None = None
    early: bool = False

    @property
    def undivided_s(self) -> float:
        """Seconds that no part is known of."""
        parts = (self.spread_s, self.first_load_s, self.loop_s, self.tail_s)
        return max(0.0, self.seconds - sum(p for p in parts if p is not None))

    def facts(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "undivided_s": self.undivided_s}


PARTS = ("boundary_s", "spread_s", "first_load_s", "loop_s", "tail_s", "undivided_s")


@dataclass(frozen=True)
class Ledger:
    """The launches of one replay in the order of the plan.

    clock: what the times come from. replay_s: one replay of the plan as it is. idle_s: seconds of it in which
    no launch runs.
    """

    target: str
    device: str
    clock: Clock
    replay_s: float
    idle_s: float
    rows: tuple[LedgerRow, ...]

    def totals(self) -> dict[str, float]:
        """Sums over all launches of the parts that are known of any; those of launches that run side by
        side exceed the replay."""
        parts = {part: [getattr(r, part) for r in self.rows] for part in PARTS}
        told = {part: [s for s in values if s is not None] for part, values in parts.items()}
        return {part: sum(values) for part, values in told.items() if values}

    def worth(self) -> dict[str, float]:
        """Sums of what each remedy could save at most; empty where none is known."""
        known = [r.remedies for r in self.rows if r.remedies is not None]
        names = ("relay_s", "edges_s", "splits_s") if known else ()
        return {name: sum(getattr(k, name) for k in known) for name in names}

    def facts(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "target": self.target,
            "device": self.device,
            "clock": self.clock,
            "measured": _MEASURED[self.clock],
            "launches": len(self.rows),
            "early_launches": sum(r.early for r in self.rows),
            "replay_s": self.replay_s,
            "idle_s": self.idle_s,
            "totals": self.totals(),
            "weight_bytes": sum(r.weights.total for r in self.rows if r.weights),
            "exposed_weight_bytes": sum(r.weights.exposed for r in self.rows if r.weights),
            "worth_at_most": self.worth(),
            "rows": [r.facts() for r in self.rows],
        }

    def __str__(self) -> str:
        return "\n".join((*self._head(), "", *self._table()))

    def _head(self) -> Iterable[str]:
        early = sum(r.early for r in self.rows)
        yield f"{self.device} ({self.target}): {len(self.rows)} launches, {early} start early"
        yield _MEASURED[self.clock]
        yield f"one replay {_us(self.replay_s)} us, no kernel runs in {_us(self.idle_s)} us of it"
        parts = ", ".join(f"{_words(name)} {_us(s)}" for name, s in self.totals().items())
        yield f"sums in us: {parts}"
        weights = [r.weights for r in self.rows if r.weights]
        if any(w.total for w in weights):
            late, total = sum(w.exposed for w in weights), sum(w.total for w in weights)
            yield f"weights: {total / 1e6:.2f} MB, {late / 1e6:.2f} MB of them asked for only after the wait"
        if worth := self.worth():
            parts = ", ".join(f"{_words(name)} {_us(s)}" for name, s in worth.items())
            yield f"could save at most, in us (they overlap): {parts}"

    def _table(self) -> Iterable[str]:
        parts = ("bound.", "spread", "load", "loop", "tail", "other")
        heads = ("early", *parts, "late KB", "relay", "edges", "splits")
        yield f"{'launch':>6} {'blocks':>6} " + " ".join(f"{h:>7}" for h in heads) + "  kernel"
        for r in self.rows:
            cells = ["yes" if r.early else "", *(_cell(getattr(r, part)) for part in PARTS)]
            cells.append("-" if r.weights is None else f"{r.weights.exposed / 1e3:.0f}")
            worth = ("relay_s", "edges_s", "splits_s")
            cells += [_cell(getattr(r.remedies, name, None)) for name in worth]
            yield f"{r.index:>6} {r.blocks:>6} " + " ".join(f"{c:>7}" for c in cells) + f"  {r.kernel}"


_MEASURED: Mapping[Clock, str] = {
    "stamps": "measured: boundaries and phases, by stamps of every block",
    "events": "measured: begin and end of each launch, by events; nothing tells what happens inside of one",
    "model": "by the model, nothing measured: boundary, first load and the rest, which stands under loop",
}


def _words(name: str) -> str:
    return name.removesuffix("_s").replace("_", " ")


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:.2f}"


def _cell(seconds: float | None) -> str:
    return "-" if seconds is None else _us(seconds)


def recorded_ledger(subject: Subject, inputs: Sequence[object], *, repeats: int) -> Ledger:
    """The ledger of a plan on its device: of `repeats` recorded replays the one of median length.

    Kernels of CUDA and the emulator stamp their phases; OpenCL tells begin and end of launches alone.
    Raises UnsupportedError for a device that runs nothing, InputError for bad inputs.
    """
    check_repeats(repeats)
    if subject.target.kind == "null":
        raise UnsupportedError("the null target runs no kernels, so there is nothing to measure")
    plan, hardware = subject.plan, subject.target.hardware
    if isinstance(subject.loaded, TellsLaunchSpans):
        profile = profile_loaded(subject, inputs, repeats=repeats, compare_serial=False)
        rows = [_row(x, profile.launches) for x in profile.launches]
        return _ledger(subject, "events", profile.total_s, profile.launches, rows)
    kernels = subject.kernels()
    stamped = stamped_plan(plan, kernels, subject.target, phases=True)
    with subject.load(stamped.plan) as recording:
        recording.run(inputs)
        found = [recording.run(inputs)[-1] for _ in range(repeats)]
    stamps = sorted(found, key=span_ns)[(repeats - 1) // 2]
    spans = launch_spans(plan, stamps, stamped.first_rows, stamped.marked)
    own = _stamps_by_launch(stamps, stamped.first_rows, stamped.marked.places)
    weights = _weights(kernels)
    in_l2 = _weights_stay(sum(b.nbytes for b in plan.buffers if b.kind == "constant"), hardware)
    rows = []
    for x in spans:
        early = starts_early(plan, plan.launches[x.index])
        row = replace(
            _row(x, spans), weights=weights.get(x.kernel), early=early, **phases_of(own[x.index], x)
        )
        emulated = subject.target.kind == "emulator"  # its clock tells nothing of a GPU
        rows.append(row if emulated else with_remedies(row, bool(x.deps), hardware, in_l2))
    return _ledger(subject, "stamps", float(np.median(subject.loaded.time(inputs, repeats))), spans, rows)


def _ledger(
    subject: Subject, clock: Clock, replay_s: float, spans: Sequence[LaunchSpan], rows: Iterable[LedgerRow]
) -> Ledger:
    line = Timeline(tuple((x.start_s, x.end_s) for x in spans), tuple(x.deps for x in spans))
    return Ledger(str(subject.target), subject.device.name, clock, replay_s, line.idle_s, tuple(rows))


def _row(x: LaunchSpan, spans: Sequence[LaunchSpan]) -> LedgerRow:
    last = max((spans[d].end_s for d in x.deps), default=x.start_s)
    return LedgerRow(x.index, x.kernel, x.blocks, max(0.0, x.start_s - last), x.seconds)


def _stamps_by_launch(stamps: Stamps, first_rows: Sequence[int], places: Sequence[int]) -> list[Stamps]:
    ends = [*first_rows[1:], len(stamps)]
    return [stamps[first_rows[p] : ends[p]] for p in places]


def phases_of(own: Stamps, x: LaunchSpan) -> dict[str, Any]:
    """The parts of a launch in seconds by the stamps of the block that ends last, which add up to its time;
    none where its kernel cannot stamp.

    own: uint64[blocks, STAMPS_WITH_PHASES]; 0 for a phase that the kernel has not, or that no turn reached.
    """
    if x.bounded or not len(own):
        return {}
    block = own[own[:, END].argmax()].astype(np.int64)
    begin = int(own[:, START].min())
    parts: dict[str, Any] = {"spread_s": (int(block[START]) - begin) * NANOSECOND}
    if block[DATA]:
        parts["first_load_s"] = float(block[DATA] - block[START]) * NANOSECOND
        if block[LOOP]:
            parts["loop_s"] = float(block[LOOP] - block[DATA]) * NANOSECOND
            parts["tail_s"] = float(block[END] - block[LOOP]) * NANOSECOND
    return parts


def modelled_ledger(thread: Module, records: Iterable[KernelRecord], target: Target) -> Ledger:
    """The ledger of a module at the thread level by the cost model, its launches one after the other.

    Boundaries, shorter before launches that start early, and the latency of a first load are those of the
    hardware record; the rest of a kernel's estimate stands under its loop, for the model does not part it
    further.
    """
    hardware = target.hardware
    by_name = {r.name: r for r in records}
    funcs = {f.name: f for f in thread.funcs}
    weights = _weights(thread)
    constants = (op for op in thread.main.body.ops if op.name.endswith(".constant"))
    in_l2 = _weights_stay(sum(op.result.tensor.nbytes for op in constants), hardware)
    calls = [op["callee"] for op in thread.main.body.ops if op.name == "tensor.call"]
    rows = []
    before: Func | None = None
    for index, ref in enumerate(ref for ref in calls if isinstance(ref, Ref)):
        if ref.name not in by_name:
            raise InputError(f"expected a record of kernel '{ref.name}'")
        func = funcs.get(ref.name)
        row = _modelled_row(index, by_name[ref.name], func, hardware)
        row = replace(row, weights=weights.get(ref.name))
        if isinstance(hardware, GpuHardware) and _relayed(before, func):
            boundary_s = max(0.0, row.boundary_s - hardware.relay.boundary_s)
            row = replace(row, early=True, boundary_s=boundary_s)
        before = func
        rows.append(with_remedies(row, index > 0, hardware, in_l2))
    boundaries = sum(r.boundary_s for r in rows)
    replay_s = boundaries + sum(r.seconds for r in rows)
    return Ledger(str(target), hardware.name, "model", replay_s, boundaries, tuple(rows))


def _relayed(before: Func | None, func: Func | None) -> bool:
    """Return whether a launch starts early because of the one before it in a row of launches."""
    return (
        before is not None and func is not None and releases_dependents(before) and waits_for_launches(func)
    )


def _modelled_row(index: int, record: KernelRecord, func: Func | None, hardware: Hardware) -> LedgerRow:
    boundary_s = hardware.stream.boundary_s
    seconds = max(0.0, record.seconds - boundary_s)
    row = LedgerRow(index, record.name, int(np.prod(record.grid)), boundary_s if index else 0.0, seconds)
    if not isinstance(hardware, GpuHardware) or func is None or func.level is not Level.THREAD:
        return row
    if phase_marks(func).data is None:
        return row
    load_s = min(seconds, hardware.estimate_fetch_clk / hardware.clock_hz)
    return replace(row, first_load_s=load_s, loop_s=seconds - load_s)


def _weights(thread: Module) -> dict[str, WeightBytes]:
    return {f.name: weight_bytes(f) for f in thread.funcs if f.level is Level.THREAD}


def _weights_stay(nbytes: int, hardware: Hardware) -> bool:
    """Return whether a replay finds the weights in the L2 where the one before left them."""
    return isinstance(hardware, GpuHardware) and nbytes <= RESIDENT_SHARE * hardware.l2_bytes


def with_remedies(row: LedgerRow, follows: bool, hardware: Hardware, in_l2: bool) -> LedgerRow:
    """Add what remedies could save of a launch on a GPU.

    follows: it waits for another one. in_l2: its weights are still there from the last replay. Weights come
    at the rate of the L2 or of the DRAM, and save no more than what lies before the launch's tail.
    """
    if not isinstance(hardware, GpuHardware):
        return row
    rate = hardware.l2_bytes_per_s if in_l2 else hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency
    parts = (row.first_load_s, row.loop_s)
    before_tail = sum(p for p in parts if p is not None) if row.loop_s is not None else row.seconds
    late = 0 if row.weights is None else row.weights.exposed
    held = min(late, hardware.sm_count * (hardware.smem_per_sm_bytes // 2))
    relay_s = min(before_tail, held / rate) if follows else 0.0
    edges_s = max(0.0, row.boundary_s - hardware.launch_floor_s)
    empty_share = max(0.0, 1.0 - row.blocks / hardware.sm_count)
    splits_s = before_tail * empty_share - hardware.launch_floor_s if row.loop_s is not None else 0.0
    return replace(row, remedies=Remedies(relay_s, edges_s, max(0.0, splits_s)))
