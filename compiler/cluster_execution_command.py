"""`tilewright cluster plan --devices N`: plan one inference on a few devices, measure them, execute it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, get_args

from tilewright.cluster_execution import Options, plan_network
from tilewright.cluster_execution_division import LEAST_WEIGHT_BYTES
from tilewright.cluster_execution_plot import write_execution_plot
from tilewright.cluster_execution_report import report_text
from tilewright.cluster_execution_search import Wanted
from tilewright.cluster_execution_trace import Pick
from tilewright.cluster_execution_work import with_batch
from tilewright.commands.network import BUNDLED, ZOO, load_network
from tilewright.commands.run import TOLERANCE
from tilewright.distributed.launcher import MAX_RANKS, launch
from tilewright.distributed.result_output import keep_output_for_results
from tilewright.distributed.world import together, world
from tilewright.ir import InputError, Module, WorkError
from tilewright.pipelines import PRECISIONS
from tilewright.runtime.communication.communicator import TIMEOUT_S
from tilewright.runtime.communication.mpi_world import started_by_mpi
from tilewright.streaming.memory_size import memory_bytes
from tilewright.tools.cluster_plots import require_plot

_NETWORKS = (".relay", ".json", ".ir", *BUNDLED)
#: arguments of the plan of a training, which have no meaning here
_TRAINING_ONLY = ("training", "stack", "inputs")


def add_execution_arguments(p: argparse.ArgumentParser) -> None:
    """The arguments of a plan for a few devices of one machine."""
    g = p.add_argument_group(
        "one inference on a few devices of this machine (with --devices; --model is a network)"
    )
    g.add_argument("--devices", type=int, metavar="N", help="how many: each is one process")
    g.add_argument(
        "--measure-here",
        action="store_true",
        help="start N processes and measure compute, links and storage instead of reading --cluster",
    )
    g.add_argument(
        "--part-sizes",
        type=int,
        default=4,
        metavar="N",
        help="how many smaller batches may be measured too, those of plans that may be fastest (default 4)",
    )
    g.add_argument("--record", metavar="FILE.toml", help="write what was measured, for --cluster")
    g.add_argument(
        "--execute", action="store_true", help="run the plan, compare predicted and measured times"
    )
    g.add_argument("--batch", type=int, metavar="B", help="samples of one run (default: the network's)")
    for name, what in (
        ("dp", "replicas that share the batch"),
        ("wp", "parts of every weight"),
        ("p", "pipeline stages"),
        ("micro-batches", "parts of a replica's samples, one after another through the stages"),
    ):
        g.add_argument(f"--{name}", type=int, default=0, metavar="N", help=f"{what} (default: searched)")
    g.add_argument("--target", default="auto", help="auto, cuda or opencl (default auto)")
    g.add_argument("--precision", default="fp32", choices=tuple(PRECISIONS), help="default fp32")
    g.add_argument("--memory", metavar="SIZE", help="memory of each device when measuring (default: all)")
    g.add_argument("--storage", metavar="FOLDER", help="whose storage is measured (default: temporary files)")
    g.add_argument(
        "--min-weight",
        default=str(LEAST_WEIGHT_BYTES),
        metavar="SIZE",
        help=f"smaller weights are not divided (default {LEAST_WEIGHT_BYTES >> 10}KiB)",
    )
    g.add_argument("--repeats", type=int, default=10, help="timed runs (default 10)")
    g.add_argument(
        "--pick",
        default="median",
        choices=get_args(Pick),
        help="which of the timed runs counts; the fastest where other work disturbs (default median)",
    )
    g.add_argument("--seed", type=int, default=0, help="seed of random weights and inputs")
    g.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help=f"how long each wait for another process may take (default {TIMEOUT_S:g})",
    )
    g.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)


def on_this_machine(a: argparse.Namespace) -> bool:
    """Whether the arguments ask for a plan of a few devices; raises InputError for those that need it."""
    if a.devices is not None:
        return True
    given = [
        n
        for n in ("measure_here", "execute", "record", "batch", "dp", "wp", "p", "micro_batches")
        if getattr(a, n)
    ]
    if given:
        raise InputError("expected --devices N with this option", where=f"--{given[0].replace('_', '-')}")
    return False


def plan_here(a: argparse.Namespace) -> None:
    """Plan and, where asked, measure and execute; the first rank prints.

    Raises InputError, UnsupportedError and WorkError, the last also where the result is wrong.
    """
    options = _options(a)
    if not a.execute and not a.measure_here:
        tell(a, plan_network(_network(a), _name(a), options))
    elif a.as_rank or started_by_mpi():
        _run_rank(a, options)
    else:
        code = launch(a.devices, ["-m", "tilewright.cli", *a.argv, "--as-rank"])
        if code:
            told = f"a rank of {a.devices} failed with exit code {code}; what it said stands above"
            raise InputError(told) if code == 2 else WorkError(told)


def _options(a: argparse.Namespace) -> Options:
    """Check what can be checked before processes start."""
    for name in _TRAINING_ONLY:
        if getattr(a, name):
            raise InputError(
                "a plan with --devices is of one inference and takes no such option", where=f"--{name}"
            )
    if a.mode != "corrected":
        raise InputError(f"a plan with --devices is priced by mode corrected, got {a.mode}", where="--mode")
    if bool(a.cluster) == bool(a.measure_here):
        raise InputError("expected a record (--cluster) or --measure-here, one of them", where="--cluster")
    if a.record and not a.measure_here:
        raise InputError("expected --measure-here with this option", where="--record")
    for name, least, most in (("devices", 2, MAX_RANKS), ("repeats", 1, 10**6), ("part_sizes", 0, 64)):
        value = getattr(a, name)
        if not least <= value <= most:
            raise InputError(f"expected {least} to {most}, got {value}", where=f"--{name.replace('_', '-')}")
    for name in ("dp", "wp", "p", "micro_batches", "batch"):
        value = getattr(a, name)
        if (value is not None and value < 0) or (name == "batch" and value == 0):
            raise InputError(f"expected at least 1, got {value}", where=f"--{name.replace('_', '-')}")
    if a.timeout is not None and not a.timeout > 0:
        raise InputError(f"expected more than 0 seconds, got {a.timeout:g}", where="--timeout")
    if not a.model.startswith(ZOO):
        if Path(a.model).suffix not in _NETWORKS:
            raise InputError(
                "expected a network: a plan with --devices comes from its graph", where="--model"
            )
        if not Path(a.model).exists():
            raise InputError("no such file", where=a.model)
    if a.plot:
        require_plot(a.plot)
        if not a.execute:
            raise InputError(
                "expected --execute: the picture compares predicted and measured times", where="--plot"
            )
    return Options(
        devices=a.devices,
        wanted=Wanted(a.dp, a.wp, a.p, a.micro_batches),
        record=a.cluster,
        save=a.record,
        target=a.target,
        precision=a.precision,
        memory=memory_bytes(a.memory, where="--memory") if a.memory else None,
        storage=a.storage,
        least_weight_bytes=memory_bytes(a.min_weight, where="--min-weight"),
        repeats=a.repeats,
        part_sizes=a.part_sizes,
        pick=a.pick,
        seed=a.seed,
        run=a.execute,
    )


def _network(a: argparse.Namespace) -> Module:
    """The network with random weights, for the batch that was asked for."""
    arguments = argparse.Namespace(
        network=a.model, params="random", inputs=None, shape=[], constant=[], seed=a.seed
    )
    module = load_network(arguments)
    return module if a.batch is None else with_batch(module, a.batch)


def _name(a: argparse.Namespace) -> str:
    return Path(a.model.removeprefix(ZOO).partition("{")[0]).stem


def _run_rank(a: argparse.Namespace, options: Options) -> None:
    keep_output_for_results()
    communicator = world(a.timeout)
    with together(communicator):
        if communicator.size != a.devices:
            raise InputError(
                f"expected {communicator.size}, as mpirun started, got {a.devices}", where="--devices"
            )
        facts = plan_network(_network(a), _name(a), options, communicator)
    if communicator.rank == 0:
        tell(a, facts)


def tell(a: argparse.Namespace, facts: dict[str, Any]) -> None:
    """Print and draw what was found; raises WorkError where the plan gave a wrong result."""
    if a.plot:
        write_execution_plot(facts, a.plot)
    print(json.dumps(facts, indent=1) if a.json else report_text(facts))
    for path in (a.record, a.plot):
        if path and not a.json:
            print(f"wrote {Path(path)}")
    error, limit = facts.get("execution", {}).get("relative_error", 0.0), TOLERANCE[a.precision]
    if not error <= limit:
        raise WorkError(f"the result is wrong: relative error {error:.3g} is above {limit:g}")
