"""Arguments of `tilewright cluster plan|table|validate`."""

from __future__ import annotations

import argparse
from typing import Any, get_args

from tilewright.compilation.option_values import (
    LEAST_WEIGHT_BYTES,
    MAX_RANKS,
    RANK_TIMEOUT_S,
    ClusterMode,
    Pick,
    Precision,
)
from tilewright.tools.arguments.network import REPEATS, SEED, add_shape_arguments
from tilewright.tools.arguments.parsing import CommandParser, Sub, seconds, whole
from tilewright.tools.arguments.scope import OptionScope
from tilewright.tools.arguments.train import LOSSES

_PLOT = "draw a picture (.png or .svg; needs matplotlib)"
_TRAINING = OptionScope(without=("--devices",))
_HERE = OptionScope(needs=("--devices",))


def add_cluster(sub: Sub) -> None:
    """Register the command and its actions."""
    p = sub.add_parser("cluster", help="model training on many devices: plan, table, validate")
    actions = p.add_subparsers(dest="cluster_action", required=True, metavar="ACTION")
    _add_plan(actions)
    table = actions.add_parser("table", help="the normalised times of the BigCuts thesis, table 5.6")
    table.add_argument(
        "--json",
        action="store_true",
        help="print a list of {model, cluster, schedule, dp, wp, p, normalized}",
    )
    table.set_defaults(action="commands.cluster:run_table")
    validate = actions.add_parser("validate", help="errors against measured training steps, per source")
    validate.add_argument("--refit", action="store_true", help="fit all knobs again first (some seconds)")
    validate.add_argument("--json", action="store_true", help="print sources, stacks and errors as JSON")
    validate.add_argument("--plot", metavar="FILE", help=f"{_PLOT}: predicted against measured seconds")
    validate.set_defaults(action="commands.cluster:run_validate")


def _add_plan(sub: Sub) -> None:
    plan = sub.add_parser("plan", help="the fastest ways to divide a model over a cluster")
    plan.add_argument("--cluster", metavar="FILE|NAME", help="TOML file or shipped record")
    plan.add_argument(
        "--model", required=True, metavar="FILE|NAME|NET", help="TOML file, shipped record, or a network"
    )
    plan.add_scoped(
        plan,
        _TRAINING,
        "--inputs",
        metavar="NAME,...",
        help="of a network: the parameters that carry samples (Relay: the first and integer ones)",
    )
    add_shape_arguments(plan, OptionScope())
    plan.add_scoped(plan, _TRAINING, "--training", metavar="FILE|NAME", help="TOML file or shipped record")
    plan.add_argument(
        "--mode", default="corrected", help=f"{', '.join(get_args(ClusterMode))} (default corrected)"
    )
    plan.add_scoped(
        plan,
        _TRAINING,
        "--stack",
        metavar="NAME",
        help="price schedule IM with knobs fitted to the measured steps of a software stack (those that "
        "`tilewright cluster validate` lists)",
    )
    plan.add_scoped(
        plan,
        _TRAINING,
        "--top",
        type=whole(1, 10**6),
        default=10,
        metavar="K",
        help="configurations shown (default 10)",
    )
    plan.add_argument("--json", action="store_true", help="print the configurations as JSON")
    plan.add_argument(
        "--plot", metavar="FILE", help=f"{_PLOT}: seconds by component, memory against capacity"
    )
    _add_execution_arguments(plan)
    plan.set_defaults(action="commands.cluster:run_plan")


def _add_execution_arguments(p: CommandParser) -> None:
    """The arguments of a plan for a few devices of one machine."""
    g = p.add_argument_group(
        "one inference, or training step, on a few devices of this machine (with --devices; --model is a "
        "network)"
    )

    def add(*flags: str, **options: Any) -> None:
        p.add_scoped(g, _HERE, *flags, **options)

    g.add_argument("--devices", type=whole(1, MAX_RANKS), metavar="N", help="how many: each is one process")
    add(
        "--measure-here",
        action="store_true",
        help="start N processes and measure compute, links and storage instead of reading --cluster",
    )
    add(
        "--part-sizes",
        type=whole(0, 64),
        default=4,
        metavar="N",
        help="how many smaller batches may be measured too, those of plans that may be fastest (default 4)",
    )
    measured = OptionScope(needs=("--measure-here",))
    p.add_scoped(g, measured, "--record", metavar="FILE.toml", help="write what was measured, for --cluster")
    p.add_scoped(
        g, measured, "--memory", metavar="SIZE", help="memory of each device when measuring (default: all)"
    )
    storage = OptionScope(needs=("--measure-here", "--memory-cap"))
    p.add_scoped(
        g, storage, "--storage", metavar="FOLDER", help="what storage is measured (default: temporary files)"
    )
    add("--execute", action="store_true", help="run the plan, compare predicted and measured times")
    add("--batch", type=whole(1, 1 << 20), metavar="B", help="samples of one run (default: the network's)")
    for name, what in (
        ("dp", "replicas that share the batch"),
        ("tp", "parts of every weight (tensor parallelism)"),
        ("p", "pipeline stages"),
        ("micro-batches", "parts of a replica's samples, one after another through the stages"),
    ):
        add(
            f"--{name}",
            *(["--wp"] if name == "tp" else []),
            type=whole(0, 1 << 20),
            default=0,
            metavar="N",
            help=f"{what} (default 0: searched)",
        )
    _add_step_arguments(p, g)
    g.add_argument("--as-rank", action="store_true", help=argparse.SUPPRESS)
    _add_compilation_arguments(p, g)


def _add_step_arguments(p: CommandParser, g: argparse._ArgumentGroup) -> None:
    """Add the arguments of a training step in place of an inference."""
    p.add_scoped(
        g,
        _HERE,
        "--train",
        metavar="OPTIMIZER",
        help="plan the training step of the network with this optimizer (sgd, adamw, ...)",
    )
    step = OptionScope(needs=("--train",))
    p.add_scoped(
        g, step, "--loss", default="cross_entropy", choices=LOSSES, help="of the step (default cross_entropy)"
    )
    p.add_scoped(
        g, step, "--zero", type=whole(0, 1), metavar="0|1", help="ZeRO-1 of replicas (default: searched)"
    )
    p.add_scoped(
        g,
        step,
        "--memory-cap",
        metavar="SIZE",
        help="with --devices 1: state stays on storage (--storage) and streams through so much device memory",
    )


def _add_compilation_arguments(p: CommandParser, g: argparse._ArgumentGroup) -> None:
    """Add the arguments that say how the network of such a plan is compiled and timed."""

    def add(*flags: str, **options: Any) -> None:
        p.add_scoped(g, _HERE, *flags, **options)

    add("--target", default="auto", help="auto, cuda or opencl (default auto)")
    add("--precision", default="fp32", choices=get_args(Precision), help="default fp32")
    add(
        "--min-weight",
        default=str(LEAST_WEIGHT_BYTES),
        metavar="SIZE",
        help=f"smaller weights are not divided (default {LEAST_WEIGHT_BYTES >> 10}KiB)",
    )
    add("--repeats", type=REPEATS, default=10, help="timed runs (default 10)")
    add(
        "--pick",
        default="median",
        choices=get_args(Pick),
        help="which of the timed runs counts; the fastest where other work disturbs (default median)",
    )
    add("--seed", type=SEED, default=0, help="seed of random weights and inputs")
    add(
        "--timeout",
        type=seconds,
        metavar="SECONDS",
        help=f"how long each wait for another process may take (default {RANK_TIMEOUT_S:g})",
    )
