"""`python -m tilewright.tools.fuzz --seconds 1800`: random graphs, compiled and compared, for that long.

A finding is made small and kept with its inputs in the folder of `--keep`. The exit code is 1 where there
is one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from tilewright.tools.conformance.case import FAILED, PASSED, Result
from tilewright.tools.fuzz.campaign import fuzz, keep
from tilewright.tools.fuzz.check import fails
from tilewright.tools.fuzz.generate import generate
from tilewright.tools.fuzz.shrink import shrink


def main(argv: Sequence[str] | None = None) -> int:
    """Run, keep what fails, print how many graphs were compared."""
    p = argparse.ArgumentParser(prog="python -m tilewright.tools.fuzz", description=__doc__)
    p.add_argument("--seconds", type=float, default=120, help="how long to draw new graphs (default 120)")
    p.add_argument("--target", default="opencl", help="of the compiler, or `tensor` (default opencl)")
    p.add_argument("--seed", type=int, default=0, help="number of the first graph (default 0)")
    p.add_argument("--ops", type=int, default=12, help="most ops of a graph (default 12)")
    p.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="processes (default: 4)")
    p.add_argument("--keep", type=Path, metavar="DIR", help="where findings are written")
    a = p.parse_args(argv)
    passed, failures = 0, []
    with tqdm(unit="graph", disable=not sys.stderr.isatty()) as bar:
        for result in fuzz(a.target, a.seed, a.ops, a.seconds, a.jobs):
            bar.update()
            passed += result.status == PASSED
            if result.status == FAILED:
                failures.append(result)
                tqdm.write(_report(result, a.target, a.ops, a.keep))
    print(f"{passed + len(failures)} graphs on {a.target} from seed {a.seed}: {len(failures)} findings")
    return 1 if failures else 0


def _report(result: Result, target: str, ops: int, folder: Path | None) -> str:
    text = f"seed {result.name}: {result.reason}"
    if folder is None:
        return text
    program = generate(int(result.name), ops)
    module, inputs = program.module(), program.inputs
    kind = result.reason.partition(":")[0]
    if "process died" not in result.reason:
        module, inputs = shrink(module, inputs, partial(fails, target, kind))
    return f"{text}\n  kept as {keep(folder, f'seed_{result.name}', module, inputs, result.reason)}"


if __name__ == "__main__":
    sys.exit(main())
