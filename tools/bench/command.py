"""`tilewright bench`: networks and kernels beside PyTorch, interleaved, results checked first."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tilewright.devices.targets import Target, device_name, resolve_target
from tilewright.ir import InputError, TilewrightError, WorkError
from tilewright.measuring.budget import budget_seconds
from tilewright.runtime.atomic_file import write_atomically
from tilewright.tools.arguments.bench import BATCHES, KERNELS
from tilewright.tools.bench.clocks import processor_name
from tilewright.tools.bench.comparison import (
    ExactReference,
    NetworkCase,
    Settings,
    compare_kernel,
    compare_network,
)
from tilewright.tools.bench.compiled import use_compiled
from tilewright.tools.bench.document import Document
from tilewright.tools.bench.kernel_cases import kernel_cases
from tilewright.tools.bench.networks import network_paths
from tilewright.tools.bench.peers import check_peers, cpu_torch, gpu_torch
from tilewright.tools.bench.plot import require_plot, write_plot
from tilewright.tools.bench.rows import Row, one_line
from tilewright.tools.bench.side_by_side import SideBySide, Turn
from tilewright.tools.bench.table import document_text, kernel_text, row_text
from tilewright.tools.commands.network import passes_of

#: whether libraries may compete, by variant of ours
LIBRARIES = {"on": {"": True}, "off": {"": False}, "both": {"": True, "no libraries": False}}


#: the rows of networks, for how they are compared
RowsOf = Callable[[argparse.Namespace, tuple[str, ...], Settings], Iterator[Row]]


def run_bench(a: argparse.Namespace, rows_of: RowsOf | None = None) -> None:
    """Compare row by row; raises WorkError at the end where a result was wrong.

    rows_of: rows of other networks than those that `a` names by files.
    """
    end = time.monotonic() + a.time_limit
    _check(a)
    use_compiled(a)
    target = resolve_target(a.target)
    device = "cuda" if target.kind == "cuda" else "cpu"
    peers = check_peers(a.peers, device)
    named = rows_of is None and (a.kernels is None or a.networks or a.suite)
    paths = network_paths(a.networks, a.suite, Path(a.folder)) if named else []
    cases = [] if a.kernels is None else kernel_cases(a.kernels or KERNELS, a.sizes, a.precision)
    if a.only_compile:
        peers = ()
    _check_device(a, peers, device)
    settings = settings_of(a, peers, device, lambda: end - time.monotonic())
    protocol = _protocol(a, peers, target)
    document = Document(protocol, a.json)
    print(f"on {protocol['device']}", flush=True)
    try:
        for row in rows_of(a, peers, settings) if rows_of else _network_rows(a, peers, paths, settings):
            document.add(row)
            print(row_text(row), flush=True)
        for case in cases:
            document.add_kernel(compare_kernel(case, settings))
            print(kernel_text(document.kernels[-1]), flush=True)
    finally:
        text = document_text(document.data())
        print(text)
        if a.markdown:
            write_atomically(a.markdown, text + "\n")
        if a.plot:
            write_plot(document.data(), a.plot)
    wrong = [
        f"{row.get('network') or row['kernel']} in {row['precision']}: {row['reason']}"
        for row in (*document.rows, *document.kernels)
        if row["status"] == "wrong"
    ]
    if wrong:
        raise WorkError("; ".join(wrong))


def _network_rows(
    a: argparse.Namespace, peers: tuple[str, ...], paths: Sequence[Path], settings: Settings
) -> Iterator[Row]:
    batches: Sequence[int | None] = a.batch or ([None] if a.shape else BATCHES if a.suite else [1])
    options = (tuple(a.shape), tuple(a.constant))
    if apart(a, peers, settings.device):
        ends_at = time.time() + settings.left_s()
        requests = [
            _Request(NetworkCase(path, batch, precision, *options), a, peers, settings.device, ends_at)
            for batch in batches
            for precision in a.precision
            for path in paths
        ]
        way = SideBySide(_row_of_request, _lost_row, _Request.without, settings.left_s, settings.turn_s)
        yield from way.rows(requests, a.jobs)
        return
    for path in paths:
        module = NetworkCase(path, None, "fp32", *options).module()
        references = {batch: ExactReference(module, batched=batch is not None) for batch in batches}
        for batch in batches:
            for precision in a.precision:
                case = NetworkCase(path, batch, precision, *options)
                yield compare_network(case, module, references[batch], settings)


def apart(a: argparse.Namespace, peers: tuple[str, ...], device: str) -> bool:
    """Whether every row has a process of its own: where several are prepared at once, and where a peer may
    take its process with it."""
    return a.jobs > 1 or (device == "cuda" and bool(peers))


@dataclass(frozen=True)
class _Request:
    """A row that a process of its own makes; `ends_at` is when the whole run has to end, in Unix time."""

    case: NetworkCase
    arguments: argparse.Namespace
    peers: tuple[str, ...]
    device: str
    ends_at: float

    def without(self, peer: str) -> _Request:
        """The same row without a peer, given with its variant."""
        return replace(self, peers=tuple(p for p in self.peers if p != peer.partition(" ")[0]))


def _row_of_request(request: _Request, turn: Turn) -> Row:
    settings = settings_of(
        request.arguments, request.peers, request.device, lambda: request.ends_at - time.time()
    )
    try:
        module = request.case.module()
        reference = ExactReference(module, batched=request.case.batch is not None)
        own = replace(settings, turn=turn, doing=turn.doing)
        return compare_network(request.case, module, reference, own)
    except TilewrightError as e:
        return _lost_row(request, one_line(e))


def _lost_row(request: _Request, reason: str) -> Row:
    return request.case.row() | {"status": "failed", "reason": reason}


def _check(a: argparse.Namespace) -> None:
    if budget_seconds(a.budget, where="--budget") is not None and a.tune != "measure":
        raise InputError("expected --tune measure: the model measures nothing", where="--budget")
    if a.plot:
        require_plot(a.plot)


def _check_device(a: argparse.Namespace, peers: tuple[str, ...], device: str) -> None:
    if not peers and not a.cold:
        return
    if device == "cpu":
        if a.cold:
            raise InputError(f"expected an NVIDIA GPU and --target cuda, got {a.target}", where="--cold")
        missing = [name for name in ("torch", *_PACKAGES_OF.intersection(peers)) if find_spec(name) is None]
        if missing:
            raise InputError(
                f"expected {' and '.join(missing)} (pip install 'tilewright[peers]'), or --peers none",
                where="--peers",
            )
    elif gpu_torch() is None:
        raise InputError(
            "expected PyTorch that sees an NVIDIA GPU (pip install torch), or --peers none",
            where="--peers" if peers else "--cold",
        )


#: peers that are packages of their own
_PACKAGES_OF = frozenset({"onnxruntime"})


def settings_of(
    a: argparse.Namespace, peers: tuple[str, ...], device: str, left_s: Callable[[], float]
) -> Settings:
    """How rows are compared, as the arguments say."""
    options = {
        "target": a.target,
        "tune": a.tune,
        "tuning_db": a.tuning_db,
        "budget": a.budget,
        "streams": a.streams,
        **passes_of(a),
    }
    return Settings(
        ours={name: {**options, "libraries": allowed} for name, allowed in LIBRARIES[a.libraries].items()},
        peers=peers,
        rounds=a.rounds,
        replays=a.replays,
        cold=a.cold,
        peer_limit_s=a.peer_limit,
        seed=a.seed,
        left_s=left_s,
        all_variants=a.all_variants,
        device=device,
        measure=not a.only_compile,
    )


def _protocol(a: argparse.Namespace, peers: tuple[str, ...], target: Target) -> dict[str, Any]:
    torch = gpu_torch() if target.kind == "cuda" else cpu_torch() if peers else None
    device = device_name(target)
    return {
        "target": str(target),
        "device": device if target.kind == "cuda" else "; ".join(filter(None, (device, processor_name()))),
        "torch": torch.__version__ if torch else None,
        "peers": list(peers),
        "all_variants": a.all_variants,
        "l2": "cold" if a.cold else "warm",
        "rounds": a.rounds,
        "replays": a.replays,
        "tune": a.tune,
        "budget": a.budget,
        "libraries": a.libraries,
        "streams": a.streams or "default",
        "seed": a.seed,
        "compiled": a.compiled,
        "shapes": a.shape,
        "constants": a.constant,
    }
