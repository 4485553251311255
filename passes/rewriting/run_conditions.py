"""Conditions of a step that are the same in every run of a number: those on the count of runs, proven."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.ir.nodes import Module, Op, Value

#: an integer that is known but for a multiple of a number: (rest, number); a number of 0 stands for exact
Rest = tuple[int, int]


def decided_conditions(module: Module, runs: int, run: int) -> dict[Value, bool]:
    """Scalars of @main that hold, or do not, in run number `run` of every `runs` runs, by value.

    Counters are state of integers that a run adds a constant to; they are known at first, and so is what is
    left when `runs` times the constant are cast out. Sums, differences, remainders and comparisons of such
    numbers are followed; whatever else is not decided.
    """
    main = module.main
    known = counters(module, runs, run)
    out: dict[Value, bool] = {}
    for op in main.body.ops[:-1]:
        if len(op.results) != 1 or op.result.tensor.shape != ():
            continue
        if op.name == "graph.constant":
            array = np.asarray(module.constants[str(op["name"])])
            if array.dtype.kind in "iu":
                known[op.result] = (int(array), 0)
            continue
        if not op.operands or not all(v in known for v in op.operands):
            continue
        found = _evaluated(op, [known[v] for v in op.operands])
        if isinstance(found, bool):
            out[op.result] = found
        elif found is not None:
            known[op.result] = found
    return out


def counters(module: Module, runs: int, run: int) -> dict[Value, Rest]:
    """Counters of @main at the beginning of run number `run` of every `runs`, as far as they are known."""
    main = module.main
    results = main.body.ops[-1].operands
    made = {r: op for op in main.body.ops for r in op.results}
    known: dict[Value, Rest] = {}
    for i, j in main.updates:
        state, new = main.params[i], results[j]
        if state.tensor.shape != () or state.tensor.dtype not in ("u32", "i32", "u64", "i64"):
            continue
        step = _constant_added(module, made, state, new)
        if step is not None:
            start = int(np.asarray(module.constants[state.hint]))
            known[state] = (start + run * step, abs(runs * step))
    return known


def _constant_added(module: Module, made: Mapping[Value, Op], state: Value, new: Value) -> int | None:
    """The constant that a run adds to the state; None where it does something else."""
    op = made.get(new)
    if op is None or op.name != "graph.add" or state not in op.operands:
        return None
    (other,) = [v for v in op.operands if v is not state] or [state]
    constant = made.get(other)
    if constant is None or constant.name != "graph.constant":
        return None
    return int(np.asarray(module.constants[str(constant["name"])]))


def _evaluated(op: Op, values: list[Rest]) -> Rest | bool | None:
    if op.name in ("graph.add", "graph.subtract"):
        (a, m), (b, n) = values
        number = max(m, n) if 0 in (m, n) else int(np.gcd(m, n))
        return (a + b if op.name == "graph.add" else a - b), number
    if op.name in ("graph.mod", "graph.floor_mod"):
        (a, m), (b, n) = values
        return (a % b, 0) if n == 0 and b > 0 and a >= 0 and m % b == 0 else None
    if op.name in ("graph.equal", "graph.not_equal") and all(n == 0 for _, n in values):
        same = values[0][0] == values[1][0]
        return same if op.name == "graph.equal" else not same
    return None
