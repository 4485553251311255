"""Reference semantics of a step that several ranks run together: one run from an old state to a new one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.interpreter.lockstep import interpret_ranks_of
from tilewright.ir.modules.divisions import Division, divisions_of, pieces_of
from tilewright.ir.nodes import Module


def interpret_rank_steps(
    modules: Sequence[Module],
    inputs: Mapping[str, Any],
    state: Mapping[str, Any],
    *,
    precision: str = "native",
) -> tuple[list[list[np.ndarray]], dict[str, np.ndarray]]:
    """One run of the modules of all ranks: the results of each rank, and the whole new state by name.

    inputs, state: whole values by name; every rank gets what its module holds of them (`divisions`).
    precision: as of `interpret_ranks`. Raises InputError as it does, and where a value that all ranks hold
    whole is not the same on all of them after the run.
    """
    divided: dict[str, Division] = {}
    for module in modules:
        divided.update(divisions_of(module))
    given = {n: np.asarray(a) for n, a in (*inputs.items(), *state.items())}
    arguments = []
    for rank, module in enumerate(modules):
        own = pieces_of(given, divided, rank)
        missing = [n for n in module.input_names if n not in own]
        if missing:
            raise InputError(f"rank {rank}: expected a value of '{missing[0]}', got none")
        arguments.append([own[n] for n in module.input_names])
    results = interpret_ranks_of(modules, arguments, precision=precision)
    own_results, states = [], []
    for module, values in zip(modules, results, strict=True):
        updates = dict(module.main.updates)
        moved = set(updates.values())
        own_results.append([x for i, x in enumerate(values) if i not in moved])
        states.append({module.input_names[p]: values[r] for p, r in updates.items()})
    new: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(n for s in states for n in s):
        pieces = [s.get(name) for s in states]
        if name in divided:
            new[name] = divided[name].joined(pieces)
            continue
        first = pieces[0]
        for rank, piece in enumerate(pieces):
            if first is None or piece is None or not np.array_equal(first, piece, equal_nan=True):
                raise InputError(f"expected all ranks to hold one value of '{name}', rank {rank} has another")
        new[name] = np.asarray(first)
    return own_results, new
