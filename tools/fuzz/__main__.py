"""`python -m tilewright.tools.fuzz --seconds 1800`: random graphs, compiled and compared, for that long.

A finding is made small and kept with its inputs in the folder of `--keep`. The exit code is 1 where there
is one.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from tilewright.ir import Constants, Module, parse, show
from tilewright.ir.types import storage_dtype
from tilewright.tools.conformance.case import FAILED, PASSED, Result, Suite
from tilewright.tools.conformance.workers import run_all
from tilewright.tools.fuzz.check import check, fails
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


def keep(folder: Path, name: str, module: Module, inputs: Sequence[np.ndarray], finding: str) -> Path:
    """Write NAME.ir and NAME.npz; returns the path of the text. bfloat16 is stored as its bits."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {f"in{i}": a for i, a in enumerate(inputs)} | {
        f"const.{k}": v for k, v in module.constants.items()
    }
    bits: dict[str, Any] = {
        k: a.view(np.uint16) if a.dtype == storage_dtype("bf16") else a for k, a in arrays.items()
    }
    np.savez_compressed(folder / f"{name}.npz", **bits)
    path = folder / f"{name}.ir"
    path.write_text(f"# {finding}\n{show(module)}", encoding="utf-8")
    return path


def kept(path: Path) -> tuple[Module, list[np.ndarray]]:
    """The module and the inputs of a kept case."""
    module = parse(path.read_text(encoding="utf-8"), where=str(path))
    types = {op["name"]: op.result.tensor for op in module.main.body.ops if op.name == "graph.constant"}
    with np.load(path.with_suffix(".npz")) as stored:
        constants = {str(n): _typed(stored[f"const.{n}"], t.dtype) for n, t in types.items()}
        inputs = [_typed(stored[f"in{i}"], p.tensor.dtype) for i, p in enumerate(module.main.params)]
    return module.with_constants(Constants(constants)), inputs


def _typed(array: np.ndarray, dtype: str) -> np.ndarray:
    return array.view(storage_dtype("bf16")) if dtype == "bf16" else array


BATCH = 200


def fuzz(target: str, seed: int, ops: int, seconds: float, jobs: int) -> Iterator[Result]:
    """Results of the graphs seed, seed + 1, ... until `seconds` have passed."""
    end = time.monotonic() + seconds
    opened = partial(open_suite, ops)
    for start in itertools.count(seed, BATCH):
        for result in run_all(opened, [("fuzz", str(s), target) for s in range(start, start + BATCH)], jobs):
            yield result
            if time.monotonic() > end:
                return


def open_suite(ops: int) -> list[Suite]:
    """The suite whose cases are seeds."""
    return [Suite("fuzz", (), partial(run_seed, ops))]


def run_seed(ops: int, seed: str, target: str) -> float:
    """Generate and check one graph."""
    program = generate(int(seed), ops)
    return check(program.module(), program.inputs, target)


if __name__ == "__main__":
    sys.exit(main())
