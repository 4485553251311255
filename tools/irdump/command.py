"""The command `irdump`: its errors and exit codes; the work is in `run`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from tilewright.runtime.errors import InputError
from tilewright.tools.arguments.printing import exit_code_of, one_line_warnings
from tilewright.tools.irdump.arguments import parsed


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; never raises for bad input or failed work."""
    try:
        _work(parsed(argv))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except RecursionError:
        return exit_code_of(InputError("the input is nested too deeply"), "irdump")
    except (KeyboardInterrupt, Exception) as e:  # noqa: BLE001 - a fault of ours also ends in one line
        return exit_code_of(e, "irdump")
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
