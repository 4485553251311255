"""Arguments of `tilewright run`: one device, weights on storage (`--memory-cap`), several devices."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, get_args

from tilewright.compilation.option_values import MAX_RANKS, RANK_TIMEOUT_S, TOLERANCE, DivisionMode, Transport
from tilewright.tools.arguments.network import REPEATS, add_choice_arguments, add_network_arguments
from tilewright.tools.arguments.parsing import CommandParser, Sub, seconds, whole
from tilewright.tools.arguments.scope import NETWORKS, OptionScope

_ONE_DEVICE = ("--memory-cap", "--devices", "--mode")
_ON_RANKS = ("--devices", "--mode")


def add_run(sub: Sub) -> None:
    """Register the command."""
    p = sub.add_parser("run", help="run a network or a saved executable (.tw)")
    add_choice_arguments(p)
    add_network_arguments(p, params="random", draws_inputs=True)
    p.add_argument("--input", metavar="FILE.npz", help="arrays by input name (default: seeded random)")
    p.add_argument("--output", metavar="FILE.npz", help="write the outputs as out0, out1, ...")
    p.add_scoped(
        p,
        OptionScope(NETWORKS),
        "--check",
        action="store_true",
        help=f"compare with the float64 reference (error below {TOLERANCE['fp32']:g} in fp32)",
    )
    p.add_scoped(
        p, OptionScope(kernels=True), "--repeats", type=REPEATS, default=10, help="timed runs (default 10)"
    )
    p.add_scoped(
        p,
        OptionScope(kernels=True, without=_ONE_DEVICE),
        "--trace",
        metavar="FILE.json",
        help="record a replay: print when kernels ran and how a serial plan compares, write a Perfetto trace",
    )
    p.add_argument("--json", action="store_true", help="print results as JSON")
    _add_stream_arguments(p)
    add_rank_arguments(
        p,
        "run",
        get_args(DivisionMode),
        "(default space): one inference in space, the batch, the weights, or stages of a pipeline",
    )
    p.set_defaults(action="commands.run:run_network")


def _add_stream_arguments(p: CommandParser) -> None:
    """The arguments of a run under a memory cap."""
    group = p.add_argument_group("weights on storage")
    p.add_scoped(
        group,
        OptionScope(NETWORKS, kernels=True, without=("--devices", "--mode")),
        "--memory-cap",
        metavar="SIZE",
        help="device memory to use at most, such as 2GiB: weights stay on storage and stream through it",
    )

    def add(*flags: str, **options: Any) -> None:
        p.add_scoped(group, OptionScope(needs=("--memory-cap",)), *flags, **options)

    add(
        "--micro-batches",
        type=whole(1, 1 << 20),
        metavar="N",
        help="run N inputs of the network's shape in one go (default 1)",
    )
    add(
        "--schedule",
        choices=("auto", "pr", "ar"),
        help="fetch weights once for all micro-batches (pr), or again for each (ar); default: the faster",
    )
    add(
        "--weights-folder",
        metavar="FOLDER",
        help="where the weights are written and stay (default: a temporary folder, removed at the end)",
    )
    add(
        "--host-memory",
        metavar="SIZE",
        help="host memory for values of micro-batches between steps; the rest goes to the folder",
    )
    add(
        "--gpudirect",
        action="store_const",
        const=True,
        help="storage writes straight into the GPU's memory (GPUDirect Storage, needs kvikio)",
    )


def add_rank_arguments(p: CommandParser, command: str, modes: Sequence[str], divided: str) -> None:
    """The arguments of a command on several devices; `divided` says for its help how it is."""
    group = p.add_argument_group("several devices (one process each)")
    p.add_scoped(
        group,
        OptionScope(kernels=True),
        "--devices",
        type=whole(1, MAX_RANKS),
        metavar="N",
        help=f"start N processes with mpirun and {command} the network on all of them; `mpirun -n N "
        f"tilewright {command} NET --mode MODE` does the same",
    )
    p.add_scoped(
        group,
        OptionScope(kernels=True),
        "--mode",
        choices=modes,
        help=f"how the network is divided {divided}",
    )
    p.add_scoped(
        group,
        OptionScope(NETWORKS, needs=_ON_RANKS),
        "--mode-options",
        metavar="NAME=VALUE,...",
        help="options of the pass that divides the network, such as axis=w (see irdump --list-passes)",
    )
    p.add_scoped(
        group,
        OptionScope(needs=_ON_RANKS),
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help=f"how long each wait for another process may take (default {RANK_TIMEOUT_S:g})",
    )
    p.add_scoped(
        group,
        OptionScope(needs=_ON_RANKS),
        "--transport",
        default="device",
        choices=get_args(Transport),
        help="how messages travel between GPUs: directly, with NCCL (default device), or through host memory",
    )
    group.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
