"""`tilewright bench --train --curves STEPS`: training steps beside PyTorch's by what they learn."""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as TimeIsOver
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tilewright.compilation.option_values import Precision
from tilewright.devices.targets import device_name, resolve_target
from tilewright.ir import InputError, WorkError
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.arguments.printing import markdown_head, markdown_row
from tilewright.tools.bench.compiled import use_compiled
from tilewright.tools.bench.peers import cpu_torch, gpu_torch
from tilewright.tools.bench.rows import Row, one_line
from tilewright.tools.plots.training import Curve, require_plot, write_curves
from tilewright.tools.training_bench.curves import curves
from tilewright.tools.training_bench.ours import compile_options
from tilewright.tools.training_bench.rows import TrainingRow, rows_of

#: how far smoothed losses may be from those in a wider precision, as a share of the first one, where
#: PyTorch's are nearer
_LIMIT = 0.02
#: how many times as far off as PyTorch's they may be
_BESIDE_PYTORCH = 2.0
_SMOOTH = 20
_HEAD = ("row", "precision", "first loss", "last losses", "PyTorch's", "wider", "off", "PyTorch off")


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
    jobs = [_Job(row, precision, a) for precision in a.precision for row in rows_of(a.train)]
    done: list[Row] = []
    try:
        for made in _made(jobs, a.jobs, ends_at):
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


@dataclass(frozen=True)
class _Job:
    """One row in one precision, as the command's arguments say."""

    row: TrainingRow
    precision: Precision
    arguments: argparse.Namespace

    def head(self) -> Row:
        """The cells that name the row."""
        return {"network": self.row.name, "precision": self.precision}

    def failed(self, reason: str) -> Row:
        """The row where nothing came of it."""
        return self.head() | {"status": "failed", "reason": reason}


def _made(jobs: Sequence[_Job], at_once: int, ends_at: float) -> Iterator[Row]:
    """Rows in their order, several at once: how long they take is of no interest."""
    if at_once == 1:
        for job in jobs:
            yield _row(job) if time.time() < ends_at else job.failed("the time limit was over before it")
        return
    pool = ProcessPoolExecutor(at_once, mp_context=get_context("spawn"))
    try:
        futures: list[Future[Row]] = [pool.submit(_row, job) for job in jobs]
        for job, future in zip(jobs, futures, strict=True):
            left = ends_at - time.time()
            try:
                yield future.result(None if left == math.inf else max(left, 0.0))
            except TimeIsOver:
                yield job.failed("the time limit was over before it ended")
            except Exception as e:  # noqa: BLE001  a process that ends takes its row with it, no other
                yield job.failed(one_line(e))
    finally:
        for process in list((pool._processes or {}).values()):
            if time.time() >= ends_at:
                process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)


def _row(job: _Job) -> Row:
    """The row with all losses; a fault is a row with a reason."""
    a = job.arguments
    options = compile_options(a, job.precision)
    torch, device = _torch_on(a)
    try:
        module = job.row.module(Path(a.folder))
        made = curves(job.row, module, a.curves, options, torch=torch, device=device, seed=a.seed)
    except Exception as e:  # noqa: BLE001  a row that fails must not take the others with it
        return job.failed(one_line(e))
    smooth = min(_SMOOTH, a.curves)
    ours, theirs = made.of_rounding(smooth)
    row = job.head() | {"off": ours, "torch_off": theirs, "smooth": smooth}
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
    return [row["network"], row["precision"], f"{row['wide'][0]:.4g}", *means, *shares]


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
