"""Arguments of `tilewright compile`."""

from __future__ import annotations

from tilewright.tools.arguments.network import add_choice_arguments, add_network_arguments
from tilewright.tools.arguments.parsing import Sub


def add_compile(sub: Sub) -> None:
    """Register the command."""
    p = sub.add_parser("compile", help="compile a network into one file")
    add_choice_arguments(p)
    add_network_arguments(p, params=None)
    p.add_argument(
        "--shapes",
        action="append",
        metavar="NAME=N,...[; NAME=N,...]",
        help="keep a plan for these input shapes, over shared weights (repeatable, one plan each)",
    )
    p.add_argument("-o", "--output", metavar="FILE", help="where to write the executable (.tw)")
    p.add_argument("--json", action="store_true", help="print the report as JSON")
    p.set_defaults(action="commands.compile:run_compile")
