"""The `tilewright` command: compile, run, train, tune, explain and report on networks.

Exit codes: 0 ok, 1 the work failed, 2 the input or the arguments are bad, each with one line on stderr.
Only the chosen command's work is imported, and after its arguments are known to be good.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from tilewright import __version__
from tilewright.tools.arguments.parsing import CommandParser
from tilewright.tools.arguments.printing import exit_code_of, one_line_warnings

#: each has a module of its name in `tilewright.tools.arguments`, with a function add_NAME
COMMANDS = (
    "compile", "run", "train", "tune", "db", "explain", "report", "sweep", "streams", "bench", "calibrate",
    "partition", "cluster",
)  # fmt: skip


def parser(commands: Sequence[str] = COMMANDS) -> CommandParser:
    """The argument parser with these commands."""
    top = CommandParser(prog="tilewright", description="A deep-learning compiler.")
    top.add_argument("--version", action="version", version=f"tilewright {__version__}")
    sub = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in commands:
        getattr(import_module(f"tilewright.tools.arguments.{name}"), f"add_{name}")(sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises for bad input or failed work."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        known = words[:1] if words and words[0] in COMMANDS else COMMANDS
        arguments = parser(known).parse_args(words)
        arguments.argv = words  # for commands that start themselves again
        module, _, action = arguments.action.partition(":")
        with one_line_warnings(), _ended_by_sigterm():
            getattr(import_module(f"tilewright.tools.{module}"), action)(arguments)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except (KeyboardInterrupt, Exception) as e:  # noqa: BLE001 - a fault of ours also ends in one line
        return exit_code_of(e, words=words)
    return 0


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the block as an error would, so that temporary files go; a second one kills."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
