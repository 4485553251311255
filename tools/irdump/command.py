"""The command `irdump`: its errors and exit codes; the work is in `run` and `lists`."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import PurePath

from tilewright.tools.arguments.printing import one_line, one_line_warnings
from tilewright.tools.arguments.scope import ArgumentError
from tilewright.tools.irdump.arguments import parsed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; never raises for bad input or failed work."""
    try:
        _work(parsed(argv))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ArgumentError as e:
        return _told(str(e), 2)
    except KeyboardInterrupt:
        return _told("interrupted", 130)
    except Exception as e:  # noqa: BLE001 - a fault of ours still ends in one line, and names its place
        return _report(e)
    return 0


def _work(arguments: argparse.Namespace) -> None:
    """Import what the work needs, which takes a while, and do it."""
    from tilewright.passes.framework.importing import import_passes
    from tilewright.tools.irdump.run import op_list, pass_list, run

    import_passes(arguments.imports)
    if arguments.list_passes:
        print(pass_list(as_json=arguments.json))
    if arguments.list_ops:
        print(op_list(as_json=arguments.json))
    if not (arguments.list_passes or arguments.list_ops):
        with one_line_warnings("irdump"):
            run(arguments)


def _report(e: Exception) -> int:
    """One line on stderr, and the exit code."""
    from tilewright.ir.errors import InputError, TilewrightError

    if isinstance(e, TilewrightError):
        return _told(str(e), 2 if isinstance(e, InputError) else 1)
    if isinstance(e, OSError):
        return _told(f"{e.filename}: {e.strerror}" if e.filename else str(e), 2)
    if isinstance(e, MemoryError):
        return _told(f"out of memory: {e}" if str(e) else "out of memory", 1)
    if isinstance(e, RecursionError):
        return _told("the input is nested too deeply", 2)
    place = traceback.extract_tb(e.__traceback__)[-1]
    where = f"{PurePath(place.filename).name}:{place.lineno}"
    return _told(f"internal fault at {where}: {type(e).__name__}: {e}", 1)


def _told(text: str, code: int) -> int:
    print(f"irdump: error: {one_line(text)}", file=sys.stderr)
    return code
