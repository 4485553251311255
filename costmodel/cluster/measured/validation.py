"""Fits a software stack's knobs to measured steps, and compares predictions with all measured rows.

The fit is robust least squares on log time, physically bounded. Errors and rank correlation are per source
and stack.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.costmodel.cluster.inputs.loading import load_cluster
from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.costmodel.cluster.inputs.model import Transformer
from tilewright.costmodel.cluster.inputs.training import Training
from tilewright.costmodel.cluster.measured.in_memory import A_PRIORI, Knobs, Machine, step_time
from tilewright.costmodel.cluster.measured.rows import MeasuredRows, measured_rows
from tilewright.costmodel.cluster.modes.search import evaluate
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

    fit = least_squares(residuals, first, bounds=(low, high), x_scale=1.0)
    return with_values(base, free, fit.x)


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
        relative = np.empty(len(labels))
        for label in dict.fromkeys(labels):
            seen = labels != label
            remaining = [rows.subset(seen)] if seen.any() else []
            knobs = fit_knobs([*remaining, *others], free, base)
            relative[~seen] = np.exp(log_errors(rows.subset(~seen), knobs)) - 1.0
        errors[rows.source] = relative
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


def planner_seconds(rows: MeasuredRows) -> Array:
    """Seconds of the mode `corrected` per row, all in device memory (schedule IM).

    Recomputing attention only is priced as recomputing nothing, the nearest choice that mode has.
    """
    runs = rows.runs
    task = np.stack(
        [runs.layers, runs.hidden, runs.heads, runs.sequence, runs.vocabulary, runs.devices, runs.batch]
    )
    tasks, which = np.unique(task.astype(np.int64), axis=1, return_inverse=True)
    whole = (runs.recompute == 1).astype(np.float64)
    choice = [runs.data, runs.tensor, runs.pipeline, runs.micro_batch, whole, runs.sharding, runs.interleave]
    choices = np.stack(choice, axis=1).astype(np.int64)
    seconds = np.empty(len(rows.step_s))
    for number, dimensions in enumerate(tasks.T.tolist()):
        mine = np.flatnonzero(which.ravel() == number)
        *shape, devices, batch = dimensions
        seconds[mine] = _task_seconds(rows.machine, Transformer("", *shape), devices, batch, choices[mine])
    return seconds


def _task_seconds(
    machine: Machine, model: Transformer, devices: int, batch: int, choices: NDArray[np.int64]
) -> list[float]:
    """Seconds of each choice (data, tensor, pipeline, micro-batch, recompute, sharding, interleave)."""
    micro_batches, recompute, sharding, interleave = (
        sorted(set(column)) for column in choices.T[3:].tolist()
    )
    training = Training(
        "",
        batch,
        tuple(micro_batches),
        ("IM",),
        tuple(bool(r) for r in recompute),
        tuple(sharding),
        tuple(interleave),
    )
    evaluation = evaluate(_cluster(machine, devices), model, training, "corrected")
    c = evaluation.configurations
    columns = (c.dp, c.tp, c.p, c.micro_batch, c.recompute, c.sharding, c.interleave)
    places = {key: i for i, key in enumerate(zip(*(column.tolist() for column in columns), strict=True))}
    return [float(evaluation.total_s[places[tuple(choice)]]) for choice in choices.tolist()]


def _cluster(machine: Machine, devices: int) -> Cluster:
    """The shipped record of A100 nodes with as many devices, and with the network of the machine measured."""
    record = load_cluster("dgx-a100")
    per_node = min(devices, machine.devices_per_node)
    network = machine.node_network_bytes_per_s / machine.devices_per_node
    inter = replace(record.inter, bytes_per_s=network, per="device")
    return replace(record, nodes=devices // per_node, devices_per_node=per_node, inter=inter)


_STACKS = Path(__file__).parent / "stacks.toml"
_A_PRIORI = "a-priori"
#: fewer measured steps than these are not ranked among each other
_LEAST_RANKED = 3


@dataclass(frozen=True, slots=True)
class Stack:
    """The knobs of one software stack: fitted on `fitted` sources, applied unchanged to `transferred` ones.

    `free` names the knobs that were fitted; the others are those of `base`. `held_out` is, per kind of fold
    (random, model, source) and fitted source, the mean absolute error of rows left out of the fit.
    """

    name: str
    base: str
    free: tuple[str, ...]
    fitted: tuple[str, ...]
    transferred: tuple[str, ...]
    knobs: Knobs
    held_out: Mapping[str, Mapping[str, float]]

    def as_json(self) -> dict[str, Any]:
        """Plain values: the sources, what was fitted, and all knobs."""
        knobs = asdict(self.knobs)
        return {
            "name": self.name,
            "base": self.base,
            "fitted": list(self.fitted),
            "transferred": list(self.transferred),
            "fitted_knobs": {name: knobs[name] for name in self.free},
            "knobs": knobs,
            "held_out": {fold: dict(errors) for fold, errors in self.held_out.items()},
        }


@dataclass(frozen=True, slots=True)
class Score:
    """One source against one stack. Errors are predicted / measured - 1.

    `rank_correlation` is Spearman's over all rows; `rank_within` the mean of Spearman's over groups of equal
    model, devices and batch (nan without such groups), where it is harder; `regret` is how much longer than
    the best measured configuration of its group the one takes that the model puts first, on average.
    `held_out_random`, `_model` and `_source` are mean absolute errors of rows whose fifth, model or source
    took no part in the fit; `base_error` and `base_bias` are those of the stack's base, before its own knobs;
    `planner_error` and `planner_rank` those of the mode `corrected` without any stack.
    """

    source: str
    stack: str
    fitted: bool
    rows: int
    mean_absolute_error: float
    median_absolute_error: float
    largest_error: float
    bias: float
    rank_correlation: float
    groups: int
    rank_within: float
    regret: float
    held_out_random: float
    held_out_model: float
    held_out_source: float
    base_error: float
    base_bias: float
    planner_error: float
    planner_rank: float

    def as_json(self) -> dict[str, Any]:
        """Plain values; null where there is no number."""
        return {key: None if value != value else value for key, value in asdict(self).items()}


def validate(used: Sequence[Stack]) -> list[Score]:
    """All sources that the stacks cover, each with its stack, in their order."""
    return [score(stack, source) for stack in used for source in (*stack.fitted, *stack.transferred)]


def score(stack: Stack, source: str) -> Score:
    """Compare the predictions of `stack` with the rows of `source`."""
    rows = measured_rows(source)
    predicted = step_time(rows.runs, rows.machine, stack.knobs).total
    errors = predicted / rows.step_s - 1.0
    before = step_time(rows.runs, rows.machine, _base_knobs(stack)).total / rows.step_s - 1.0
    held_out = {fold: stack.held_out.get(fold, {}).get(source, float("nan")) for fold in FOLDS}
    planned = planner_seconds(rows)
    groups = comparable_groups(rows)
    within = [_rank(predicted[group], rows.step_s[group]) for group in groups]
    regrets = [
        rows.step_s[group][np.argmin(predicted[group])] / rows.step_s[group].min() - 1.0 for group in groups
    ]
    return Score(
        source=source,
        stack=stack.name,
        fitted=source in stack.fitted,
        rows=len(errors),
        mean_absolute_error=float(np.mean(np.abs(errors))),
        median_absolute_error=float(np.median(np.abs(errors))),
        largest_error=float(np.max(np.abs(errors))),
        bias=float(np.mean(errors)),
        rank_correlation=_rank(predicted, rows.step_s),
        groups=len(groups),
        rank_within=float(np.mean(within)) if within else float("nan"),
        regret=float(np.mean(regrets)) if regrets else float("nan"),
        held_out_random=held_out["random"],
        held_out_model=held_out["model"],
        held_out_source=held_out["source"],
        base_error=float(np.mean(np.abs(before))),
        base_bias=float(np.mean(before)),
        planner_error=float(np.mean(np.abs(planned / rows.step_s - 1.0))),
        planner_rank=_rank(planned, rows.step_s),
    )


def comparable_groups(rows: MeasuredRows) -> list[NDArray[np.bool_]]:
    """Masks of rows that solve the same task (model, devices, batch), where there are at least three."""
    runs = rows.runs
    tasks = np.stack([runs.layers, runs.hidden, runs.heads, runs.devices, runs.batch])
    _, which = np.unique(tasks, axis=1, return_inverse=True)
    masks = [which.ravel() == group for group in range(int(which.max()) + 1)]
    return [mask for mask in masks if mask.sum() >= _LEAST_RANKED]


@cache
def stacks() -> tuple[Stack, ...]:
    """The shipped stacks; each names its base before itself."""
    table = tomllib.loads(_STACKS.read_text(encoding="utf-8"))["stacks"]
    knobs = {_A_PRIORI: A_PRIORI}
    shipped = []
    for name, facts in table.items():
        knobs[name] = replace(knobs[facts["base"]], **facts["knobs"])
        shipped.append(
            Stack(
                name=name,
                base=facts["base"],
                free=tuple(facts["knobs"]),
                fitted=tuple(facts["fitted"]),
                transferred=tuple(facts["transferred"]),
                knobs=knobs[name],
                held_out=facts.get("held_out", {}),
            )
        )
    return tuple(shipped)


def stack_named(name: str) -> Stack:
    """The shipped stack of that name; raises InputError naming the known ones."""
    for stack in stacks():
        if stack.name == name:
            return stack
    raise InputError(f"expected a software stack of {', '.join(s.name for s in stacks())}, got {name!r}")


def refit(stack: Stack) -> Stack:
    """The same stack with its knobs and held-out errors computed again (seconds of work)."""
    base = _base_knobs(stack)
    sources = [measured_rows(name) for name in stack.fitted]
    held_out = {}
    for fold in FOLDS:
        errors = held_out_errors(sources, stack.free, base, fold)
        held_out[fold] = {source: float(np.mean(np.abs(e))) for source, e in errors.items()}
    return replace(stack, knobs=fit_knobs(sources, stack.free, base), held_out=held_out)


def _base_knobs(stack: Stack) -> Knobs:
    return A_PRIORI if stack.base == _A_PRIORI else stack_named(stack.base).knobs


def _rank(predicted: Array, measured: Array) -> float:
    from scipy.stats import spearmanr  # takes a second to load, which no other command should wait for

    return float(spearmanr(predicted, measured).statistic)
