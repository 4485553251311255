"""Arguments of `tilewright tune`."""

from __future__ import annotations

from tilewright.tools.arguments.network import (
    add_lowering_arguments,
    add_measuring_arguments,
    add_network_arguments,
)
from tilewright.tools.arguments.parsing import Sub
from tilewright.tools.arguments.scope import COMPILED


def add_tune(sub: Sub) -> None:
    """Register the command."""
    p = sub.add_parser(
        "tune", help="measure candidates on the device; compiling with --tune measure uses them"
    )
    add_measuring_arguments(p, COMPILED)
    add_lowering_arguments(p)
    add_network_arguments(p, params="random")
    p.add_argument("--json", action="store_true", help="print the result as JSON")
    p.add_argument("-o", "--output", metavar="FILE", help="save the tuned executable, entries included")
    p.set_defaults(action="commands.tune:run_tune", tune="measure")
