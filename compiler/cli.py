"""The `tilewright` command: compile, run, tune, explain and report on networks.

Exit codes: 0 ok, 1 the work failed, 2 the input or the arguments are bad, each with one line on stderr.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

from tilewright.ir import InputError, TilewrightError
from tilewright.one_line_warnings import one_line_warnings

#: each has a module of its name with a function add_NAME
COMMANDS = (
    "compile", "run", "tune", "db", "explain", "report", "streams", "bench", "calibrate", "partition",
    "cluster",
)  # fmt: skip


def parser(commands: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """The argument parser with these commands; what others import is not loaded."""
    top = argparse.ArgumentParser(prog="tilewright", description="A deep-learning compiler.")
    sub = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in commands:
        getattr(import_module(f"tilewright.commands.{name}"), f"add_{name}")(sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises for bad input or failed work."""
    given = list(sys.argv[1:] if argv is None else argv)
    known = given[:1] if given and given[0] in COMMANDS else COMMANDS
    arguments = parser(known).parse_args(given)
    arguments.argv = given  # for commands that start themselves again
    try:
        with one_line_warnings(), _ended_by_sigterm():
            arguments.action(arguments)
    except TilewrightError as e:
        print(f"error: {_one_line(str(e))}", file=sys.stderr)
        return 2 if isinstance(e, InputError) else 1
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except KeyboardInterrupt as e:
        print(f"error: {_one_line(str(e)) or 'interrupted'}", file=sys.stderr)
        return 130
    except MemoryError:
        print("error: out of memory", file=sys.stderr)
        return 1
    except Exception as e:  # noqa: BLE001 - a fault of ours still ends in one line, and names its place
        place = traceback.extract_tb(e.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        print(f"error: internal fault at {where}: {type(e).__name__}: {_one_line(str(e))}", file=sys.stderr)
        return 1
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


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
