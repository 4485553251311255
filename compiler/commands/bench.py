"""`tilewright bench`: networks and kernels beside PyTorch, interleaved, results checked first."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tilewright.budget import budget_seconds
from tilewright.ir import InputError, TilewrightError, WorkError
from tilewright.pipelines import PRECISIONS
from tilewright.targets import resolve_target
from tilewright.tools.bench.compare_kernel import compare_kernel
from tilewright.tools.bench.compare_network import Case, compare_network
from tilewright.tools.bench.comparison import Settings
from tilewright.tools.bench.document import Document
from tilewright.tools.bench.kernel_cases import KERNELS, SIZES, kernel_cases
from tilewright.tools.bench.networks import SUITES, load_network, network_paths
from tilewright.tools.bench.peers import check_peers, gpu_torch
from tilewright.tools.bench.plot import require_plot, write_plot
from tilewright.tools.bench.reference import Reference
from tilewright.tools.bench.rows import Row, one_line
from tilewright.tools.bench.table import document_text, kernel_text, row_text
from tilewright.tools.bench.waves import rows_in_waves

DEFAULT_PEERS = ("torch-eager", "torch-graph", "torch-compile")
FOLDER = "tests/data/relay"
#: whether libraries may compete, by variant of ours
LIBRARIES = {"on": {"": True}, "off": {"": False}, "both": {"": True, "no libraries": False}}


def add_bench(sub: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the command."""
    p = sub.add_parser("bench", help="time networks beside PyTorch: batches x precisions x peers")
    _add_what(p)
    _add_ours(p)
    p.add_argument("--rounds", type=int, default=10, help="rounds, all contenders in each (default 10)")
    p.add_argument("--replays", type=int, default=10, help="timed runs per round at most (default 10)")
    p.add_argument("--cold", action="store_true", help="replace what the L2 cache holds before each run")
    p.add_argument("--time-limit", type=float, default=math.inf, metavar="S", help="seconds for everything")
    p.add_argument(
        "--peer-limit", type=float, default=300.0, metavar="S", help="seconds to prepare a peer (default 300)"
    )
    p.add_argument(
        "--jobs",
        type=int,
        default=1,
        metavar="N",
        help="networks prepared at once, in processes; they are timed one by one all the same (default 1)",
    )
    p.add_argument("--seed", type=int, default=0, help="seed of the inputs")
    p.add_argument("--json", metavar="FILE", help="write all results, after every row")
    p.add_argument("--plot", metavar="FILE.svg", help="draw the ratios (needs matplotlib)")
    p.set_defaults(action=run_bench)


def _add_what(p: argparse.ArgumentParser) -> None:
    p.add_argument("networks", nargs="*", metavar="NET", help="names of networks, or files")
    p.add_argument("--suite", nargs="+", default=[], choices=tuple(SUITES), help="named groups of networks")
    p.add_argument("--folder", default=FOLDER, metavar="DIR", help=f"of named networks (default {FOLDER})")
    p.add_argument("--batch", nargs="+", type=int, default=[1], metavar="N", help="batch sizes (default 1)")
    p.add_argument("--precision", nargs="+", default=["fp32"], choices=tuple(PRECISIONS), help="default fp32")
    p.add_argument(
        "--peers",
        nargs="+",
        default=list(DEFAULT_PEERS),
        metavar="PEER",
        help="torch-eager, torch-graph, torch-compile (reduce-overhead), torch-max-autotune, or none "
        f"(default {' '.join(DEFAULT_PEERS)})",
    )
    p.add_argument(
        "--all-variants",
        action="store_true",
        help="compile peers in every variant (default: in the one that is fastest without compiling)",
    )
    p.add_argument(
        "--kernels",
        nargs="*",
        choices=KERNELS,
        metavar="KERNEL",
        help=f"time kernels alone: {', '.join(KERNELS)} (without names all of them)",
    )
    p.add_argument(
        "--sizes", nargs="+", type=int, default=list(SIZES), metavar="N", help="extents of square products"
    )


def _add_ours(p: argparse.ArgumentParser) -> None:
    p.add_argument("--target", default="auto", help="as in tilewright run (default auto)")
    p.add_argument("--tune", default="model", choices=("model", "measure"), help="default model")
    p.add_argument("--tuning-db", metavar="FILE", help="measurements that are looked up and kept")
    p.add_argument("--budget", metavar="TIME", help="how long tuning one network may take (60s, 5min)")
    p.add_argument(
        "--libraries",
        default="on",
        choices=tuple(LIBRARIES),
        help="whether library kernels may compete; both times a network with and without (default on)",
    )
    p.add_argument(
        "--no-libraries", dest="libraries", action="store_const", const="off", help="--libraries off"
    )
    p.add_argument("--streams", metavar="POLICY", help="as in tilewright run")


def run_bench(a: argparse.Namespace) -> None:
    """Compare row by row; raises WorkError at the end where a result was wrong."""
    end = time.monotonic() + a.time_limit
    _check(a)
    peers = check_peers(a.peers)
    named = a.kernels is None or a.networks or a.suite
    paths = network_paths(a.networks, a.suite, Path(a.folder)) if named else []
    cases = [] if a.kernels is None else kernel_cases(a.kernels or KERNELS, a.sizes, a.precision)
    _check_device(a, peers)
    settings = _settings(a, peers, lambda: end - time.monotonic())
    document = Document(_protocol(a, peers), a.json)
    try:
        for row in _network_rows(a, peers, paths, settings):
            document.add(row)
            print(row_text(row), flush=True)
        for case in cases:
            document.add_kernel(compare_kernel(case, settings))
            print(kernel_text(document.kernels[-1]), flush=True)
    finally:
        print(document_text(document.data()))
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
    if a.jobs > 1:
        asked = [
            _Asked(a, peers, path, batch, precision, time.time() + settings.left_s())
            for batch in a.batch
            for precision in a.precision
            for path in paths
        ]
        yield from rows_in_waves(_asked_row, asked, a.jobs, _lost_row)
        return
    for path in paths:
        module = load_network(path)
        reference = Reference(module)
        for batch in a.batch:
            for precision in a.precision:
                yield compare_network(Case(path.stem, module, batch, precision), reference, settings)


@dataclass(frozen=True)
class _Asked:
    """A row that a process of its own makes; `ends_at` is when the whole run has to end, in Unix time."""

    arguments: argparse.Namespace
    peers: tuple[str, ...]
    path: Path
    batch: int
    precision: str
    ends_at: float


def _asked_row(asked: _Asked, turn: Callable[[], AbstractContextManager[None]]) -> Row:
    settings = _settings(asked.arguments, asked.peers, lambda: asked.ends_at - time.time())
    try:
        module = load_network(asked.path)
        case = Case(asked.path.stem, module, asked.batch, asked.precision)
        return compare_network(case, Reference(module), replace(settings, turn=turn))
    except TilewrightError as e:
        return _lost_row(asked, one_line(e))


def _lost_row(asked: _Asked, reason: str) -> Row:
    row = {"network": asked.path.stem, "batch": asked.batch, "precision": asked.precision}
    return row | {"status": "failed", "reason": reason}


def _check(a: argparse.Namespace) -> None:
    counts = {"--batch": a.batch, "--sizes": a.sizes, "--rounds": [a.rounds], "--replays": [a.replays]}
    counts["--jobs"] = [a.jobs]
    for option, values in counts.items():
        if min(values) < 1:
            raise InputError(f"expected a positive number, got {min(values)}", where=option)
    for option, seconds in (("--time-limit", a.time_limit), ("--peer-limit", a.peer_limit)):
        if not seconds > 0:
            raise InputError(f"expected a positive number of seconds, got {seconds:g}", where=option)
    if budget_seconds(a.budget, where="--budget") is not None and a.tune != "measure":
        raise InputError("expected --tune measure: the model measures nothing", where="--budget")
    if a.plot:
        require_plot(a.plot)


def _check_device(a: argparse.Namespace, peers: tuple[str, ...]) -> None:
    if not peers and not a.cold:
        return
    option = "--peers" if peers else "--cold"
    if resolve_target(a.target).kind != "cuda":
        raise InputError(
            f"expected an NVIDIA GPU and --target cuda, or --peers none, got {a.target}", where=option
        )
    if gpu_torch() is None:
        raise InputError(
            "expected PyTorch that sees an NVIDIA GPU (pip install torch), or --peers none", where=option
        )


def _settings(a: argparse.Namespace, peers: tuple[str, ...], left_s: Callable[[], float]) -> Settings:
    given = {
        "target": a.target,
        "tune": a.tune,
        "tuning_db": a.tuning_db,
        "budget": a.budget,
        "streams": a.streams,
    }
    return Settings(
        ours={name: {**given, "libraries": allowed} for name, allowed in LIBRARIES[a.libraries].items()},
        peers=peers,
        rounds=a.rounds,
        replays=a.replays,
        cold=a.cold,
        peer_limit_s=a.peer_limit,
        seed=a.seed,
        left_s=left_s,
        all_variants=a.all_variants,
    )


def _protocol(a: argparse.Namespace, peers: tuple[str, ...]) -> dict[str, Any]:
    torch = gpu_torch()
    return {
        "target": str(resolve_target(a.target)),
        "device": torch.cuda.get_device_name() if torch else None,
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
    }
