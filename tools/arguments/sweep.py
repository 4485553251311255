"""Arguments of `tilewright sweep`."""

from __future__ import annotations

from tilewright.tools.arguments.network import add_network_arguments
from tilewright.tools.arguments.parsing import Sub


def add_sweep(sub: Sub) -> None:
    """Register the command."""
    p = sub.add_parser(
        "sweep", help="price every order of dimensions and every knob of the kernels of a layer, and choose"
    )
    add_network_arguments(p, params="random")
    p.add_argument(
        "--kernels",
        default="operators",
        choices=("operators", "ops", "published"),
        help="what one kernel is: an operator of the network (the ops of one location, the default), each "
        "op, or a kernel of the paper (of zoo:encoder_dataflow)",
    )
    p.add_argument(
        "--dtype", default="f16", choices=("f16", "bf16", "f32"), help="how tensors are stored (default f16)"
    )
    p.add_argument("--plot", metavar="FILE", help="draw the distributions as violins (.png or .svg)")
    p.add_argument("--json", action="store_true", help="print the sweep and the selection as JSON")
    p.set_defaults(action="commands.sweep:run_sweep")
