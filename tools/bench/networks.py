"""Networks of the benchmark: named groups, names and files, batches, and inputs that stay within tables."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.ir import InputError, Module, Value
from tilewright.ir.types import array_type
from tilewright.tools.arguments.bench import SUITES

#: integer inputs that index nothing lie below this
INTEGERS_BELOW = 100


def network_paths(names: Sequence[str], suites: Sequence[str], folder: Path) -> list[Path]:
    """The files of networks given by name or path, then those of the suites, each once; raises InputError."""
    selected = [*names, *(n for suite in suites for n in SUITES[suite])]
    if not selected:
        raise InputError("expected a network or --suite, or --kernels")
    return list(dict.fromkeys(_path(name, folder) for name in selected))


def _path(name: str, folder: Path) -> Path:
    path = Path(name)
    if path.suffix:
        if not path.is_file():
            raise InputError("no such file", where=name)
        return path
    file = folder / f"{name}.relay"
    if file.is_file():
        return file
    known = sorted(p.stem for p in folder.glob("*.relay"))
    if not known:
        raise InputError(
            f"expected NAME.relay files in the folder for '{name}', found none: name another with --folder, "
            "such as tests/data/relay of a checkout, or give the networks as files",
            where=str(folder),
        )
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f", did you mean '{near[0]}'" if near else f"; known: {', '.join(known)}"
    raise InputError(f"unknown network '{name}'{hint}", where=str(folder))


def with_batch(module: Module, batch: int | None) -> Module:
    """The module with the first dimension of every input set to `batch`; as it is for None."""
    if batch is None:
        return module
    shapes = {n: t.shape for n, t in zip(module.input_names, module.input_types, strict=True)}
    batched = {n: (batch, *shape[1:]) for n, shape in shapes.items()}
    return module if batched == shapes else tw.with_input_shapes(module, batched)


def random_batch(module: Module, seed: int) -> list[np.ndarray]:
    """One array per input: standard normal, integers within every table they index, booleans.

    A larger batch begins with the samples of a smaller one.
    """
    bounds = index_bounds(module)
    arrays = []
    for number, value in enumerate(module.main.params):
        t = array_type(value.tensor)
        rng = np.random.default_rng([seed, number])
        if t.dtype == "bool":
            arrays.append(rng.integers(0, 2, t.shape).astype(bool))
        elif "int" in t.dtype:
            arrays.append(rng.integers(0, bounds.get(value, INTEGERS_BELOW), t.shape).astype(t.dtype))
        else:
            arrays.append(rng.standard_normal(t.shape, np.float32).astype(t.dtype))
    return arrays


def index_bounds(module: Module) -> dict[Value, int]:
    """Per input that is used as an index, the extent of the smallest table it selects from."""
    sources: dict[Value, set[Value]] = {p: {p} for p in module.main.params if "i" in p.tensor.dtype}
    bounds: dict[Value, int] = {}
    for op in module.main.body.ops:
        if op.name in ("graph.take", "graph.gather"):
            data, index = op.operands[:2]
            extent = data.tensor.shape[op.integer("axis") % data.tensor.rank]
            for p in sources.get(index, ()):
                bounds[p] = min(bounds.get(p, extent), extent)
            followed = op.operands[:1]
        else:
            followed = op.operands
        for result in op.results:
            if isinstance(result.tensor.dtype, str) and result.tensor.dtype.startswith("i"):
                sources[result] = set().union(*(sources.get(v, set()) for v in followed))
    return bounds
