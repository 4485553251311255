"""Fits a software stack's knobs to measured steps: robust least squares on log time, physically bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tilewright.costmodel.cluster.in_memory import Knobs, step_time
from tilewright.costmodel.cluster.measured_rows import MeasuredRows
from tilewright.ir.errors import InputError

Array = NDArray[np.float64]

#: lowest, first and highest value per knob; none above what the machine's own figures or measured collectives
#: allow (shares of the network and of NCCL's ring rate at most 1, products below 95 % of the peak)
BOUNDS: Mapping[str, tuple[float, float, float]] = {
    "gemm_efficiency": (0.3, 0.7, 0.95),
    "gemm_half_elements": (1e3, 1e5, 5e6),
    "memory_passes": (0.5, 6.0, 20.0),
    "network_share": (0.05, 0.7, 1.0),
    "ring_share": (0.4, 0.9, 1.0),
    "layer_floor_s": (1e-6, 1e-3, 1e-2),
    "micro_batch_s": (1e-6, 1e-3, 0.2),
    "scale": (0.5, 1.0, 2.0),
}
#: relative errors beyond this count linearly, not squared: single measured steps are off by far more
_OUTLIER = 0.05


def fit_knobs(sources: Sequence[MeasuredRows], free: Sequence[str], base: Knobs) -> Knobs:
    """`base` with the knobs named by `free` fitted to all rows; every source has the same weight.

    Raises InputError for a knob without bounds and for no rows.
    """
    unknown = [name for name in free if name not in BOUNDS]
    if unknown or not free:
        raise InputError(f"expected knobs of {', '.join(BOUNDS)}, got {', '.join(unknown) or 'none'}")
    if not sources or any(not len(rows.step_s) for rows in sources):
        raise InputError("expected measured rows of at least one source to fit to, got none")
    low, first, high = (np.log([BOUNDS[name][place] for name in free]) for place in range(3))

    def residuals(point: Array) -> Array:
        knobs = with_values(base, free, point)
        return np.concatenate(
            [_robust(log_errors(rows, knobs)) / len(rows.step_s) ** 0.5 for rows in sources]
        )

    from scipy.optimize import least_squares  # slow to load, and only fitting needs it

    found = least_squares(residuals, first, bounds=(low, high), x_scale=1.0)
    return with_values(base, free, found.x)


def with_values(base: Knobs, free: Sequence[str], logarithms: Array) -> Knobs:
    """`base` with the named knobs at the exponentials of the given numbers."""
    values = {name: float(value) for name, value in zip(free, np.exp(logarithms), strict=True)}
    return replace(base, **values)


def log_errors(rows: MeasuredRows, knobs: Knobs) -> Array:
    """log(predicted / measured) per row."""
    return np.log(step_time(rows.runs, rows.machine, knobs).total / rows.step_s)


def held_out_errors(sources: Sequence[MeasuredRows], free: Sequence[str], base: Knobs) -> dict[str, Array]:
    """Per source the relative errors (predicted / measured - 1) of every row, its model left out of the fit.

    The fit that predicts a model's rows has seen the other models of its source and the other sources whole.
    """
    errors: dict[str, Array] = {}
    for rows in sources:
        models = np.array(rows.models)
        others = [r for r in sources if r is not rows]
        errors[rows.source] = np.full(len(models), np.nan)
        for model in dict.fromkeys(rows.models):
            seen = models != model
            remaining = [rows.subset(seen)] if seen.any() else []
            knobs = fit_knobs([*remaining, *others], free, base)
            errors[rows.source][~seen] = np.exp(log_errors(rows.subset(~seen), knobs)) - 1.0
    return errors


def _robust(errors: Array) -> Array:
    """Residuals whose squares are the pseudo-Huber loss: quadratic below `_OUTLIER`, linear far above."""
    loss = 2.0 * _OUTLIER**2 * (np.sqrt(1.0 + (errors / _OUTLIER) ** 2) - 1.0)
    return np.sign(errors) * np.sqrt(loss)
