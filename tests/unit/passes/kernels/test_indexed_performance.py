"""What sorts, searches and scatters cost: lengths of threads' code and of their loops."""

import numpy as np
import pytest
from decision_samples import template
from graph_op_agreement import agree, module_of

from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target


def thread_functions(module, target="opencl"):
    """The kernels of a graph of one op at the thread level."""
    lowered = lower(module, resolve_target(target)).thread
    return [f for f in lowered.funcs if f.name != "main"]


def code_length(block):
    """Ops of a block where the loops marked for unrolling stand unrolled."""
    total = 0
    for op in block.ops:
        inner = code_length(op.body) if op.body is not None else 0
        total += 1 + inner * (op["extent"] if op.get("unroll") else 1)
    return total


def floats(*shape):
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


@pytest.mark.parametrize("name", ["sort", "argsort"])
def test_long_sorts_have_short_code(name):
    attrs = {"dtype": "i32"} if name == "argsort" else {}
    functions = thread_functions(module_of(name, [floats(20000)], axis=0, is_ascend=True, **attrs))
    assert max(code_length(f.body) for f in functions if template(f) == "map") < 1000


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("n", [65, 127, 128, 1000])
def test_long_searches(n, right):
    ordered = np.sort(np.round(floats(n) * 50))
    values = np.concatenate([np.round(floats(40) * 60), [np.nan, np.inf, -np.inf]]).astype(np.float32)
    agree("searchsorted", ordered, values, right=right, dtype="i64")


def test_searches_in_rows():
    ordered = np.sort(np.random.default_rng(0).integers(-50, 50, (3, 200)), axis=-1).astype(np.int32)
    values = np.random.default_rng(1).integers(-60, 60, (3, 17)).astype(np.int32)
    agree("searchsorted", ordered, values, right=True, dtype="i32", compiled=True)


def test_searches_with_not_a_number():
    ordered = np.concatenate([np.sort(floats(99)), [np.nan, np.nan]]).astype(np.float32)
    agree("searchsorted", ordered, np.array([0.5, np.nan], np.float32), right=False, dtype="i32")


def test_a_long_search_takes_one_read_per_bit():
    module = module_of("searchsorted", [floats(1 << 20), floats(8)], right=False, dtype="i32")
    (kernel,) = thread_functions(module)
    assert code_length(kernel.body) < 2500
    assert not any(op.name == "thread.loop" and op["extent"] > 8 for op in kernel.body.ops)
