"""Products on tensor cores that start early: their blocks ask for all weights once, and compute the same."""

from dataclasses import replace

import numpy as np
import pytest
from codegen_samples import run
from decision_samples import with_template
from matrix_samples import CTX, THREAD, convolution, gemm, inputs_of, matrix_parameters, view_of
from weight_lines import all_lines, lines_asked_for

from tilewright.ir import Func, Module, walk
from tilewright.ir.thread.launch_ops import PREFETCH
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.kernels.matrix.lowering import lower_matrix
from tilewright.passes.kernels.writing.prefetch import PREFETCHED

#: kernels with weights that fill whole lines, and their parameters
WHOLE = {
    "rows": (gemm("f16", 40, 72, 256), (32, 24, 64, 2, 1, 2), {}),
    "short chunks": (gemm("f16", 40, 64, 256), (32, 32, 32, 2, 1, 3), {}),
    "long chunks": (gemm("bf16", 20, 64, 512), (32, 32, 128, 2, 1, 2), {}),
    "many blocks along m": (gemm("f16", 300, 64, 256), (16, 32, 64, 1, 1, 2), {"raster": 4}),
    "a batch": (gemm("f16", 40, 64, 192, batch=3), (32, 32, 64, 2, 1, 2), {}),
    "columns": (gemm("f16", 40, 128, 160, second="cn"), (32, 64, 32, 2, 1, 2), {}),
    "tf32": (gemm("f32", 40, 64, 160), (32, 32, 32, 2, 1, 2), {}),
    "parts": (gemm("f16", 40, 64, 512), (32, 32, 64, 2, 1, 2), {"parts": 2}),
    "warpgroups": (gemm("f16", 70, 64, 512), (64, 32, 64, 4, 1, 3), {"engine": "wgmma"}),
    "windows": (convolution("f16", 1, (6, 7), 64, 32, 3, 1, "NHWC"), (16, 16, 64, 1, 1, 2), {}),
    "roles": (gemm("f16", 70, 64, 256), (64, 32, 64, 4, 1, 3), {"engine": "wgmma", "copiers": 4}),
    "engine": (
        gemm("f16", 70, 64, 256),
        (64, 32, 64, 4, 1, 3),
        {"engine": "wgmma", "copiers": 4, "transport": "engine"},
    ),
    "roles in parts": (
        gemm("f16", 70, 64, 512),
        (64, 32, 64, 4, 1, 3),
        {"engine": "wgmma", "copiers": 4, "transport": "engine", "parts": 2},
    ),
}
#: kernels whose weights end within lines or tiles, or whose blocks take several tiles
UNEVEN = {
    "edges": (gemm("f16", 37, 50, 136), (32, 32, 32, 2, 1, 2), {}),
    "uneven parts": (gemm("f16", 37, 56, 328), (32, 32, 64, 2, 1, 2), {"parts": 2}),
    "few channels": (convolution("f16", 1, (9, 9), 24, 20, 3, 2, "NHWC"), (16, 16, 32, 1, 1, 3), {}),
    "several tiles": (
        gemm("f16", 70, 100, 72),
        (64, 32, 32, 4, 1, 3),
        {"engine": "wgmma", "copiers": 4, "blocks": 1, "teams": 2},
    ),
}


def lowered(kernel: Func, tiles: tuple[int, ...], more: dict, *, prefetch: bool) -> Func:
    chosen = {name: more[name] for name in ("raster", "engine") if name in more}
    plan = matrix_parameters(*tiles, view_of(kernel).channel, **chosen)
    plan = replace(plan, **{name: value for name, value in more.items() if name not in chosen})
    marked = kernel.with_attrs(**{PREFETCHED: (1,)}) if prefetch else kernel
    thread = lower_matrix(with_template(marked, "matrix", plan))
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]


@pytest.mark.parametrize("name", [*WHOLE, *UNEVEN])
def test_lines_of_the_weights_are_asked_for(name):
    kernel, tiles, more = (WHOLE | UNEVEN)[name]
    func = lowered(kernel, tiles, more, prefetch=True)
    weights = func.params[1]
    prefetches = [op for op in walk(func.body) if op.name == PREFETCH]
    assert prefetches
    assert all(op["early"] and op.operands[0] is weights for op in prefetches)
    prefetched = lines_asked_for(func, func.body.ops, PREFETCH, weights)
    # the first chunks, which are copied at the top of the kernel; the loop over the others has barriers
    apart = {"thread.barrier", "thread.publish"}
    top = [op for op in func.body.ops if op.body is None or apart.isdisjoint(o.name for o in walk(op.body))]
    copied = lines_asked_for(func, top, "thread.copy_async", weights)
    if name in WHOLE:
        assert prefetched | copied == all_lines(weights)
    else:
        assert prefetched | copied <= all_lines(weights)


@pytest.mark.emulator
@pytest.mark.parametrize("name", ["rows", "parts", "roles in parts", "uneven parts"])
def test_prefetches_change_no_result(name):
    kernel, tiles, more = (WHOLE | UNEVEN)[name]
    inputs = inputs_of(kernel)
    (with_them,) = run(lowered(kernel, tiles, more, prefetch=True), "emulator", inputs).values()
    (without,) = run(lowered(kernel, tiles, more, prefetch=False), "emulator", inputs).values()
    np.testing.assert_array_equal(with_them, without)
