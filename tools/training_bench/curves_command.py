"""`tilewright bench --train --curves STEPS`: training steps beside PyTorch's by what they learn."""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import IO, Any

from tilewright.compilation.option_values import Precision
from tilewright.devices.targets import device_name, resolve_target
from tilewright.ir import InputError, WorkError
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.arguments.printing import markdown_head, markdown_row
from tilewright.tools.bench.compiled import use_compiled
from tilewright.tools.bench.peers import cpu_torch, gpu_torch
from tilewright.tools.bench.rows import Row, one_line
from tilewright.tools.bench.side_by_side import SideBySide, Turn
from tilewright.tools.plots.training import Curve, require_plot, write_curves
from tilewright.tools.training_bench.curves import (
    BATCHES,
    Curves,
    TorchLosses,
    batches,
    our_losses,
    wider,
    without_dropout,
)
from tilewright.tools.training_bench.ours import compile_options, compiled, training_step
from tilewright.tools.training_bench.rows import TrainingRow, rows_of

#: how far smoothed losses may be from those in a wider precision, as a share of the first one, where
#: PyTorch's are nearer
_LIMIT = 0.02
#: how many times as far off as PyTorch's they may be
_BESIDE_PYTORCH = 2.0
_SMOOTH = 20
#: processes of one GPU that compute on it at the same time, while others prepare, and seconds between two
#: attempts to be one of them
_SHARERS, _LOOK_S = 2, 0.05
_HEAD = (
    "row",
    "precision",
    "first loss",
    "last losses",
    "PyTorch's",
    "wider",
    "off",
    "PyTorch off",
    "seconds",
)


def run_curves(a: argparse.Namespace) -> None:
    """Train the rows with both; raises WorkError at the end where losses of a row are wrong or it failed."""
    if a.peers or a.only_compile:
        raise InputError("expected neither --peers nor --only-compile", where="--curves")
    if a.plot:
        require_plot(a.plot)
    use_compiled(a)
    target = resolve_target(a.target)
    torch = gpu_torch() if target.kind == "cuda" else cpu_torch()
    if torch is None:
        raise InputError(
            "expected PyTorch that sees the target's device (pip install torch)", where="--curves"
        )
    device = device_name(target)
    print(f"on {device}, PyTorch {torch.__version__}", flush=True)
    ends_at = time.time() + a.time_limit
    asked = [(row, precision) for row in _cheap_first(a.train) for precision in a.precision]
    gpus = _gpus(torch, target.kind)
    done: list[Row] = []
    try:
        for made in _made(asked, a, gpus, ends_at):
            done.append(made)
            print(_text(made), flush=True)
            if a.json:
                write_atomically(a.json, json.dumps({"device": device, "rows": done}, indent=1))
    finally:
        table = _table(done)
        print(table)
        if a.markdown:
            write_atomically(a.markdown, table + "\n")
        if a.plot:
            write_curves(_lines(done), {}, a.plot)
    faults = [f"{r['network']} in {r['precision']}: {r['reason']}" for r in done if r["status"] != "ok"]
    if faults:
        raise WorkError("; ".join(faults))


def _torch_on(a: argparse.Namespace) -> tuple[Any, str]:
    """PyTorch, where it sees the target's device, else None, and what it calls that device."""
    return (gpu_torch(), "cuda") if resolve_target(a.target).kind == "cuda" else (cpu_torch(), "cpu")


def _cheap_first(names: Sequence[str]) -> list[TrainingRow]:
    """The rows that were asked for, those with the smallest images first."""
    return sorted(rows_of(names), key=lambda row: sum(map(math.prod, row.shapes.values())))


def _gpus(torch: Any, kind: str) -> tuple[str, ...]:
    """What the variable CUDA_VISIBLE_DEVICES calls each GPU that this process sees; empty for a CPU."""
    if kind != "cuda":
        return ()
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return tuple(named or map(str, range(torch.cuda.device_count())))


@dataclass(frozen=True)
class _Job:
    """One row in one precision, as the command's arguments say.

    gpu: what CUDA_VISIBLE_DEVICES calls its GPU, None where it takes what there is. folder: where jobs find
    what PyTorch's losses are that others have trained for, and whose turn it is on a GPU.
    """

    row: TrainingRow
    precision: Precision
    arguments: argparse.Namespace
    gpu: str | None
    folder: Path

    def head(self) -> Row:
        """The cells that name the row."""
        return {"network": self.row.name, "precision": self.precision}

    def failed(self, reason: str) -> Row:
        """The row where nothing came of it."""
        return self.head() | {"status": "failed", "reason": reason}

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait until fewer than `_SHARERS` others compute on the GPU, and be one of them."""
        names = [f"turn.{self.gpu}.{number}" for number in range(_SHARERS)]
        with ExitStack() as stack:
            locks = [stack.enter_context(open(self.folder / name, "w", encoding="utf-8")) for name in names]
            # The system gives the lock of a file back when its holder dies.
            while not any(map(_locked, locks)):
                time.sleep(_LOOK_S)
            yield


def _locked(file: IO[str]) -> bool:
    """Whether a file that nobody else holds is this process's now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _made(
    asked: Sequence[tuple[TrainingRow, Precision]], a: argparse.Namespace, gpus: Sequence[str], ends_at: float
) -> Iterator[Row]:
    """Rows as they are made, several at once and spread over the GPUs: their times are of no interest."""
    with tempfile.TemporaryDirectory(prefix="tilewright-curves-") as name:
        apart = a.jobs > 1 or ends_at < math.inf  # what is cut off is ended with its process
        given = cycle(gpus if apart and gpus else [None])
        jobs = [_Job(*each, a, gpu, Path(name)) for each, gpu in zip(asked, given, strict=False)]
        if apart:
            ways = SideBySide(_row_apart, _Job.failed, left_s=lambda: ends_at - time.time(), timing_s=0.0)
            yield from ways.rows(jobs, a.jobs)
        else:
            yield from (_row(job, lambda what: None) for job in jobs)


def _row_apart(job: _Job, turn: Turn) -> Row:
    """The row of a job in a process of its own, which sees its GPU alone; nothing in it is timed."""
    if job.gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = job.gpu
    return _row(job, lambda what: turn.doing(what, math.inf))


def _row(job: _Job, doing: Callable[[str], None]) -> Row:
    """The row with all losses; a fault is a row with a reason.

    What the host does comes before the turn on the GPU, so that it is done beside the turns of others.
    """
    a, precision = job.arguments, job.precision
    torch, device = _torch_on(a)
    seconds: dict[str, float] = {}
    try:
        doing("the network")
        module = without_dropout(job.row.module(Path(a.folder)))
        data = batches(job.row, module, BATCHES, a.seed)
        theirs = TorchLosses(job.row, module, data, a.curves, torch=torch, device=device, folder=job.folder)
        doing("our step")
        with _taken(seconds, "compiling"):
            step = training_step(job.row, module, clip_norm=job.row.clip_norm)
            exe = compiled(step, **compile_options(a, precision))
        doing("a turn on the GPU")
        with exe, job.turn():
            doing("our losses")
            with _taken(seconds, "ours"):
                ours = our_losses(exe, data, a.curves)
            exe.close()
            doing("PyTorch's losses")
            with _taken(seconds, "PyTorch"):
                torch_losses = theirs.losses(precision)
            doing("PyTorch's losses in a wider precision")
            with _taken(seconds, "wider"):
                wide = theirs.losses(wider(precision))
        return _judged(job.head(), Curves(ours, torch_losses, wide), seconds)
    except Exception as e:  # noqa: BLE001  a row that fails must not take the others with it
        return job.failed(one_line(e))


@contextmanager
def _taken(seconds: dict[str, float], what: str) -> Iterator[None]:
    """Note how long something took."""
    begin = time.perf_counter()
    yield
    seconds[what] = time.perf_counter() - begin


def _judged(head: Row, made: Curves, seconds: Mapping[str, float]) -> Row:
    """The row with all losses and whether they are right."""
    smooth = min(_SMOOTH, len(made.ours))
    ours, theirs = made.of_rounding(smooth)
    row = head | {"off": ours, "torch_off": theirs, "smooth": smooth, "seconds": dict(seconds)}
    row |= {"ours": made.ours.tolist(), "torch": made.torch.tolist(), "wide": made.wide.tolist()}
    # What is not a number is not within any limit.
    if ours <= max(_LIMIT, _BESIDE_PYTORCH * theirs):
        return row | {"status": "ok"}
    reason = f"losses are {100 * ours:.2g} % of the first one off, PyTorch's {100 * theirs:.2g} %"
    return row | {"status": "wrong", "reason": reason}


def _last(losses: Sequence[float], count: int) -> str:
    return f"{sum(losses[-count:]) / count:.4g}"


def _cells(row: Row) -> list[str]:
    smooth = row["smooth"]
    means = [_last(row[name], smooth) for name in ("ours", "torch", "wide")]
    shares = [f"{100 * row[name]:.2f} %" for name in ("off", "torch_off")]
    longest_first = sorted(row["seconds"].items(), key=lambda item: -item[1])
    took = ", ".join(f"{what} {seconds:.0f}" for what, seconds in longest_first)
    return [row["network"], row["precision"], f"{row['wide'][0]:.4g}", *means, *shares, took]


def _text(row: Row) -> str:
    if "ours" not in row:
        return f"{row['network']} {row['precision']}: {row['status']}: {row['reason']}"
    cells = ", ".join(f"{title} {cell}" for title, cell in zip(_HEAD[2:], _cells(row)[2:], strict=True))
    return f"{row['network']} {row['precision']}: {row['status']}: {cells}"


def _table(rows: Sequence[Row]) -> str:
    lines = markdown_head(list(_HEAD))
    for row in rows:
        cells = _cells(row) if "ours" in row else [row["network"], row["precision"], row["reason"]]
        lines.append(markdown_row([*cells, *[""] * (len(_HEAD) - len(cells))]))
    return "\n".join(lines)


def _lines(rows: Sequence[Row]) -> list[Curve]:
    """Curves of both sides of every row that ran."""
    names = {"ours": "Tilewright", "torch": "PyTorch"}
    return [
        Curve(f"{r['network']} {r['precision']}, {title}", r[name], ())
        for r in rows
        if "ours" in r
        for name, title in names.items()
    ]
