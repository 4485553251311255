"""Arguments of `tilewright explain`."""

from __future__ import annotations

from tilewright.tools.arguments.network import add_network_arguments, add_pass_arguments
from tilewright.tools.arguments.parsing import Sub
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
    p.add_argument("--json", action="store_true", help="print a list of kernels as JSON")
    p.set_defaults(action="commands.explain:run_explain")
