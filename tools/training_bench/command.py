"""`tilewright bench --train`: training steps beside PyTorch's, one row per network, batch and precision."""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tilewright.compilation.option_values import Precision
from tilewright.devices.targets import device_name, resolve_target
from tilewright.ir import InputError, Module, WorkError
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.bench.clocks import TorchClock
from tilewright.tools.bench.compiled import use_compiled
from tilewright.tools.bench.contender import Contender, interleaved
from tilewright.tools.bench.peers import gpu_torch
from tilewright.tools.bench.rows import Row, contender_row, judged, one_line
from tilewright.tools.bench.side_by_side import TIMING, TIMING_LIMIT_S, SideBySide, Turn
from tilewright.tools.training_bench.ours import OurStep, compile_options, compiled, training_step
from tilewright.tools.training_bench.rows import TrainingRow, rows_of
from tilewright.tools.training_bench.table import training_table, training_text
from tilewright.tools.training_bench.torch_steps import TorchStep, exact_loss

#: ways in which PyTorch takes a step; channels last only where a network has images, cuDNN's recurrent layers
#: where the row has a network of them, which is then compiled in place of the unrolled one
_WAYS = (
    ("torch-eager", "contiguous"),
    ("torch-eager", "channels_last"),
    ("torch-eager", "cudnn"),
    ("torch-graph", "contiguous"),
    ("torch-graph", "channels_last"),
    ("torch-graph", "cudnn"),
    ("torch-compile", "contiguous"),
    ("torch-compile", "cudnn"),
)
#: how far the loss of the first step may be from the one in float64, as a share of it, where PyTorch's own is
#: nearer; in deep networks with batch norms over few values roundings to 16 bits move PyTorch's by 2 %, too
_LOSS_LIMIT = 0.01
#: how many times as far off as PyTorch's furthest it may be
_BESIDE_PYTORCH = 2.0


def run_training_bench(a: argparse.Namespace) -> None:
    """Time the rows; raises WorkError at the end where a loss was wrong or a row failed."""
    use_compiled(a)
    target = resolve_target(a.target)
    rows = rows_of(a.train)
    if a.networks or a.suite or a.kernels is not None or a.batch:
        raise InputError("expected rows alone, which name their networks and batches", where="--train")
    peers = tuple(a.peers or ())
    for name in peers:
        if name not in ("none", *(way[0] for way in _WAYS)):
            raise InputError(
                f"expected peers among torch-eager, torch-graph and torch-compile, or none, got '{name}'",
                where="--peers",
            )
    wanted = target.kind == "cuda" and peers != ("none",) and not a.only_compile
    torch = gpu_torch() if wanted else None
    if wanted and torch is None:
        raise InputError(
            "expected PyTorch that sees an NVIDIA GPU (pip install torch), or --peers none", where="--peers"
        )
    device = device_name(target)
    print(f"on {device}" + (f", PyTorch {torch.__version__}" if torch else ""), flush=True)
    ends_at = time.time() + a.time_limit
    requests = [
        _Request(row, precision, a, _peers_of(row, peers) if wanted else (), ends_at)
        for precision in a.precision
        for row in rows
    ]
    done: list[Row] = []
    try:
        for made in _rows(requests, a.jobs):
            done.append(made)
            print(training_text(made), flush=True)
            if a.json:
                write_atomically(a.json, json.dumps({"device": device, "rows": done}, indent=1, default=str))
    finally:
        text = training_table(done)
        print(text)
        if a.markdown:
            write_atomically(a.markdown, text + "\n")
    faults = [
        f"{r['network']} in {r['precision']}: {r['reason']}"
        for r in done
        if r["status"] in ("wrong", "failed")
    ]
    if faults:
        raise WorkError("; ".join(faults))


def _peers_of(row: TrainingRow, peers: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The ways of the peers that were asked for, else of those that the row is judged by."""
    names = peers or ("torch-graph", "torch-compile", *(("torch-eager",) if row.eager else ()))
    return tuple(w for w in _WAYS if w[0] in names)


@dataclass(frozen=True)
class _Request:
    """One row in one precision beside PyTorch's ways; `ends_at` is when the run has to end, in Unix time."""

    row: TrainingRow
    precision: Precision
    arguments: argparse.Namespace
    ways: tuple[tuple[str, str], ...]
    ends_at: float

    @property
    def left_s(self) -> float:
        """Seconds until the whole run has to end."""
        return self.ends_at - time.time()

    def without(self, way: str) -> _Request:
        """The same row without a peer in one variant."""
        return replace(self, ways=tuple(w for w in self.ways if " ".join(w) != way))

    def lost(self, reason: str) -> Row:
        """The row where nothing came of it."""
        head: Row = {"network": self.row.name, "batch": "", "precision": self.precision}
        return {**head, "status": "failed", "reason": reason, "ratio": None}


class _Here:
    """The turn of a row that no other is prepared beside."""

    def doing(self, what: str, limit_s: float) -> None:
        """Nobody wants to know."""

    def __call__(self) -> AbstractContextManager[None]:
        return nullcontext()


def _rows(requests: Sequence[_Request], jobs: int) -> Iterator[Row]:
    if jobs > 1 or any(r.ways for r in requests):
        ends_at = requests[0].ends_at if requests else 0.0
        # PyTorch's steps are prepared in the turn, one after the other, so that each has the memory alone.
        way = SideBySide(_row, _Request.lost, _Request.without, lambda: ends_at - time.time(), timing_s=15.0)
        yield from way.rows(requests, jobs)
    else:
        for request in requests:
            yield _row(request, _Here())


def _row(request: _Request, turn: Turn | _Here) -> Row:
    """One row: ours is compiled before its turn, the peers are prepared and all are timed within it."""
    if request.left_s <= 0:
        return request.lost("the time limit was over before it")
    try:
        module = request.row.module(Path(request.arguments.folder))
        made = (
            _compiled(request, module) if request.arguments.only_compile else _compared(request, module, turn)
        )
        head = {"network": request.row.name, "batch": module.main.params[0].tensor.shape[0]}
        return {**head, "precision": request.precision, **made}
    except Exception as e:  # noqa: BLE001  a row that fails must not take the others with it
        return request.lost(one_line(e))
    finally:
        gc.collect()


def _compiled(request: _Request, module: Module) -> Row:
    """The row of a step that is compiled only."""
    begin = time.perf_counter()
    with compiled(
        training_step(request.row, module), **compile_options(request.arguments, request.precision)
    ) as exe:
        facts = {"launches": len(exe.plan.launches), "kernels": len(exe.plan.kernels)}
    ours = {"peer": "tilewright", "variant": "", "prepare_s": round(time.perf_counter() - begin, 3), **facts}
    return {"status": "compiled", "ratio": None, "ours": [ours], "peers": []}


def _compared(request: _Request, module: Module, turn: Turn | _Here) -> Row:
    a, row, precision = request.arguments, request.row, request.precision
    data = row.data(module, a.seed)
    ways = _ways(row, module, request.ways)
    torch = gpu_torch() if ways else None
    clock = TorchClock(torch, cold=a.cold) if torch else None
    contenders: list[Contender] = []
    failures: list[Row] = []

    def prepared(peer: str, variant: str) -> TorchStep | None:
        limit = min(a.peer_limit, request.left_s)
        turn.doing(f"{peer} {variant}", limit)
        try:
            assert clock is not None
            return TorchStep(row, module, data, precision, clock, peer=peer, variant=variant, limit_s=limit)
        except Exception as e:  # noqa: BLE001  what PyTorch raises is this contender's result
            failures.append({"peer": peer, "variant": variant, "reason": one_line(e)})
            return None
        finally:
            turn.doing("", math.inf)

    try:
        contenders.append(OurStep(row, module, data, compile_options(a, precision), clock))
        (loss,) = contenders[0].outputs()
        if a.jobs > 1 and (compiling := [w for w in ways if w[0] == "torch-compile"]):
            # Compiling is work of the host that PyTorch keeps on disk: nobody has to wait for it in the turn.
            step = prepared(*compiling[0])
            if step is None:
                ways = [w for w in ways if w[0] != "torch-compile"]
            else:
                step.close()
        with turn():
            for way in ways:
                if (step := prepared(*way)) is not None:
                    contenders.append(step)
            exact = None if torch is None else exact_loss(torch, row, module, data, "cuda")
            turn.doing(TIMING, TIMING_LIMIT_S)
            timed = interleaved(contenders, a.rounds, a.replays)
        losses = [float(loss), *(float(c.outputs()[0]) for c in contenders[1:])]
        checks = [
            {"first_loss": value, **({} if exact is None else {"error": _share(value, exact)})}
            for value in losses
        ]
        lines = [contender_row(c, check, t) for c, check, t in zip(contenders, checks, timed, strict=True)]
    finally:
        for c in contenders:
            c.close()
    reason = None if exact is None else why_wrong(losses[0], losses[1:], exact)
    if not np.isfinite(losses[0]):
        reason = f"the loss of the first step is {losses[0]:.5g}"
    return {
        "status": "ok" if reason is None else "wrong",
        **({} if reason is None else {"reason": reason}),
        "ours": lines[:1],
        "peers": [*lines[1:], *failures],
        **judged(lines[:1], lines[1:]),
    }


def why_wrong(loss: float, theirs: Sequence[float], exact: float) -> str | None:
    """Why a loss of the first step is too far from the exact one, beside PyTorch's; None where it is not."""
    furthest = max((_share(t, exact) for t in theirs if np.isfinite(t)), default=0.0)
    if _share(loss, exact) <= max(_LOSS_LIMIT, _BESIDE_PYTORCH * furthest):
        return None
    beside = f", PyTorch's {', '.join(f'{t:.5g}' for t in theirs)}" if theirs else ""
    return f"the loss of the first step is {loss:.5g}{beside}, in float64 {exact:.5g}"


def _share(loss: float, exact: float) -> float:
    """How far a loss is from the exact one, as a share of it."""
    return abs(loss - exact) / max(abs(exact), 1e-12)


def _ways(row: TrainingRow, module: Module, ways: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    images = row.cudnn_network is None and any(op.name == "graph.conv2d" for op in module.main.body.ops)
    absent = {*(() if images else ("channels_last",)), *(() if row.cudnn_network else ("cudnn",))}
    unrolled = {("torch-compile", "contiguous")} if row.cudnn_network else set()
    return [w for w in ways if w[1] not in absent and w not in unrolled]
