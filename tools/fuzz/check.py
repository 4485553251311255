"""Compares what a compiled graph and its gradients compute with what the reference semantics define."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import tilewright as tw
from tilewright.ir import Module, WorkError
from tilewright.ir.types import FLOATS, dtype_name
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.running.interpreting import interpret
from tilewright.tools.conformance.case import exact_fault
from tilewright.tools.fuzz.gradients import check_differences, gradient_module, well_conditioned
from tilewright.tools.fuzz.updates import check_text, with_updates

#: error allowed relative to the largest magnitude of a result, beside what its own dtype costs the reference
ROUNDING = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 8e-2}
#: how much worse than the reference in native precision a compiled result may be: sums run in another order
SLACK = 16


def check(module: Module, inputs: Sequence[np.ndarray], target: str) -> float:
    """Largest relative error of results and gradients for `target`; WorkError where one is wrong.

    Gradients are compared with central differences too, and the graph as a function with state is printed,
    parsed and run for one step. target: one of the compiler's, or `tensor`: lowered to the tensor level and
    interpreted there.
    """
    error = check_results(module, inputs, target)
    if state := with_updates(module, inputs):
        check_text(state)
        if target != "tensor":
            error = max(error, check_step(state, inputs, target))
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
        lowering = Pipeline.parse("infer-shapes, graph-to-tensor")
        got = interpret(run_pipeline(module, lowering, PassContext(verify_each=True)), *inputs)
    else:
        with tw.compile(module, target=target, progress=False) as exe:
            got = exe(*inputs)
    results = zip(got, native, wide, strict=True)
    return max((_error(f"result {i}", *r) for i, r in enumerate(results)), default=0.0)


def check_step(module: Module, inputs: Sequence[np.ndarray], target: str) -> float:
    """Largest relative error of the results and the new state of one step; WorkError where one is wrong."""
    native = interpret(module, *inputs)
    wide = interpret(module, *inputs, precision="fp64")
    updates = dict(module.main.updates)
    with tw.compile(module, target=target, progress=False) as exe:
        own = iter(exe(*(x for i, x in enumerate(inputs) if i not in updates)))
        names = {r: module.input_names[p] for p, r in updates.items()}
        got = [exe.state[names[i]] if i in names else next(own) for i in range(len(native))]
    results = zip(got, native, wide, strict=True)
    return max((_error(f"result {i} of a step", *r) for i, r in enumerate(results)), default=0.0)


def fails(target: str, kind: str, module: Module, inputs: Sequence[np.ndarray]) -> bool:
    """Return whether `check` raises an error whose class has the name `kind`."""
    try:
        check(module, inputs, target)
    except Exception as e:  # noqa: BLE001 - any error of the kind looked for is the finding
        return type(e).__name__ == kind
    return False


def _error(where: str, got: np.ndarray, native: np.ndarray, wide: np.ndarray) -> float:
    if fault := exact_fault(got, native):
        raise WorkError(f"{where}: {fault}")
    dtype = dtype_name(native.dtype)
    if dtype not in FLOATS:
        return 0.0
    scale = float(np.abs(wide).max(initial=0)) or 1.0
    gap = np.abs(got.astype(np.float64) - wide)
    allowed = ROUNDING[dtype] * scale + SLACK * float(np.abs(native.astype(np.float64) - wide).max(initial=0))
    if not np.all(gap <= allowed):
        at = tuple(
            int(i) for i in np.unravel_index(int(np.argmax(np.nan_to_num(gap, nan=np.inf))), gap.shape)
        )
        raise WorkError(f"{where}: {got[at]} for {wide[at]} at {list(at)}, {allowed:.3g} allowed")
    return float(gap.max(initial=0)) / scale
