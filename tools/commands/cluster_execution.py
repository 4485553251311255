"""`tilewright cluster plan --devices N`: plan one inference on a few devices, measure them, execute it."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tilewright.cluster.execution import Options, plan_network
from tilewright.cluster.execution_report import report_text
from tilewright.cluster.execution_search import Wanted
from tilewright.cluster.work import with_batch
from tilewright.compilation.option_values import TOLERANCE
from tilewright.distributed.launcher import launch_command
from tilewright.distributed.result_output import keep_output_for_results
from tilewright.ir import InputError, Module, WorkError
from tilewright.running.rank_executable import together, world
from tilewright.runtime.communication.mpi_world import started_by_mpi
from tilewright.streaming.memory_size import memory_bytes
from tilewright.tools.arguments.scope import ZOO
from tilewright.tools.cluster_plots import require_plot
from tilewright.tools.commands.cluster_execution_plot import write_execution_plot
from tilewright.tools.commands.network import BUNDLED, read_network

_NETWORKS = (".relay", ".json", ".ir", *BUNDLED)


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
        launch_command(a.devices, a.argv)


def _options(a: argparse.Namespace) -> Options:
    """Check what can be checked before processes start."""
    if a.mode != "corrected":
        raise InputError(f"a plan with --devices is priced by mode corrected, got {a.mode}", where="--mode")
    if bool(a.cluster) == bool(a.measure_here):
        raise InputError("expected a record (--cluster) or --measure-here, one of them", where="--cluster")
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
    module = read_network(a.model, params="random", seed=a.seed, shapes=a.shape, constants=a.constant)
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
