"""Running folds along long lines in chunks: on the thread level too, whatever the length and the fold."""

import numpy as np
import pytest
from graph_op_agreement import lowered, module_of

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.ordered.choose_chunks import choose_chunk

GPU = resolve_target("cuda:sm_90a")
CONTEXT = PassContext(str(GPU), GPU.hardware, verify_each=True)

CASES = {
    "sum": ("cumsum", np.float32, {"axis": 1}),
    "exclusive": ("cumsum", np.int32, {"axis": 1, "exclusive": True}),
    "first-axis": ("cumsum", np.int64, {"axis": 0, "exclusive": True}),
    "product": ("cumprod", np.float32, {"axis": 1}),
    "any": ("cumsum", np.bool_, {"axis": 1}),
}


def data(dtype, shape):
    rng = np.random.default_rng(5)
    if dtype == np.float32:
        return rng.uniform(0.99, 1.01, shape).astype(dtype)
    return (rng.integers(0, 100, shape) > 98 if dtype == np.bool_ else rng.integers(-9, 9, shape)).astype(
        dtype
    )


def chunked(module):
    return run_pipeline(lowered(module), Pipeline.parse("chunk-scans"), CONTEXT)


@pytest.mark.parametrize("length", [4096, 5003])
@pytest.mark.parametrize("name", CASES)
def test_chunks(name, length):
    op, dtype, attrs = CASES[name]
    shape = (length, 2) if attrs["axis"] == 0 else (2, length)
    x = data(dtype, shape)
    module = module_of(op, [x], **attrs)
    cut = chunked(module)
    assert sum(o.name == "tensor.scan" for o in cut.main.body.ops) > 1
    (wanted,) = tw.interpret(module, x)
    if length % 2:
        with tw.compile(cut, target="opencl") as exe:
            (got,) = exe(x)
    else:
        (got,) = tw.interpret(cut, x)
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), rtol=1e-4)


def test_no_thread_walks_far():
    module = module_of("cumsum", [np.zeros((1, 1 << 20), np.float32)], axis=1)
    cut = chunked(module)
    steps = [dict(o["par"].items)[o["dim"]] for o in cut.main.body.ops if o.name == "tensor.scan"]
    assert max(steps) <= 256
    assert sum(steps) <= 512


def test_short_and_many_lines_stay_whole():
    hardware = GPU.hardware
    assert choose_chunk(1, 100, 4, hardware) == 0
    assert choose_chunk(1_000_000, 256, 4, hardware) == 0
    assert choose_chunk(1, 1 << 20, 4, hardware) > 0
    assert choose_chunk(1, 1 << 20, 4, resolve_target("opencl").hardware) == 0
