"""Products by roles, of every kind that there is: no spills, nothing serialised, no fences in loops."""

from dataclasses import replace
from pathlib import Path

import pytest
from decision_samples import with_template
from matrix_samples import CTX, THREAD, convolution, gemm, matrix_parameters, view_of

from tests.samples.sass import faults, machine_code, nvdisasm
from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.compile_many import compile_cached
from tilewright.ir import Module
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.kernels.matrix.lowering import lower_matrix

STAYS = {"blocks": 132}
LEFT_OVER = STAYS | {"left_over": True}
TURNED = gemm("f32", 4096, 4096, 4096, "cm", "cn")
KERNELS = {
    "128x256 in rows": (gemm("bf16", 4096, 4096, 4096), (128, 256, 64, 8, 1, 4), STAYS),
    "two teams of 128x192": (gemm("f16", 8192, 768, 768), (128, 192, 64, 4, 1, 4), STAYS | {"teams": 2}),
    "128x144 in columns": (gemm("bf16", 768, 3072, 8192, "cm", "cn"), (128, 144, 64, 8, 1, 5), STAYS),
    "three warpgroups": (gemm("bf16", 3072, 768, 8192, "cm", "cn"), (192, 96, 64, 12, 1, 3), STAYS),
    "windows": (convolution("f16", 64, (28, 28), 128, 128, 3, 1, "NHWC"), (128, 128, 64, 8, 1, 5), STAYS),
    "three blocks": (
        convolution("f16", 64, (56, 56), 64, 256, 1, 1, "NHWC"),
        (128, 64, 64, 4, 1, 2),
        {"blocks": 396, "resident": 3},
    ),
    "two blocks": (gemm("f16", 50176, 512, 256), (128, 128, 64, 4, 1, 3), {"blocks": 264, "resident": 2}),
    "TF32 in rows": (gemm("f32", 4096, 4096, 4096), (128, 256, 32, 8, 1, 4), STAYS),
    "TF32 in columns": (gemm("f32", 4096, 4096, 4096, "cm", "nc"), (128, 256, 32, 8, 1, 4), STAYS),
    "TF32, the second turned": (TURNED, (256, 128, 32, 8, 1, 3), STAYS | {"turners": 4}),
    "two teams of turned ones": (TURNED, (128, 128, 32, 4, 1, 4), STAYS | {"turners": 4, "teams": 2}),
    "parts of turned ones": (
        gemm("f32", 768, 768, 8192, "cm", "cn"),
        (128, 128, 32, 8, 1, 4),
        {"turners": 4, "parts": 3},
    ),
    "float32 that a role splits": (
        gemm("f32", 4096, 4096, 4096, arithmetic="split"),
        (128, 144, 32, 8, 1, 2),
        STAYS | {"turners": 4},
    ),
    "short sums of float32 that a role splits": (
        gemm("f32", 25088, 512, 256, arithmetic="split"),
        (128, 96, 32, 8, 1, 3),
        STAYS | {"turners": 4},
    ),
    "uneven parts": (gemm("bf16", 768, 768, 8128, "cm", "cn"), (128, 160, 64, 8, 1, 5), {"parts": 4}),
    "parts of 256 columns": (gemm("bf16", 768, 768, 8192), (128, 256, 64, 8, 1, 4), {"parts": 7}),
    "tiles left over": (
        convolution("f16", 64, (14, 14), 256, 256, 3, 1, "NHWC"),
        (128, 128, 64, 8, 1, 4),
        LEFT_OVER | {"parts": 2, "stores": "engine"},
    ),
    "uneven parts of what is left over": (
        gemm("bf16", 2560, 2560, 8128, "cm", "cn"),
        (192, 192, 64, 12, 1, 4),
        LEFT_OVER | {"parts": 2},
    ),
    "turned ones left over": (
        gemm("f32", 2560, 2560, 4096, "cm", "cn"),
        (128, 160, 32, 8, 1, 4),
        LEFT_OVER | {"turners": 4, "parts": 2},
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_products_by_roles(name: str, tmp_path: Path):
    kernel, tiles, more = KERNELS[name]
    plan = matrix_parameters(*tiles, view_of(kernel).channel, engine="wgmma")
    plan = replace(plan, copiers=4, transport="engine", **more)
    thread = lower_matrix(with_template(kernel, "matrix", plan))
    func = run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]
    binary = compile_cached(emit_cuda(func).source)
    assert not binary.serialised
    assert binary.kernels["k"].spill_bytes == 0
    if nvdisasm() is not None:
        assert faults(machine_code(binary, tmp_path), binary.log) == []
