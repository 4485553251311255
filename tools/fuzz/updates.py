"""A random graph as a function with state: some inputs become some results of their type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import tilewright as tw
from tilewright.ir import Constants, Module, WorkError, equal, parse, show, verify
from tilewright.ir.interpreter.step import initial_state, interpret_step
from tilewright.ir.types import FLOATS, dtype_name
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.tools.fuzz.agreement import relative_error

#: runs in a row that are compared
RUNS = 3
#: relative change of all state and inputs under which what is compared must stay about the same
DISTURBANCE = 1e-6
#: of the largest magnitude: results that change by more under the disturbance are not compared
ILL_CONDITIONED = 0.05
#: results and new state, by name or place, of one run
Run = Mapping[str, np.ndarray]


def lowered(module: Module) -> Module:
    """The module at the tensor level, verified after every pass."""
    lowering = Pipeline.parse("infer-shapes, graph-to-tensor")
    return run_pipeline(module, lowering, PassContext(verify_each=True))


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


def check_steps(module: Module, inputs: Sequence[np.ndarray], target: str) -> float:
    """Largest relative error of results and state over some runs of a module with state for `target`.

    inputs: of all parameters; those of state are what it starts as. Raises WorkError where one is wrong. Runs
    that a small disturbance changes much, or that leave the finite numbers, are not compared.
    """
    states = set(module.state_names)
    own = [x for n, x in zip(module.input_names, inputs, strict=True) if n not in states]
    native = _reference(module, own)
    wide = _reference(module, own, precision="fp64")
    moved = _reference(module, [_moved(x) for x in own], disturbed=True)
    count = next((k for k, r in enumerate(zip(native, wide, moved, strict=True)) if not _stable(*r)), RUNS)
    if not count:
        return 0.0
    runs = (
        _reference(lowered(module), own, count)
        if target == "tensor"
        else _compiled(module, own, count, target)
    )
    return max(
        relative_error(f"{name} of run {k + 1}", runs[k][name], native[k][name], wide[k][name])
        for k in range(count)
        for name in native[k]
    )


def _reference(
    module: Module, inputs: Sequence[np.ndarray], count: int = RUNS, *, precision: str = "native",
    disturbed: bool = False,
) -> list[Run]:  # fmt: skip
    state, runs = initial_state(module), []
    if disturbed:
        state = {n: _moved(x) for n, x in state.items()}
    for _ in range(count):
        results, state = interpret_step(module, inputs, state, precision=precision)
        runs.append(_named(results, state))
    return runs


def _compiled(module: Module, inputs: Sequence[np.ndarray], count: int, target: str) -> list[Run]:
    with tw.compile(module, target=target, progress=False) as exe:
        return [_named(exe(*inputs), {n: np.array(exe.state[n]) for n in exe.state}) for _ in range(count)]


def _named(results: Sequence[np.ndarray], state: Mapping[str, np.ndarray]) -> Run:
    return {
        **{f"result {i}": r for i, r in enumerate(results)},
        **{f"state {n}": x for n, x in state.items()},
    }


def _moved(x: np.ndarray) -> np.ndarray:
    if dtype_name(x.dtype) not in FLOATS:
        return x
    signs = np.random.default_rng(0).choice([-1, 1], x.shape)
    return np.asarray(x * (1 + DISTURBANCE * signs)).astype(x.dtype)


def _stable(native: Run, wide: Run, moved: Run) -> bool:
    """Whether one run says something: its numbers are finite and do not hang on the last bits."""
    for name, x in native.items():
        if dtype_name(x.dtype) not in FLOATS:
            if not np.array_equal(x, wide[name]) or not np.array_equal(x, moved[name]):
                return False
            continue
        y, z = x.astype(np.float64), moved[name].astype(np.float64)
        if not (np.isfinite(y).all() and np.isfinite(wide[name]).all()):
            return False
        limit = ILL_CONDITIONED * float(np.abs(wide[name]).max(initial=0))
        if not max(float(np.abs(y - v).max(initial=0)) for v in (wide[name], z)) <= limit:
            return False
    return True
