"""Kernels of every skeleton, after all thread passes, run thread by thread: right results and no race."""

import numpy as np
import pytest
from thread_interpreter import poison, run_kernel

from tilewright.commands.network import relative_error
from tilewright.driver import lower
from tilewright.ir import Constants, Func, Level, Module, Op, interpret, parse
from tilewright.targets import resolve_target
from tilewright.tools.check_skeletons import CASES, Case, prepared

TARGETS = ("cuda:sm_90a", "opencl")


def run_calls(module: Module, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Results of an @main that only calls thread-level kernels."""
    values = dict(zip(module.main.params, inputs, strict=True))
    for op in module.main.body.ops:
        if op.name == "tensor.constant":
            values[op.result] = module.constants[str(op["name"])]
        elif op.name == "tensor.call":
            call(op, module[op["callee"].name], values)
        else:
            return [values[v] for v in op.operands]
    raise AssertionError("@main does not return")


def call(op: Op, callee: Func, values: dict) -> None:
    assert callee.level is Level.THREAD
    given = [values[v] for v in op.operands] + [poison(r.type.shape, r.type.dtype) for r in op.results]
    shaped = [a.reshape(p.type.shape) for a, p in zip(given, callee.params, strict=True)]
    after = run_kernel(callee, *shaped)
    for r, a in zip(op.results, after[len(op.operands) :], strict=True):
        values[r] = a.reshape(r.type.shape)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_kernels_are_right_and_do_not_race(case: Case, target: str):
    module = prepared(case, target)
    lowered = lower(module, resolve_target(target))
    source = parse(case.text, constants=Constants(module.constants))
    rng = np.random.default_rng(5)
    inputs = [rng.standard_normal(p.tensor.shape).astype(np.float32) for p in source.main.params]
    wanted = interpret(source, *inputs, precision="fp64")
    for got, expected in zip(run_calls(lowered.thread, inputs), wanted, strict=True):
        assert relative_error(got, expected) < 1e-6
