"""Arguments of `tilewright calibrate`."""

from __future__ import annotations

from tilewright.tools.arguments.parsing import Sub
from tilewright.tools.arguments.scope import OptionScope


def add_calibrate(sub: Sub) -> None:
    """Register the command."""
    p = sub.add_parser("calibrate", help="measure the device's constants, which bounds and estimates use")
    p.add_argument(
        "--target", default="auto", help="cuda or opencl (default auto: cuda where there is a GPU)"
    )
    p.add_scoped(
        p,
        OptionScope(without=("--show",)),
        "--output",
        metavar="FILE",
        help="write the calibration to FILE, and not to where compilations find it",
    )
    p.add_argument("--json", action="store_true", help="print the result as JSON")
    p.add_argument(
        "--show", action="store_true", help="measure nothing; show the record that compilations use"
    )
    p.set_defaults(action="commands.calibrate:run_calibrate")
