"""Compares what a compiled graph and its gradients compute with what the reference semantics define."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import tilewright as tw
from tilewright.ir import Module
from tilewright.running.interpreting import interpret
from tilewright.tools.fuzz.agreement import relative_error
from tilewright.tools.fuzz.gradients import check_differences, gradient_module, well_conditioned
from tilewright.tools.fuzz.updates import check_steps, check_text, lowered, with_updates


def check(module: Module, inputs: Sequence[np.ndarray], target: str) -> float:
    """Largest relative error of results and gradients for `target`; WorkError where one is wrong.

    Gradients are compared with central differences too. The graph as a function with state is printed, parsed
    and run several times. target: one of the compiler's, or `tensor`: lowered to the tensor level and
    interpreted there.
    """
    error = check_results(module, inputs, target)
    if state := with_updates(module, inputs):
        check_text(state)
        error = max(error, check_steps(state, inputs, target))
    differentiated = gradient_module(module)
    if differentiated is None:
        return error
    check_differences(*differentiated, inputs)
    gradients = well_conditioned(differentiated[0], inputs)
    return error if gradients is None else max(error, check_results(gradients, inputs, target))


def check_results(module: Module, inputs: Sequence[np.ndarray], target: str) -> float:
    """Largest relative error of the results of `module` for `target`; WorkError where one is wrong."""
    native = interpret(module, *inputs)
    wide = interpret(module, *inputs, precision="fp64")
    if target == "tensor":
        got = interpret(lowered(module), *inputs)
    else:
        with tw.compile(module, target=target, progress=False) as exe:
            got = exe(*inputs)
    results = zip(got, native, wide, strict=True)
    return max((relative_error(f"result {i}", *r) for i, r in enumerate(results)), default=0.0)


def fails(target: str, kind: str, module: Module, inputs: Sequence[np.ndarray]) -> bool:
    """Return whether `check` raises an error whose class has the name `kind`."""
    try:
        check(module, inputs, target)
    except Exception as e:  # noqa: BLE001 - any error of the kind looked for is the finding
        return type(e).__name__ == kind
    return False
