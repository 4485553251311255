"""Small thread-level kernels for tests of passes: parsing, transforming, running and comparing them."""

import numpy as np
from thread_interpreter import poison, run_kernel

from tilewright.ir import Func, Level, Module, Op, Value, parse, verify, walk
from tilewright.passes import PassContext, Pipeline, run_pipeline

CTX = PassContext(target="cuda", verify_each=True, reproducer_folder=None)


def kernel(body: str, params: str, *, grid: str = "[1, 1, 1]", block: int = 8) -> Func:
    """A verified kernel; `body` is all but the return."""
    text = f"""module @m {{ thread.func @k({params}, grid = {grid}, block = {block}) {{
        {body}
        thread.return()
    }} }}"""
    module = parse(text)
    verify(module)
    return module["k"]


def after(passes: str, func: Func) -> Func:
    """The kernel after a pipeline, verified after each pass; the passes must keep what they do not change."""
    pipeline = Pipeline.parse(passes)
    module = run_pipeline(Module("m", (func,)), pipeline, CTX)
    return module["k"]


def outputs(func: Func, *, races: bool = True) -> list[np.ndarray]:
    """What a kernel leaves in its parameters: those named y... start poisoned, others with seeded values."""
    rng = np.random.default_rng(3)
    arrays = []
    for p in func.params:
        t = p.tensor
        if p.hint.startswith("y"):
            arrays.append(poison(t.shape, t.dtype))
        elif t.dtype.startswith("f"):
            arrays.append(rng.standard_normal(t.shape).astype(t.dtype.replace("f", "float")))
        else:
            arrays.append(rng.integers(0, 5, t.shape))
    return run_kernel(func, *arrays, races=races)


def assert_same(before: Func, new: Func, *, races: bool = True) -> None:
    """Both kernels leave the same bits (`before` may race)."""
    for a, b in zip(outputs(before, races=False), outputs(new, races=races), strict=True):
        np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


def count(func: Func, name: str) -> int:
    """How many ops of a name a kernel holds."""
    return sum(op.name == name for op in walk(func.body))


def lanes(func: Func) -> list[int]:
    """Lanes of all loads, in order."""
    return [int(op["lanes"]) for op in walk(func.body) if op.name == "thread.load"]


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


def call(op: Op, callee: Func, values: dict[Value, np.ndarray]) -> None:
    """Run a kernel on buffers of its own shapes; its last parameters are the results."""
    assert callee.level is Level.THREAD
    given = [values[v] for v in op.operands] + [poison(r.type.shape, r.type.dtype) for r in op.results]
    shaped = [a.reshape(p.type.shape) for a, p in zip(given, callee.params, strict=True)]
    after = run_kernel(callee, *shaped)
    for r, a in zip(op.results, after[len(op.operands) :], strict=True):
        values[r] = a.reshape(r.type.shape)
