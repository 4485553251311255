"""Whole networks with seeded weights: against results stored beside them and against float64 arithmetic."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.compilation.option_values import TOLERANCE, Precision
from tilewright.frontends.relay.random_weights import random_input
from tilewright.ir import InputError
from tilewright.running.checking import relative_error
from tilewright.tools.conformance.case import Suite


def network_suite(folder: Path, precision: Precision = "fp32") -> Suite:
    """All networks (NAME.relay with ref/NAME.npz) in `folder` in one precision."""
    names = tuple(
        sorted(p.stem for p in folder.glob("*.relay") if (folder / "ref" / f"{p.stem}.npz").exists())
    )
    if not names:
        raise InputError("expected networks NAME.relay with ref/NAME.npz, found none", where=str(folder))
    title = "networks" if precision == "fp32" else f"networks {precision}"
    return Suite(title, names, partial(_run, folder, precision))


def _run(folder: Path, precision: Precision, name: str, target: str) -> float:
    """Error against float64; raises InputError where it, or that against the stored results, is too large."""
    with np.load(folder / "ref" / f"{name}.npz") as stored:
        fed = {n: (tuple(shape), dtype) for n, (shape, dtype) in json.loads(str(stored["inputs"])).items()}
        module = tw.frontends.relay.load(
            str(folder / f"{name}.relay"), params="random", inputs=tuple(fed), seed=0
        )
        inputs = [random_input(n, *fed[n], 0) for n in module.input_names]
        with tw.compile(module, target=target, precision=precision, progress=False) as exe:
            got = exe(*inputs)
        limit = TOLERANCE[precision]
        for i, result in enumerate(got):
            wanted = stored[f"out{i}"].reshape(-1)
            stride = f"stride_out{i}"
            flat = result.reshape(-1)[:: int(stored[stride]) if stride in stored.files else 1]
            error = relative_error(flat, wanted)
            if not error <= limit:
                raise InputError(
                    f"relative error {error:.3g} against TVM is above {limit:g}", where=f"result {i}"
                )
    exact = tw.interpret(module, *inputs, precision="fp64")
    error = max(relative_error(g, e) for g, e in zip(got, exact, strict=True))
    if not error <= limit:
        raise InputError(f"relative error {error:.3g} against float64 is above {limit:g}")
    return error
