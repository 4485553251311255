"""The arguments of `irdump`, and which of them go together. Nothing heavy is imported to read them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

from tilewright import __version__
from tilewright.compilation.option_values import (
    PARTITIONER,
    ConvAlgorithm,
    Layouts,
    Partitioner,
    Precision,
    Relays,
    Workspace,
)
from tilewright.tools.arguments.network import SEED
from tilewright.tools.arguments.parsing import CommandParser

#: what the command does, as its help says
DESCRIPTION = """`irdump`: reads IR or a Relay network, runs passes on it, and shows what they do.

The resulting module, plan or kernel source goes to stdout or `-o`; what passes did on the way goes to stderr.
Exit codes: 0 ok, 1 the work failed, 2 the input or the arguments are bad, each with one line on stderr.
"""

LEVELS = ("graph", "tensor", "thread", "plan", "source")
#: options that choose among the default passes, by what `tilewright.compile` calls them
LOWERING = (
    "precision",
    "conv_algorithm",
    "workspace",
    "partitioner",
    "layouts",
    "relays",
)

_EPILOG = """\
examples:
  irdump net.relay --level tensor              the tensor level after the default passes
  irdump net.ir --pass-pipeline 'cse, dce' --diff
  irdump net.relay --level source --target cuda:sm_90a
  irdump net.relay --level plan --streams exact    kernels, streams, dependencies, memory
  irdump net.relay --html steps.html           a page that steps through the default passes
  irdump failing.ir                            rerun a reproducer: its first lines name the pipeline
"""


def parser() -> CommandParser:
    """The argument parser."""
    p = CommandParser(
        prog="irdump", description=DESCRIPTION, epilog=_EPILOG, formatter_class=argparse.RawTextHelpFormatter
    )
    add = p.add_argument
    add("--version", action="version", version=f"irdump {__version__}")
    add(
        "file",
        nargs="?",
        metavar="FILE",
        help="our IR (.ir), Relay text (.relay) or JSON (.json), .onnx, .pt2; - is stdin",
    )
    what = p.add_argument_group("what to run").add_mutually_exclusive_group()
    what.add_argument(
        "--pass-pipeline", metavar="TEXT", help="passes to run, as in 'cse, fuse{limit=2}, dce'"
    )
    what.add_argument("--level", choices=LEVELS,
                      help="run the default passes down to this level; plan: compile, and show the execution "
                      "plan; source: show the text of the kernels")  # fmt: skip
    add("--target", metavar="NAME", help="cuda, cuda:sm_90a, opencl (the default), ...")
    add("--import", dest="imports", action="append", default=[], metavar="FILE_OR_MODULE",
        help="Python code that registers further passes; may be repeated")  # fmt: skip
    add("--verify-each", action="store_true", help="verify the module after every pass")
    relay = p.add_argument_group("networks")
    relay.add_argument("--params", metavar="FILE|random", help="values of the parameters (Relay)")
    relay.add_argument("--inputs", metavar="A,B", help="parameters that stay inputs (Relay)")
    relay.add_argument("--seed", type=SEED, default=0, metavar="N", help="seed of random parameters (Relay)")
    relay.add_argument("--shape", action="append", default=[], metavar="X=1,3,224,224",
        help="extents of an ONNX file's input or symbolic dimension; may be repeated")  # fmt: skip
    relay.add_argument("--training-mode", action="store_true",
        help="take the network that an exported program (.pt2) in training mode trains")  # fmt: skip
    relay.add_argument("--constant", action="append", default=[], metavar="NAME=V,...",
        help="fix an input of an ONNX file to a value; may be repeated")  # fmt: skip
    _add_choices(p)
    show = p.add_argument_group("what to show")
    show.add_argument("--print-after", action="append", default=[], metavar="PATTERN",
                      help="print the module after these passes (with * and ?); may be repeated")  # fmt: skip
    show.add_argument("--print-after-all", action="store_true", help="print the module after every pass")
    show.add_argument("--diff", action="store_true", help="print what each pass changed")
    show.add_argument("--timing", action="store_true", help="print the time each pass took")
    show.add_argument("--no-locations", action="store_true", help="leave out where ops came from")
    show.add_argument("--list-passes", action="store_true", help="list all passes")
    show.add_argument("--list-ops", action="store_true", help="list all ops")
    show.add_argument("--json", action="store_true",
                      help="lists and timing as JSON on stdout, in place of the module")  # fmt: skip
    out = p.add_argument_group("where to write")
    out.add_argument("-o", "--output", metavar="OUT", help="write the module here instead of stdout")
    out.add_argument(
        "--html",
        metavar="OUT",
        help="write a page that steps through the passes; where none are named, through the default ones and "
        "to the plan",
    )
    out.add_argument("--dump-dir", metavar="DIR", help="write the module after each pass into this folder")
    return p


def _add_choices(p: CommandParser) -> None:
    """Options of `tilewright compile` that change what the default passes decide."""
    choices = p.add_argument_group("what the default passes decide")
    choices.add_argument("--precision", choices=get_args(Precision), default="fp32",
                         help="storage and products (default fp32)")  # fmt: skip
    choices.add_argument("--conv-algorithm", choices=get_args(ConvAlgorithm), default="auto",
                         help="how convolutions are computed (default auto: by the model)")  # fmt: skip
    choices.add_argument("--workspace", choices=get_args(Workspace), default="network",
                         help="memory that chosen algorithms may take (default network)")  # fmt: skip
    choices.add_argument("--partitioner", choices=get_args(Partitioner), default=PARTITIONER,
                         help=f"what chooses which ops share a kernel (default {PARTITIONER})")  # fmt: skip
    choices.add_argument("--layouts", choices=get_args(Layouts), default="cut",
                         help="what chooses the order of dimensions of values (default cut)")  # fmt: skip
    choices.add_argument("--relays", choices=get_args(Relays), default="auto",
                         help="which launches start while those before them run (default auto)")  # fmt: skip
    choices.add_argument("--streams", metavar="POLICY", default="model",
                         help="which launches run side by side, with --level plan or --html: model "
                         "(default), auto (measured), serial, exact, ios, limited(K), ...")  # fmt: skip


def parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments of a call; ends the process with code 2 where they do not go together."""
    p = parser()
    arguments = p.parse_args(argv)
    listing = arguments.list_passes or arguments.list_ops
    if not listing and arguments.file is None:
        p.error("expected a FILE, or - for stdin")
    if arguments.json and not (listing or arguments.timing):
        p.error("--json goes with --timing, --list-passes or --list-ops")
    whole = arguments.html is not None and arguments.level is None
    if "streams" in arguments.given and arguments.level != "plan" and not whole:
        p.error("--streams goes with --level plan or --html")
    for name in LOWERING:
        if name in arguments.given and arguments.level is None and arguments.html is None:
            p.error(f"--{name.replace('_', '-')} goes with --level or --html")
    return arguments
