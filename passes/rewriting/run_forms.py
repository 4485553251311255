"""The forms that runs of a step take, one after another, as far as a count of runs decides its conditions."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

import numpy as np

from tilewright.ir.nodes import Module, Value, backward_slice
from tilewright.passes.rewriting.decided import CONDITION, DECIDING, decided
from tilewright.passes.rewriting.run_conditions import counters, decided_conditions
from tilewright.passes.rewriting.zeros import zeros_made

#: a count whose conditions come back after more runs than that decides nothing
_MOST_RUNS = 1024


@dataclass(frozen=True)
class RunForms:
    """Which of a few forms each run of a step has.

    counter: the state that counts runs; before the first one it is `first`, and a run adds `by` to it.
    forms: of the runs of one period, the first run of it that has the same conditions.
    """

    counter: str
    first: int
    by: int
    forms: tuple[int, ...]

    @property
    def runs(self) -> int:
        """Runs of a period."""
        return len(self.forms)

    def form(self, count: int) -> int:
        """The form of the run that begins with this count."""
        return self.forms[(count - self.first) // self.by % self.runs]


def run_forms(module: Module) -> RunForms | None:
    """The forms of a step's runs; None where no count of runs decides what a run does.

    Periods are divisors of remainders in @main; conditions are those of choices. Conditions that depend on
    several counts decide nothing.
    """
    runs = _period(module)
    if not 1 < runs <= _MOST_RUNS:
        return None
    known = counters(module, runs, 0)
    deciding = {
        v
        for op in module.main.body.ops
        if op.name in DECIDING
        for v in (op.operands[:1] if op.name == "graph.where" else op.operands)
        if v.type == CONDITION
    }
    rows = [decided_conditions(module, runs, run) for run in range(runs)]
    conditions = [v for v in rows[0] if v in deciding and all(v in row for row in rows)]
    forms: dict[tuple[bool, ...], int] = {}
    own = tuple(forms.setdefault(tuple(row[v] for v in conditions), r) for r, row in enumerate(rows))
    read = _sources(module, conditions) & known.keys()
    if len(forms) < 2 or len(read) != 1:
        return None
    (counter,) = read
    first, period = known[counter]
    return RunForms(counter.hint, first, period // runs, own)


def summed_state(module: Module, forms: RunForms) -> tuple[str, ...]:
    """State that the last run of a period leaves as zeros, as which it begins, and runs before add to.

    Any terms of it may be kept apart until the last run: it reads their sum.
    """
    main = module.main
    last = decided(main, decided_conditions(module, forms.runs, forms.runs - 1))
    results = last.body.ops[-1].operands
    return tuple(
        main.params[i].hint
        for i, j in main.updates
        if zeros_made(module, last, results[j]) and not np.any(module.constants[main.params[i].hint])
    )


def _period(module: Module) -> int:
    """The least common multiple of all constant divisors of remainders of single integers."""
    made = {r: op for op in module.main.body.ops for r in op.results}
    out = 1
    for op in module.main.body.ops:
        if op.name not in ("graph.mod", "graph.floor_mod") or op.result.tensor.shape:
            continue
        divisor = made.get(op.operands[1])
        if divisor is None or divisor.name != "graph.constant":
            continue
        array = np.asarray(module.constants[str(divisor["name"])])
        if array.dtype.kind in "iu" and int(array) > 0:
            out = lcm(out, int(array))
    return out


def _sources(module: Module, values: list[Value]) -> set[Value]:
    """The parameters of @main that values are made of."""
    ops = backward_slice(module.main.body.ops[:-1], values)
    return {*values, *(v for op in ops for v in op.operands)} & {*module.main.params}
