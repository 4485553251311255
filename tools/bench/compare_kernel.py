"""One row of the benchmark: a kernel alone, beside PyTorch's and, where bytes bound it, beside a copy."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir import interpret
from tilewright.running.checking import relative_error
from tilewright.tools.bench.comparison import Entrants, Settings, compare
from tilewright.tools.bench.kernel_cases import KernelCase
from tilewright.tools.bench.networks import random_batch
from tilewright.tools.bench.peers import Peers
from tilewright.tools.bench.rows import Row, one_line

#: rows of the result that are compared with float64
CHECKED_ROWS = 4


@dataclass(frozen=True)
class FirstRows:
    """The first rows of a kernel's result, interpreted in float64."""

    case: KernelCase

    def error(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
        """Relative error of the first rows."""
        rows = min(CHECKED_ROWS, self.case.rows)
        module = self.case.module(rows)
        names = zip(module.input_names, inputs, strict=True)
        given = [x[:rows] if n in self.case.batched else x for n, x in names]
        (wanted,) = interpret(module, *given, precision="fp64")
        return relative_error(outputs[0][:rows], wanted)


def compare_kernel(case: KernelCase, settings: Settings) -> Row:
    """The row as plain data, as `compare_network` gives it; rates and `of_copy` where they could be taken."""
    row: Row = {"kernel": case.name, "precision": case.precision}
    if settings.left_s() <= 0:
        return row | {"status": "failed", "reason": "the time limit was over"}
    try:
        module = case.module()
        inputs = random_batch(module, settings.seed)
        told = compare(
            module,
            inputs,
            case.precision,
            FirstRows(case),
            _as_stored(case, settings),
            _entrants(case, inputs),
        )
        return _with_rates(case, row | told)
    except Exception as e:  # noqa: BLE001 - a fault is a row with a reason, the other rows go on
        return row | {"status": "failed", "reason": one_line(e)}
    finally:
        gc.collect()


def _as_stored(case: KernelCase, settings: Settings) -> Settings:
    """The module has the types of its precision: nothing is left for the compiler to convert."""
    precision = "tf32" if case.precision == "tf32" else "fp32"
    return replace(settings, ours={v: {**o, "precision": precision} for v, o in settings.ours.items()})


def _entrants(case: KernelCase, inputs: list[np.ndarray]) -> Callable[[Peers], Entrants]:
    return lambda peers: Entrants(
        peers.kernel_contenders(case.torch_call, inputs),
        peers.copies(case.moved_bytes) if not case.flops else (),
    )


def _with_rates(case: KernelCase, row: Row) -> Row:
    """Rates of everything that was timed, and the copy's time over ours."""
    for r in (*row["ours"], *row["peers"]):
        if "median_ms" in r:
            seconds = 1e-3 * r["median_ms"]
            if case.flops:
                r["tflop_per_s"] = float(f"{case.flops / seconds / 1e12:.4g}")
            else:
                r["gbyte_per_s"] = float(f"{case.moved_bytes / seconds / 1e9:.4g}")
    copies = [r["median_ms"] for r in row["peers"] if r["peer"] == "copy"]
    if copies and "median_ms" in row["ours"][0]:
        row["of_copy"] = round(copies[0] / row["ours"][0]["median_ms"], 4)
    return row
