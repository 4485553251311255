"""`tilewright bench --train`: training steps beside PyTorch's, one row per network, batch and precision."""

from __future__ import annotations

import argparse
import gc
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from tilewright.compilation.option_values import Precision
from tilewright.devices.targets import device_name, resolve_target
from tilewright.ir import InputError, Module, WorkError
from tilewright.runtime.atomic_file import write_atomically
from tilewright.streaming.memory_size import memory_bytes
from tilewright.tools.bench.clocks import TorchClock
from tilewright.tools.bench.compiled import use_compiled
from tilewright.tools.bench.contender import Contender, interleaved
from tilewright.tools.bench.peers import gpu_torch
from tilewright.tools.bench.rows import Row, contender_row, judged, one_line
from tilewright.tools.bench.side_by_side import TIMING, TIMING_LIMIT_S, SideBySide, Turn
from tilewright.tools.training_bench.ours import OurStep, compile_options, compiled, training_step, variant_of
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
        _Request(row, precision, a, _peers_of(row, peers) if wanted else (), ends_at, budget)
        for precision in a.precision
        for row, budget in zip(rows, _memory_budgets(a, len(rows)), strict=True)
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


def _memory_budgets(a: argparse.Namespace, rows: int) -> Sequence[str | None]:
    """The budget of each row; one that is alone is that of all rows."""
    budgets = a.memory_budget or [None]
    for budget in a.memory_budget or ():
        memory_bytes(budget, where="--memory-budget")
    if len(budgets) not in (1, rows):
        raise InputError(
            f"expected one budget or one for each of {rows} rows, got {len(budgets)}", where="--memory-budget"
        )
    return budgets * rows if len(budgets) == 1 else budgets


def _peers_of(row: TrainingRow, peers: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The ways of the peers that were asked for, else of those that the row is judged by."""
    names = peers or ("torch-graph", "torch-compile", *(("torch-eager",) if row.eager else ()))
    return tuple(w for w in _WAYS if w[0] in names)


@dataclass(frozen=True)
class _Request:
    """One row in one precision beside PyTorch's ways; `ends_at` is when the run has to end, in Unix time.

    memory_budget: what the step is to keep to where it is timed a second time, None where it is not.
    """

    row: TrainingRow
    precision: Precision
    arguments: argparse.Namespace
    ways: tuple[tuple[str, str], ...]
    ends_at: float
    memory_budget: str | None = None

    @property
    def left_s(self) -> float:
        """Seconds until the whole run has to end."""
        return self.ends_at - time.time()

    @property
    def budgets(self) -> tuple[str | None, ...]:
        """The budgets of memory that the step is compiled for, None first."""
        return (None,) if self.memory_budget is None else (None, self.memory_budget)

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
    ours = []
    for budget in request.budgets:
        begin = time.perf_counter()
        with compiled(
            training_step(request.row, module, memory_budget=budget),
            **compile_options(request.arguments, request.precision),
        ) as exe:
            facts = {"launches": len(exe.plan.launches), "kernels": len(exe.plan.kernels)}
        seconds = round(time.perf_counter() - begin, 3)
        ours.append({"peer": OurStep.peer, "variant": variant_of(budget), "prepare_s": seconds, **facts})
    return {"status": "compiled", "ratio": None, "ours": ours, "peers": []}


@dataclass(frozen=True)
class _Peers:
    """Sets up PyTorch's steps; what fails is noted in `failures`."""

    request: _Request
    module: Module
    data: tuple[list[np.ndarray], np.ndarray]
    clock: TorchClock | None
    turn: Turn | _Here
    failures: list[Row] = field(default_factory=list)

    def prepared(self, peer: str, variant: str) -> TorchStep | None:
        """PyTorch's step in one way, None where it failed."""
        asked, limit = self.request, min(self.request.arguments.peer_limit, self.request.left_s)
        self.turn.doing(f"{peer} {variant}", limit)
        try:
            assert self.clock is not None
            return TorchStep(
                asked.row,
                self.module,
                self.data,
                asked.precision,
                self.clock,
                peer=peer,
                variant=variant,
                limit_s=limit,
            )
        except Exception as e:  # noqa: BLE001  what PyTorch raises is this contender's result
            self.failures.append({"peer": peer, "variant": variant, "reason": one_line(e)})
            return None
        finally:
            self.turn.doing("", math.inf)


def _compared(request: _Request, module: Module, turn: Turn | _Here) -> Row:
    a, row, precision = request.arguments, request.row, request.precision
    data = row.data(module, a.seed)
    ways = _ways(row, module, request.ways)
    torch = gpu_torch() if ways else None
    clock = TorchClock(torch, cold=a.cold) if torch else None
    ours: list[Contender] = []
    losses: list[float] = []
    theirs: list[Contender] = []
    peers = _Peers(request, module, data, clock, turn)

    def set_up() -> None:
        for budget in request.budgets:
            ours.append(OurStep(row, module, data, compile_options(a, precision), clock, budget))
            losses.append(float(ours[-1].outputs()[0]))

    searches = a.tune == "measure"  # nothing else may use the device in the meantime
    try:
        if not searches:
            set_up()
        if a.jobs > 1 and (compiling := [w for w in ways if w[0] == "torch-compile"]):
            # Compiling is work of the host that PyTorch keeps on disk: nobody has to wait for it in the turn.
            step = peers.prepared(*compiling[0])
            if step is None:
                ways = [w for w in ways if w[0] != "torch-compile"]
            else:
                step.close()
        with turn():
            if searches:
                turn.doing(TIMING, request.left_s)
                set_up()
                turn.doing("", math.inf)
            for way in ways:
                if (step := peers.prepared(*way)) is not None:
                    theirs.append(step)
            exact = None if torch is None else exact_loss(torch, row, module, data, "cuda")
            turn.doing(TIMING, TIMING_LIMIT_S)
            timed = interleaved([*ours, *theirs], a.rounds, a.replays)
        losses += [float(c.outputs()[0]) for c in theirs]
        checks = [_check(loss, exact) for loss in losses]
        checked = zip([*ours, *theirs], checks, timed, strict=True)
        lines = [contender_row(c, check, t) for c, check, t in checked]
    finally:
        for c in (*ours, *theirs):
            c.close()
    why = _why_wrong_of(losses[: len(ours)], losses[len(ours) :], exact)
    return {
        "status": "ok" if why is None else "wrong",
        **({} if why is None else {"reason": why}),
        "ours": lines[: len(ours)],
        "peers": [*lines[len(ours) :], *peers.failures],
        **judged(lines[: len(ours)], lines[len(ours) :]),
    }


def _check(loss: float, exact: float | None) -> dict[str, float]:
    return {"first_loss": loss, **({} if exact is None else {"error": _share(loss, exact)})}


def _why_wrong_of(ours: Sequence[float], theirs: Sequence[float], exact: float | None) -> str | None:
    """Why one of our losses of the first step is wrong, the first one's reason; None where all are right."""
    for loss in ours:
        if not np.isfinite(loss):
            return f"the loss of the first step is {loss:.5g}"
        if exact is not None and (reason := why_wrong(loss, theirs, exact)) is not None:
            return reason
    return None


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
