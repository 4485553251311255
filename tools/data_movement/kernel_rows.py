"""The memory usage efficiency (MUE) of every kernel of a network, and sums by class of operator.

MUE = 100 (Q/D)(B/B^): Q, the bytes that a kernel must move by its definition, over those that it moves (D),
times the bandwidth that it reaches (B = D/t) over that of the memory (B^). Source: Ivanov et al., "Data
Movement Is All You Need" (MLSys 2021), section 3.4, after Fuhrer et al. (2018). D cancels: what remains is
Q / (t B^).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tilewright.compilation.kernel_records import KernelRecord
from tilewright.costmodel import Hardware
from tilewright.costmodel.kernels.explain import LIMITS
from tilewright.ir import Func, Module, Ref
from tilewright.ir.facts import WorkClass
from tilewright.passes.analysis.work.global_traffic import moved_bytes
from tilewright.passes.analysis.work.operator_work import copy_work, kernel_work, peak_flops_per_s

#: parts of a network or of a training step that kernels run in, by the locations of their calls
FORWARD, BACKWARD, LOSS, OPTIMIZER, STATE = "forward", "backward", "loss", "optimizer", "state"


@dataclass(frozen=True)
class MovementRow:
    """One kernel in one part of the network; all but `calls` is of one launch.

    compulsory_bytes: Q, inputs and outputs once. moved_bytes: D, what its cut asks of global memory; None for
    kernels of libraries, whose cut is not known. seconds: measured where `measured`, else the model's.
    mue, peak_share: percent; peak_share is of the fastest units that take its products, else of the lanes.
    """

    kernel: str
    part: str
    calls: int
    work: str
    flops: int
    words_in: int
    words_out: int
    compulsory_bytes: int
    moved_bytes: int | None
    seconds: float
    measured: bool
    mue: float
    peak_share: float
    memory_bound: bool
    limit: str

    @property
    def total_s(self) -> float:
        """Seconds of all launches."""
        return self.calls * self.seconds


def efficiency(compulsory: float, moved: float, seconds: float, bytes_per_s: float) -> float:
    """MUE in percent: 100 (Q/D)(B/B^) of bytes Q and D, seconds, and the peak bandwidth B^."""
    if not compulsory or not seconds:
        return 0.0
    return 100.0 * (compulsory / moved) * (moved / seconds / bytes_per_s)


def movement_row(
    tensor: Func | None,
    thread: Func | None,
    record: KernelRecord,
    hardware: Hardware,
    *,
    calls: int = 1,
    part: str = FORWARD,
    seconds: float | None = None,
) -> MovementRow:
    """The row of a kernel.

    tensor, thread: it at both levels; those of libraries have no thread level, copies of state no tensor
    level. seconds: of one launch, where
    somebody measured it other than the record's tuning.
    """
    assert tensor is not None or thread is not None
    work = kernel_work(tensor) if tensor is not None else copy_work(thread)  # type: ignore[arg-type]
    moved = None if thread is None else moved_bytes(thread)
    measured = seconds is not None or record.measured_s is not None
    seconds = record.seconds if seconds is None else seconds
    mue = efficiency(
        work.compulsory_bytes, moved or work.compulsory_bytes, seconds, hardware.dram_bytes_per_s
    )
    peak = peak_flops_per_s(() if tensor is None else tensor.body.ops, hardware)
    share = 100.0 * work.flops / seconds / peak if seconds else 0.0
    return MovementRow(
        kernel=record.name,
        part=part,
        calls=calls,
        work=work.work.value,
        flops=work.flops,
        words_in=work.words_in,
        words_out=work.words_out,
        compulsory_bytes=work.compulsory_bytes,
        moved_bytes=moved,
        seconds=seconds,
        measured=measured,
        mue=mue,
        peak_share=share,
        memory_bound=mue > share,
        limit=record.limit or "",
    )


def movement_rows(
    tensor: Module, thread: Module, records: Iterable[KernelRecord], hardware: Hardware
) -> tuple[MovementRow, ...]:
    """A row for each kernel in each part of the network, in the order of their first launches.

    tensor, thread: the network at both levels; the calls are those of the thread level's @main.
    """
    definitions, code = ({f.name: f for f in m.funcs} for m in (tensor, thread))
    by_name = {r.name: r for r in records}
    launches: dict[tuple[str, str], int] = {}
    for op in thread.main.body.ops:
        if op.name == "tensor.call" and isinstance(ref := op["callee"], Ref):
            place = op.loc or next(iter(by_name[ref.name].origins), "")
            at = (ref.name, part_of(place) if ref.name in definitions else STATE)
            launches[at] = launches.get(at, 0) + 1
    return tuple(
        movement_row(definitions.get(name), code.get(name), by_name[name], hardware, calls=calls, part=part)
        for (name, part), calls in launches.items()
    )


def part_of(location: str) -> str:
    """The part of a training step that a location is in: those of backward ops end in a prime."""
    if location in (LOSS, OPTIMIZER):
        return location
    return BACKWARD if location.endswith("'") else FORWARD


def totals(rows: Sequence[MovementRow], bytes_per_s: float) -> list[dict[str, Any]]:
    """Sums over launches by class of operator, in the order of the classes, and of all.

    Per sum: launches, flops, bytes Q, D (None where a kernel's is not known), seconds, its share of all
    seconds in percent, MUE, and the launches that are memory bound.
    """
    all_s = sum(r.total_s for r in rows)
    groups = [(c.value, [r for r in rows if r.work == c.value]) for c in WorkClass]
    return [
        _total(name, group, all_s, bytes_per_s) for name, group in (*groups, ("all", list(rows))) if group
    ]


def _total(name: str, rows: Sequence[MovementRow], all_s: float, bytes_per_s: float) -> dict[str, Any]:
    compulsory = sum(r.calls * r.compulsory_bytes for r in rows)
    known = [r.calls * r.moved_bytes for r in rows if r.moved_bytes is not None]
    moved = sum(known) if len(known) == len(rows) else None
    seconds = sum(r.total_s for r in rows)
    return {
        "work": name,
        "launches": sum(r.calls for r in rows),
        "flops": sum(r.calls * r.flops for r in rows),
        "compulsory_bytes": compulsory,
        "moved_bytes": moved,
        "seconds": seconds,
        "share": 100.0 * seconds / all_s if all_s else 0.0,
        "mue": efficiency(compulsory, moved or compulsory, seconds, bytes_per_s),
        "memory_bound": sum(r.calls for r in rows if r.memory_bound),
    }


def movement_facts(rows: Sequence[MovementRow], hardware: Hardware) -> dict[str, Any]:
    """The rows and their sums as plain data: `kernels`, `totals`, `times` and the bandwidth B^."""
    return {
        "times": source_of_times(rows),
        "dram_bytes_per_s": hardware.dram_bytes_per_s,
        "kernels": [asdict(r) for r in rows],
        "totals": totals(rows, hardware.dram_bytes_per_s),
    }


def source_of_times(rows: Sequence[MovementRow]) -> str:
    """`measured`, `modelled`, or both where some kernels were measured and others were not."""
    return " and ".join(dict.fromkeys("measured" if r.measured else "modelled" for r in rows)) or "modelled"


def movement_text(rows: Sequence[MovementRow], hardware: Hardware) -> str:
    """The rows and sums as a table of text."""
    names = max([len("kernel"), *(len(r.kernel) for r in rows)])
    head = (
        f"{'kernel':{names}} {'part':9} {'calls':>5} {'class':26} {'Gflop':>9} {'in MW':>9} {'out MW':>9} "
        f"{'Q MB':>9} {'D MB':>9} {'us':>9} {'MUE':>6} {'% peak':>6}  bound"
    )
    lines = [
        f"times {source_of_times(rows)}; bandwidth {hardware.dram_bytes_per_s / 1e9:.0f} GB/s "
        f"({hardware.name})",
        head,
    ]
    for r in rows:
        kind = "memory" if r.memory_bound else "compute"
        lines.append(
            f"{r.kernel:{names}} {r.part:9} {r.calls:5} {r.work:26} {r.flops / 1e9:9.3f} "
            f"{r.words_in / 1e6:9.3f} {r.words_out / 1e6:9.3f} {_mega(r.compulsory_bytes):>9} "
            f"{_mega(r.moved_bytes):>9} {1e6 * r.seconds:9.2f} {r.mue:6.1f} {r.peak_share:6.1f}  "
            f"{kind}: {LIMITS.get(r.limit, r.limit)}"
        )
    lines += [
        "",
        f"{'over all launches':35} {'launches':>8} {'Gflop':>10} {'Q MB':>10} {'D MB':>10} {'us':>10} "
        f"{'share':>7} {'MUE':>6}  memory bound",
    ]
    for t in totals(rows, hardware.dram_bytes_per_s):
        lines.append(
            f"{t['work']:35} {t['launches']:8} {t['flops'] / 1e9:10.3f} {_mega(t['compulsory_bytes']):>10} "
            f"{_mega(t['moved_bytes']):>10} {1e6 * t['seconds']:10.2f} {t['share']:6.1f}% {t['mue']:6.1f}  "
            f"{t['memory_bound']} of {t['launches']}"
        )
    return "\n".join(lines)


def _mega(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 1e6:.3f}"
