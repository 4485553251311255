"""Arguments of `tilewright partition count|search|network`."""

from __future__ import annotations

from typing import get_args

from tilewright.compilation.option_values import MAX_RANKS, DivisionMode
from tilewright.tools.arguments.network import add_network_arguments
from tilewright.tools.arguments.parsing import CommandParser, Sub, whole

MAX_ROWS = 1 << 16
MAX_DEVICES = 4096
METHODS = ("exact", "pruned")


def add_partition(sub: Sub) -> None:
    """Register the command and its subcommands."""
    p = sub.add_parser("partition", help="cut one inference over several devices")
    actions = p.add_subparsers(dest="partition_command", required=True, metavar="ACTION")
    _add_count(actions)
    _add_search(actions)
    _add_network(actions)


def _add_count(sub: Sub) -> None:
    p = sub.add_parser("count", help="count the partitions of one layer's rows")
    _add_space(p)
    p.set_defaults(action="commands.partition:run_count")


def _add_search(sub: Sub) -> None:
    p = sub.add_parser("search", help="find the partition of least objective")
    _add_space(p)
    p.add_argument(
        "--next",
        metavar="K,S,P",
        help="kernel, stride and padding of the next layer, cut evenly by the speeds (default: none follows)",
    )
    p.add_argument("--method", choices=METHODS, default="exact", help="default exact; pruned: as the thesis")
    p.add_argument(
        "--weights",
        metavar="A,B,C,D",
        default="1,1,1,1",
        help="of slowest device, fetched rows, cropped rows, imbalance (default 1,1,1,1)",
    )
    p.add_argument("--corrected", action="store_true", help="imbalance against the unweighted maximum")
    p.set_defaults(action="commands.partition:run_search")


def _add_network(sub: Sub) -> None:
    p = sub.add_parser("network", help="show what every device runs of a network")
    add_network_arguments(p, params="random", draws_inputs=True)
    p.add_argument(
        "--devices", type=whole(1, MAX_RANKS), required=True, metavar="N", help="how many devices share it"
    )
    p.add_argument(
        "--mode", choices=get_args(DivisionMode), default="space", help="what is divided (default space)"
    )
    p.add_argument(
        "--mode-options", metavar="NAME=VALUE,...", default="", help="options of the pass, such as axis=w"
    )
    p.add_argument("-o", "--output", metavar="FOLDER", help="write rank0.ir, rank1.ir, ... there")
    p.add_argument(
        "--check", action="store_true", help="interpret all devices together and compare, in float64"
    )
    p.add_argument("--json", action="store_true", help="print the result as JSON")
    p.set_defaults(action="commands.partition:run_network_partition")


def _add_space(p: CommandParser) -> None:
    p.add_argument(
        "--output", type=whole(1, MAX_ROWS), required=True, metavar="W", help="rows of the layer's output"
    )
    p.add_argument(
        "--devices",
        type=whole(1, MAX_DEVICES),
        required=True,
        metavar="N",
        help="how many devices share them",
    )
    p.add_argument(
        "--threshold",
        default="5",
        metavar="T",
        help="percent that a device's rows may differ from its even share (default 5)",
    )
    p.add_argument("--speeds", metavar="V,...", help="relative speed of every device (default: all equal)")
    p.add_argument("--max-rows", metavar="R,...", help="most rows that every device has memory for")
    p.add_argument("--no-overlap", action="store_true", help="no row may be made by two devices")
    p.add_argument("--json", action="store_true", help="print the result as JSON")
