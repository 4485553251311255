"""Inputs of training steps to try them with."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.cluster.steps.ways import StepSize
from tilewright.ir import Module
from tilewright.running.checking import random_inputs
from tilewright.running.step_rules import RANGES

#: updates whose losses are compared with those of the undivided step
UPDATES = 3


def update_inputs(step: Module, size: StepSize, seed: int) -> list[list[np.ndarray]]:
    """The inputs of the runs of several updates, from other samples each."""
    return [step_inputs(step, seed + i) for i in range(UPDATES * size.runs)]


def step_inputs(step: Module, seed: int) -> list[np.ndarray]:
    """One array per input of a step: random, and labels within their ranges."""
    state = set(step.state_names)
    rows: Any = step.get(RANGES) or ()
    ranges = {row[0]: (row[1], row[2]) for row in rows}
    pairs = zip(step.input_names, step.input_types, strict=True)
    kept = [(name, t) for name, t in pairs if name not in state]
    arrays = random_inputs([n for n, _ in kept], [t for _, t in kept], seed)
    rng = np.random.default_rng(seed)
    return [
        rng.integers(*ranges[name], t.shape).astype(t.dtype) if name in ranges else array
        for (name, t), array in zip(kept, arrays, strict=True)
    ]
