"""Fits a software stack's knobs to measured steps: robust least squares on log time, physically bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def held_out_errors(
    sources: Sequence[MeasuredRows], free: Sequence[str], base: Knobs, fold: str
) -> dict[str, Array]:
    """Per source the relative errors (predicted / measured - 1) of every row, its fold left out of the fit.

    The fit that predicts a fold has seen the rest of its source and the other sources whole. `fold` is a key
    of FOLDS. A source whose fold leaves nothing to fit to is not in the result.
    """
    errors: dict[str, Array] = {}
    for rows in sources:
        labels = np.array(FOLDS[fold](rows))
        others = [r for r in sources if r is not rows]
        if not others and len(set(labels)) == 1:
            continue
        found = np.empty(len(labels))
        for label in dict.fromkeys(labels):
            seen = labels != label
            remaining = [rows.subset(seen)] if seen.any() else []
            knobs = fit_knobs([*remaining, *others], free, base)
            found[~seen] = np.exp(log_errors(rows.subset(~seen), knobs)) - 1.0
        errors[rows.source] = found
    return errors


def _random_fifths(rows: MeasuredRows) -> list[str]:
    return [str(n) for n in np.random.default_rng(0).permutation(len(rows.models)) % 5]


#: what is left out at once: a random fifth of the rows, a model, or the whole source
FOLDS: Mapping[str, Callable[[MeasuredRows], Sequence[str]]] = {
    "random": _random_fifths,
    "model": lambda rows: rows.models,
    "source": lambda rows: [rows.source] * len(rows.models),
}


def _robust(errors: Array) -> Array:
    """Residuals whose squares are the pseudo-Huber loss: quadratic below `_OUTLIER`, linear far above."""
    loss = 2.0 * _OUTLIER**2 * (np.sqrt(1.0 + (errors / _OUTLIER) ** 2) - 1.0)
    return np.sign(errors) * np.sqrt(loss)
