"""The `tilewright` command: compile, run, tune, explain and report on networks.

Exit codes: 0 ok, 1 the work failed, 2 the input or the arguments are bad, each with one line on stderr.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from tilewright.commands.bench import add_bench
from tilewright.commands.calibrate import add_calibrate
from tilewright.commands.cluster import add_cluster
from tilewright.commands.compile import add_compile
from tilewright.commands.db import add_db
from tilewright.commands.explain import add_explain
from tilewright.commands.partition import add_partition
from tilewright.commands.report import add_report
from tilewright.commands.run import add_run
from tilewright.commands.streams import add_streams
from tilewright.commands.tune import add_tune
from tilewright.ir import InputError, TilewrightError

COMMANDS: tuple[Callable[[argparse._SubParsersAction[argparse.ArgumentParser]], None], ...] = (
    add_compile,
    add_run,
    add_tune,
    add_db,
    add_explain,
    add_report,
    add_streams,
    add_bench,
    add_calibrate,
    add_partition,
    add_cluster,
)


def parser() -> argparse.ArgumentParser:
    """The argument parser with all commands."""
    top = argparse.ArgumentParser(prog="tilewright", description="A deep-learning compiler.")
    sub = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(sub)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; never raises for bad input or failed work."""
    arguments = parser().parse_args(argv)
    arguments.argv = list(sys.argv[1:] if argv is None else argv)  # for commands that start themselves again
    try:
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


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
