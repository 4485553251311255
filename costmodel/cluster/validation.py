"""How well the in-memory model meets measured steps: errors and rank correlation per source and stack."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.costmodel.cluster.fitting import FOLDS, fit_knobs, held_out_errors
from tilewright.costmodel.cluster.in_memory import A_PRIORI, Knobs, step_time
from tilewright.costmodel.cluster.measured_rows import MeasuredRows, measured_rows
from tilewright.costmodel.cluster.validation_plan import planner_seconds
from tilewright.ir.errors import InputError

Array = NDArray[np.float64]

_STACKS = Path(__file__).parent / "measured" / "stacks.toml"
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


def validate() -> list[Score]:
    """All sources, each with the stack that covers it, in the order of the stacks."""
    return [score(stack, source) for stack in stacks() for source in (*stack.fitted, *stack.transferred)]


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
    known = {_A_PRIORI: A_PRIORI}
    found = []
    for name, facts in table.items():
        known[name] = replace(known[facts["base"]], **facts["knobs"])
        found.append(
            Stack(
                name=name,
                base=facts["base"],
                free=tuple(facts["knobs"]),
                fitted=tuple(facts["fitted"]),
                transferred=tuple(facts["transferred"]),
                knobs=known[name],
                held_out=facts.get("held_out", {}),
            )
        )
    return tuple(found)


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
