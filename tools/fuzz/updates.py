"""A random graph as a function with state: some inputs become some results of their type."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir import Constants, Module, WorkError, equal, parse, show, verify


def with_updates(module: Module, inputs: Sequence[np.ndarray], seed: int = 0) -> Module | None:
    """The module with random pairs of inputs and results of one type as updates; none where there is no pair.

    State starts as the input that it was: it is a constant of that name.
    """
    rng = np.random.default_rng(seed)
    params, free = module.main.params, list(range(len(module.main.result_types)))
    pairs = []
    for p in rng.permutation(len(params)):
        fitting = [r for r in free if module.main.result_types[r] == params[p].type]
        if fitting and rng.random() < 0.8:
            free.remove(r := int(rng.choice(fitting)))
            pairs.append((int(p), r))
    if not pairs:
        return None
    names = module.input_names
    state = {names[p]: inputs[p] for p, _ in pairs}
    main = module.main.with_attrs(updates=tuple(sorted(pairs)))
    funcs = tuple(main if f is module.main else f for f in module.funcs)
    return module.with_funcs(funcs).with_constants(Constants({**module.constants, **state}))


def check_text(module: Module) -> None:
    """Raise WorkError unless a function with updates verifies, and is the same after printing and parsing."""
    verify(module)
    again = parse(show(module), constants=module.constants)
    if not equal(again, module) or again.main.updates != module.main.updates:
        raise WorkError("a function with updates is another one after printing and parsing")
