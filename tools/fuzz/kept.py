"""Kept cases: a failing graph as text with its inputs and constants beside it; it never fails again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.ir import Constants, Module, parse, show
from tilewright.ir.types import storage_dtype


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
