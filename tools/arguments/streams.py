"""Arguments of `tilewright streams`."""

from __future__ import annotations

from tilewright.tools.arguments.parsing import Sub
from tilewright.tools.arguments.scope import OptionScope


def add_streams(sub: Sub) -> None:
    """Register the command."""
    p = sub.add_parser("streams", help="plan streams and synchronisations for a graph")
    p.add_argument(
        "graph",
        metavar="GRAPH.json",
        help='a file like {"n": 3, "edges": [[0, 1], [0, 2]]}, with optional "costs" (time of each node '
        'alone), "resources" (share of the device each occupies, 0 to 1) and "sync_cost"',
    )
    p.add_argument(
        "--policy",
        default="exact",
        help="exact, serial, nimble, nimble-code, ios, resource, limited(K), auto (default exact: most "
        "concurrency, then fewest synchronisations and streams); auto: the fastest by the model of replay",
    )
    p.add_argument("--json", action="store_true", help='print {"streams": [...], "syncs": [[u, v], ...]}')
    p.add_scoped(
        p,
        OptionScope(needs=("--json",)),
        "--order",
        action="store_true",
        help='add the launch order as "order"',
    )
    p.set_defaults(action="commands.streams:run_streams")
