"""`tilewright bench --train`: training steps beside PyTorch's, one row per network, batch and precision."""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.compilation.option_values import Precision
from tilewright.devices.targets import device_name, resolve_target
from tilewright.ir import InputError, Module, WorkError
from tilewright.tools.bench.clocks import TorchClock
from tilewright.tools.bench.contender import Contender, geometric_mean, interleaved
from tilewright.tools.bench.peers import gpu_torch
from tilewright.tools.bench.rows import Row, contender_row, judged, one_line
from tilewright.tools.bench.table import network_table, row_text
from tilewright.tools.bench.waves import rows_in_waves
from tilewright.tools.commands.network import passes_of
from tilewright.tools.training_bench.ours import OurStep
from tilewright.tools.training_bench.rows import TrainingRow, rows_of
from tilewright.tools.training_bench.torch_steps import TorchStep

#: ways in which PyTorch takes a step; channels last only where a network has images
_WAYS = (("torch-graph", "contiguous"), ("torch-graph", "channels_last"), ("torch-compile", "contiguous"))


def run_training_bench(a: argparse.Namespace) -> None:
    """Time the rows; raises WorkError at the end where a loss was wrong or a row failed."""
    target = resolve_target(a.target)
    rows = rows_of(a.train)
    if a.networks or a.suite or a.kernels is not None or a.batch:
        raise InputError("expected rows alone, which name their networks and batches", where="--train")
    peers = a.peers or ["torch-graph", "torch-compile"]
    wanted = target.kind == "cuda" and peers != ["none"]
    torch = gpu_torch() if wanted else None
    if wanted and torch is None:
        raise InputError(
            "expected PyTorch that sees an NVIDIA GPU (pip install torch), or --peers none", where="--peers"
        )
    print(f"on {device_name(target)}" + (f", PyTorch {torch.__version__}" if torch else ""), flush=True)
    ends_at = time.time() + a.time_limit
    requests = [_Request(row, precision, a, peers, ends_at) for precision in a.precision for row in rows]
    done: list[Row] = []
    try:
        for made in _rows(requests, a.jobs):
            done.append(made)
            print(row_text(made), flush=True)
    finally:
        if a.json:
            document = {"device": device_name(target), "rows": done}
            Path(a.json).write_text(json.dumps(document, indent=1), encoding="utf-8")
    print(network_table(done))
    ratios = [r["ratio"] for r in done if r.get("ratio")]
    mean = geometric_mean(ratios)
    if mean is not None:
        print(f"geometric mean over the better peer: {mean:.2f} ({len(ratios)} rows)")
    faults = [f"{r['network']} in {r['precision']}: {r['reason']}" for r in done if r["status"] != "ok"]
    if faults:
        raise WorkError("; ".join(faults))


@dataclass(frozen=True)
class _Request:
    """One row in one precision; `ends_at` is when the whole run has to end, in Unix time."""

    row: TrainingRow
    precision: Precision
    arguments: argparse.Namespace
    peers: Sequence[str]
    ends_at: float

    @property
    def left_s(self) -> float:
        """Seconds until the whole run has to end."""
        return self.ends_at - time.time()


_Turn = Callable[[], AbstractContextManager[None]]


def _rows(requests: Sequence[_Request], jobs: int) -> Iterator[Row]:
    if jobs > 1:
        yield from rows_in_waves(_row, requests, jobs, _lost)
    else:
        for request in requests:
            yield _row(request, nullcontext)


def _row(request: _Request, turn: _Turn) -> Row:
    """One row: ours is compiled before its turn, the peers are prepared and all are timed within it."""
    if request.left_s <= 0:
        return _lost(request, "the time limit was reached before it")
    try:
        return _compared(request, request.row.module(Path(request.arguments.folder)), turn)
    except Exception as e:  # noqa: BLE001  a row that fails must not take the others with it
        return _lost(request, one_line(e))
    finally:
        gc.collect()


def _compared(request: _Request, module: Module, turn: _Turn) -> Row:
    a, row, precision = request.arguments, request.row, request.precision
    data = row.data(module, a.seed)
    options = {
        "target": a.target,
        "tune": a.tune,
        "tuning_db": a.tuning_db,
        "budget": a.budget,
        "streams": a.streams,
        "libraries": a.libraries == "on",
        "precision": precision,
        **passes_of(a),
    }
    torch = gpu_torch() if request.peers != ["none"] else None
    clock = TorchClock(torch, cold=a.cold) if torch else None
    contenders: list[Contender] = []
    failures: list[Row] = []
    try:
        contenders.append(OurStep(row, module, data, options, clock))
        (loss,) = contenders[0].outputs()
        with turn():
            for peer, variant in _ways(module, request.peers) if clock else ():
                limit = min(a.peer_limit, request.left_s)
                try:
                    assert clock is not None
                    step = TorchStep(
                        row, module, data, precision, clock, peer=peer, variant=variant, limit_s=limit
                    )
                    contenders.append(step)
                except Exception as e:  # noqa: BLE001  what PyTorch raises is this contender's result
                    failures.append({"peer": peer, "variant": variant, "reason": one_line(e)})
            timed = interleaved(contenders, a.rounds, a.replays)
        checks = [{"first_loss": float(loss)}, *({} for _ in contenders[1:])]
        lines = [contender_row(c, check, t) for c, check, t in zip(contenders, checks, timed, strict=True)]
    finally:
        for c in contenders:
            c.close()
    right = bool(np.isfinite(loss).all())
    return {
        "network": row.name,
        "batch": module.main.params[0].tensor.shape[0],
        "precision": precision,
        "status": "ok" if right else "wrong",
        **({} if right else {"reason": f"the loss of the first step is {loss}"}),
        "ours": lines[:1],
        "peers": [*lines[1:], *failures],
        **judged(lines[:1], lines[1:]),
    }


def _lost(request: _Request, reason: str) -> Row:
    lost: dict[str, Any] = {"network": request.row.name, "batch": "", "precision": request.precision}
    return {**lost, "status": "failed", "reason": reason, "ratio": None}


def _ways(module: Module, peers: Sequence[str]) -> list[tuple[str, str]]:
    images = any(op.name == "graph.conv2d" for op in module.main.body.ops)
    return [w for w in _WAYS if w[0] in peers and (images or w[1] != "channels_last")]
