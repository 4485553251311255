"""Graphs drawn one after another in processes of their own, and cases that are kept.

What the processes run is named by its module, so it cannot stand in `__main__.py`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.ir import Constants, Module, parse, show
from tilewright.ir.types import storage_dtype
from tilewright.tools.conformance.case import Result, Suite
from tilewright.tools.conformance.workers import run_all
from tilewright.tools.fuzz.check import check
from tilewright.tools.fuzz.generate import generate


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
