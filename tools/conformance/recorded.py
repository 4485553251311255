"""Operator cases recorded from TVM: a module as Relay text and its inputs and outputs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.ir import InputError
from tilewright.tools.conformance.case import Suite, compare


def recorded_suite(folder: Path) -> Suite:
    """All cases (NAME.relay with NAME.npz) in `folder`; raises InputError where there are none."""
    names = tuple(sorted(p.stem for p in folder.glob("*.relay")))
    if not names:
        raise InputError("expected recorded cases NAME.relay with NAME.npz, found none", where=str(folder))
    return Suite("operators", names, partial(_run, folder))


def _run(folder: Path, name: str, target: str) -> float:
    module = tw.frontends.relay.load(str(folder / f"{name}.relay"))
    inputs, wanted = arrays(folder / f"{name}.npz")
    with tw.compile(module, target=target, progress=False) as exe:
        # TVM converts what it is fed to the declared type, and some of its tests rely on that
        fed = [x.astype(t.dtype) for x, t in zip(inputs, exe.input_types, strict=True)]
        got = exe(*fed)
    if name.startswith("unique_"):
        got, wanted = (_distinct(results) for results in (got, wanted))
    return compare(got, wanted)


def _distinct(results: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What `unique` defines: beyond the number of distinct elements TVM leaves memory as it was."""
    elements, indices, inverse, number, *counts = results
    n = int(number[0])
    return [elements[:n], indices[:n], inverse, number, *(c[:n] for c in counts)]


def arrays(path: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs and outputs of a recorded case: `in0`, `in1`, ..., `out0`, ..."""
    with np.load(path) as stored:
        return _numbered(stored, "in"), _numbered(stored, "out")


def _numbered(stored: np.lib.npyio.NpzFile, prefix: str) -> list[np.ndarray]:
    count = sum(k.startswith(prefix) for k in stored.files)
    return [stored[f"{prefix}{i}"] for i in range(count)]
