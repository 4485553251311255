"""Reference semantics of modules with state: one run from an old state to a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.interpreter.run import interpret
from tilewright.ir.nodes import Module
from tilewright.ir.types import dtype_name


def check_initial_state(module: Module) -> None:
    """Raise InputError where state has no constant that it starts as, or the name of another parameter."""
    names = module.state_names
    twice = next((n for n in names if module.input_names.count(n) > 1), None)
    if twice is not None:
        raise InputError(f"expected one parameter called '{twice}', which is state", where=f"@{module.name}")
    missing = [n for n in names if n not in module.constants]
    if missing:
        raise InputError(
            f"expected constants that the state starts as, got none of {', '.join(missing[:5])}",
            where=f"@{module.name}",
        )
    for name, p in zip(module.input_names, module.main.params, strict=True):
        form, t = module.constants.form(name) if name in names else None, p.tensor
        if form is None:
            continue
        shape, dtype = form
        if shape != t.shape or dtype_name(dtype) != t.dtype:
            raise InputError(
                f"state '{name}': expected a constant of {t}, got {dtype}{list(shape)}",
                where=f"@{module.name}",
            )


def initial_state(module: Module) -> dict[str, np.ndarray]:
    """What the state of a module starts as: copies of the constants of its names.

    Raises InputError as `check_initial_state`.
    """
    check_initial_state(module)
    return {n: np.array(module.constants[n], copy=True) for n in module.state_names}


def interpret_step(
    module: Module,
    inputs: Sequence[Any],
    state: Mapping[str, Any] | None = None,
    *,
    precision: str = "native",
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """One run of a module with state: the results of the caller, and the new state by name.

    inputs: one array per parameter that is no state, in their order. state: the old state by name, by default
    what it starts as; it is not changed. precision: as of `interpret`; with "fp64" the new state is float64.
    Raises InputError as `interpret`, and for state that is missing or that the module does not have.
    """
    state = initial_state(module) if state is None else state
    names, main = module.input_names, module.main
    known = set(module.state_names)
    wrong = sorted(known ^ set(state))
    if wrong:
        got = "is missing" if wrong[0] in known else "is none of the module's"
        raise InputError(f"expected the state {', '.join(module.state_names)}: '{wrong[0]}' {got}")
    if len(inputs) != len(names) - len(known):
        expected = ", ".join(n for n in names if n not in known) or "none"
        raise InputError(f"expected {len(names) - len(known)} inputs ({expected}), got {len(inputs)}")
    rest = iter(inputs)
    results = interpret(module, *(state[n] if n in known else next(rest) for n in names), precision=precision)
    updated = {r for _, r in main.updates}
    own = [x for i, x in enumerate(results) if i not in updated]
    return own, {names[p]: results[r] for p, r in sorted(main.updates)}
