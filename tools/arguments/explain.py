"""Arguments of `tilewright explain`."""

from __future__ import annotations

from typing import get_args

from tilewright.compilation.option_values import (
    PARTITIONER,
    Layouts,
    Partitioner,
    Precision,
    Relays,
)
from tilewright.tools.arguments.network import add_network_arguments, add_pass_arguments
from tilewright.tools.arguments.parsing import CommandParser, Sub
from tilewright.tools.arguments.scope import NETWORKS, OptionScope


def add_explain(sub: Sub) -> None:
    """Register the command."""
    p = sub.add_parser(
        "explain", help="show how each kernel is cut, its performance bound and what limits it"
    )
    add_network_arguments(p, params="random")
    add_pass_arguments(p, OptionScope(NETWORKS))
    p.add_scoped(
        p,
        OptionScope(NETWORKS, without=("--pass-pipeline",)),
        "--partitioners",
        action="store_true",
        help="compare what chooses which ops share a kernel: launches and seconds by the model",
    )
    p.add_scoped(
        p,
        OptionScope(NETWORKS, without=("--pass-pipeline", "--partitioners")),
        "--train",
        metavar="OPTIMIZER",
        help="explain the training step of the network with this optimizer (sgd, adamw, ...): what each op "
        "costs in the backward pass, what is saved and what is computed again",
    )
    p.add_scoped(
        p,
        OptionScope(NETWORKS, without=("--partitioners", "--train")),
        "--vjp",
        choices=("f32", "f16", "bf16"),
        help="explain the network in training with its backward pass, without loss and optimizer: inputs, "
        "parameters, results and gradients are stored in this type",
    )
    step = OptionScope(NETWORKS, needs=("--train",))
    p.add_scoped(p, step, "--loss", default="cross_entropy", help="its loss (default cross_entropy)")
    _add_choices(p)
    p.add_scoped(
        p, step, "--memory-budget", metavar="BYTES", help="what it may take on the device, such as 8GiB"
    )
    p.add_scoped(
        p,
        OptionScope(without=("--partitioners",)),
        "--mue",
        action="store_true",
        help="show the data that every kernel moves: operator class, operations, words in and out, "
        "compulsory and moved bytes, memory usage efficiency (MUE), and sums by class",
    )
    p.add_scoped(
        p,
        OptionScope(kernels=True, without=("--partitioners", "--train", "--mue")),
        "--ledger",
        action="store_true",
        help="show where the time of every launch goes: boundary, first load, loop, tail, weights that it "
        "asks for late, and what remedies could save; measured where the device is, else by the model",
    )
    p.add_scoped(
        p,
        OptionScope(NETWORKS, without=("--partitioners", "--mue", "--ledger", "--pass-pipeline")),
        "--operators",
        action="store_true",
        help="show what every operator of the network computes, reads and writes before anything is fused",
    )
    p.add_argument("--json", action="store_true", help="print a list of kernels as JSON")
    p.set_defaults(action="commands.explain:run_explain")


def _add_choices(p: CommandParser) -> None:
    """What a compilation that is explained takes of those of `tilewright compile`."""
    p.add_scoped(
        p,
        OptionScope(NETWORKS, without=("--partitioners",)),
        "--precision",
        default="fp32",
        choices=get_args(Precision),
        help="the precision of the network or its step (default fp32)",
    )
    p.add_scoped(
        p,
        OptionScope(NETWORKS, without=("--partitioners", "--operators")),
        "--partitioner",
        default=PARTITIONER,
        choices=get_args(Partitioner),
        help=f"what chooses which ops share a kernel (default {PARTITIONER})",
    )
    p.add_scoped(
        p,
        OptionScope(NETWORKS, without=("--partitioners", "--operators")),
        "--layouts",
        default="cut",
        choices=get_args(Layouts),
        help="what chooses the order of dimensions of intermediate values (default cut); exact and sssp say "
        "what their choice costs and what proves it",
    )
    p.add_scoped(
        p,
        OptionScope(NETWORKS, without=("--partitioners", "--operators")),
        "--relays",
        default="auto",
        choices=get_args(Relays),
        help="whether a launch may start while the one before it runs (default auto)",
    )
