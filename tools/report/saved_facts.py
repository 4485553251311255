"""Checks of the facts of an executable that a page relies on: a saved one may say anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from tilewright.costmodel.kernels.explain import LIMITS
from tilewright.ir import InputError
from tilewright.runtime.plan.execution_plan import ExecutionPlan

Check = Callable[[Any], bool]


def check_saved(report: Mapping[str, Any], plan: ExecutionPlan) -> None:
    """Raise InputError naming the first fact that is missing or is not what a compilation writes."""
    _check(report, _REPORT, "")
    for i, row in enumerate(report["kernels"]):
        if isinstance(row, dict) and "skeleton" in row:  # of older versions
            row = {"template": row["skeleton"], **row}
        _check(row, _KERNEL, f"kernels[{i}].")
        if row["cost"] is not None:
            _check(row["cost"], _COST, f"kernels[{i}].cost.")
    for i, row in enumerate(report.get("convolutions", ())):
        _check(row, _CONVOLUTION, f"convolutions[{i}].")
        for j, considered in enumerate(row["considered"]):
            _check(considered, _ALGORITHM, f"convolutions[{i}].considered[{j}].")
    names = {row["name"] for row in report["kernels"]}
    if missing := sorted({launch.kernel for launch in plan.launches} - names):
        raise InputError(f"expected facts of every kernel, those of {missing[0]!r:.80} are missing")


def _check(row: Any, checks: Mapping[str, Check], where: str) -> None:
    if not isinstance(row, dict):
        raise InputError(f"expected {where.rstrip('.')} to be an object of facts, got {row!r:.80}")
    for name, check in checks.items():
        if name.rstrip("?") not in row:
            if name.endswith("?"):
                continue
            raise InputError(f"expected facts of a compilation, {where}{name} is missing")
        value = row[name.rstrip("?")]
        if not check(value):
            raise InputError(f"expected facts of a compilation, {where}{name.rstrip('?')} is {value!r:.80}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and isfinite(value) and value >= 0


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list | tuple) and all(map(check, value))


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


# A `?` marks what may be missing.
_REPORT: dict[str, Check] = {
    "hardware": _is_text,
    "hardware_stands_for?": _is_text,
    "kernels": _list_of(lambda row: True),
    "convolutions?": _list_of(lambda row: True),
}
_KERNEL: dict[str, Check] = {
    "name": _is_text,
    "template": _or_none(_is_text),
    "grid": _list_of(_is_count),
    "block": _is_count,
    "params": _or_none(lambda value: isinstance(value, dict)),
    "cost": _or_none(lambda value: isinstance(value, dict)),
    "measured_s": _or_none(_is_seconds),
}
_COST: dict[str, Check] = {
    "estimate_s": _is_seconds,
    "bound_s": _is_seconds,
    "limit": lambda value: isinstance(value, str) and value in LIMITS,
    "considered": _is_count,
    "warm_bound_s?": _or_none(_is_seconds),
}
_CONVOLUTION: dict[str, Check] = {
    "origins": _list_of(_is_text),
    "data": _list_of(_is_count),
    "kernel": _list_of(_is_count),
    "algorithm": _is_text,
    "considered": _list_of(lambda row: True),
}
_ALGORITHM: dict[str, Check] = {
    "algorithm": _is_text,
    "estimate_s": _is_seconds,
    "bound_s?": _is_seconds,
    "measured_s?": _or_none(_is_seconds),
}
