"""Inputs of a call by position and by name, in calling order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir import InputError


def in_order(names: Sequence[str], inputs: Sequence[object], named: Mapping[str, object]) -> Sequence[object]:
    """One array per input name: `inputs` are the first ones, the others come from `named`.

    Without names the inputs are as they were given, right or wrong. Raises InputError for a name that no
    input has, that is given twice, or that is missing.
    """
    if not named:
        return inputs
    unknown = [name for name in named if name not in names]
    if unknown:
        raise InputError(f"unknown input '{unknown[0]}'; the inputs are {', '.join(names) or 'none'}")
    twice = [name for name in names[: len(inputs)] if name in named]
    if twice:
        raise InputError(f"input '{twice[0]}' is given twice, by position and by name")
    missing = [name for name in names[len(inputs) :] if name not in named]
    if missing:
        raise InputError(f"no value is given for input '{missing[0]}'")
    return (*inputs, *(named[name] for name in names[len(inputs) :]))
