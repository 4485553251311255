"""Arguments of `tilewright report`."""

from __future__ import annotations

from tilewright.tools.arguments.network import add_choice_arguments, add_network_arguments
from tilewright.tools.arguments.parsing import Sub, whole


def add_report(sub: Sub) -> None:
    """Register the command."""
    p = sub.add_parser("report", help="write a page: graph, roofline, times, memory, choices, generated code")
    add_choice_arguments(p)
    add_network_arguments(p, params="random", draws_inputs=True)
    p.add_argument("-o", "--output", metavar="FILE", required=True, help="where to write the page (.html)")
    p.add_argument(
        "--repeats",
        type=whole(0, 10**9),
        default=5,
        help="timed runs where the target's device is present; 0 takes the model's times (default 5)",
    )
    p.set_defaults(action="commands.report:run_report")
