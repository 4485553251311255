"""Kernels of every template, after all thread passes, run thread by thread: right results and no race."""

import numpy as np
import pytest
from template_kernels import CASES, Case, prepared, values
from thread_kernels import run_calls

from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import Constants, interpret, parse
from tilewright.running.checking import relative_error

TARGETS = ("cuda:sm_90a", "opencl")


#: what the model chooses for a CPU anyway, and staging that no GPU gets
ELSEWHERE = {("recur-alone", "opencl"), ("contract-direct", "cuda:sm_90a")}


@pytest.mark.parametrize(
    ("case", "target"),
    [(c, t) for c in CASES for t in TARGETS if (c.name, t) not in ELSEWHERE],
    ids=lambda x: x if isinstance(x, str) else x.name,
)
def test_kernels_are_right_and_do_not_race(case: Case, target: str):
    module = prepared(case, target)
    lowered = lower(module, resolve_target(target))
    source = parse(case.text, constants=Constants(module.constants))
    rng = np.random.default_rng(5)
    inputs = [values(rng, p.tensor) for p in source.main.params]
    wanted = interpret(source, *inputs, precision="fp64")
    for got, expected in zip(run_calls(lowered.thread, inputs), wanted, strict=True):
        assert relative_error(got, expected) < 1e-6
