"""Chains on tensor cores: every pattern with forced tiles against the interpreter; what is refused, and why."""

import chain_samples as samples
import pytest

from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, UnsupportedError, parse
from tilewright.passes.kernels.chain_tiles.view import tiles_chain, unfit, walked_dim

BLOCK = {"n": 1, "y": 6, "x": 6, "k": 24}
CASES = {
    "residual": (samples.inverted_residual(2, 12, 12, 24, 96, 24), BLOCK, 48, 4),
    "one step": (samples.inverted_residual(1, 12, 12, 24, 96, 24), BLOCK, 0, 4),
    "three steps": (samples.inverted_residual(1, 7, 7, 16, 144, 16), {"n": 1, "y": 7, "x": 7, "k": 16}, 48, 2),
    "strided": (samples.inverted_residual(2, 13, 14, 24, 96, 40, stride=2, parts="ep"), BLOCK | {"k": 40}, 32, 4),
    "wider windows": (samples.inverted_residual(1, 9, 10, 16, 64, 24, taps=5, parts="ep"), BLOCK, 16, 8),
    "tiles over edges": (
        samples.inverted_residual(2, 11, 13, 24, 64, 24), {"n": 2, "y": 4, "x": 8, "k": 24}, 32, 4
    ),
    "columns in tiles": (
        samples.inverted_residual(1, 8, 8, 32, 64, 48, parts="ep"), {"n": 1, "y": 8, "x": 4, "k": 16}, 32, 4
    ),
    "window and product": (samples.inverted_residual(2, 12, 12, 24, 96, 24, parts="p"), BLOCK, 48, 4),
    "product and window": (
        samples.inverted_residual(2, 12, 12, 24, 96, 24, parts="e"), BLOCK | {"k": 32}, 0, 4
    ),
    "strided product and window": (
        samples.inverted_residual(2, 13, 12, 24, 96, 24, stride=2, parts="e"), BLOCK | {"k": 48}, 0, 4
    ),
    "brain floats": (samples.inverted_residual(1, 8, 8, 16, 32, 16, dtype="bf16"), {"n": 1, "y": 4, "x": 8, "k": 16}, 16, 2),
    "products": (samples.halves(48, 64, 96, 24), {"m": 32, "k": 24}, 32, 2),
    "bottleneck": (samples.bottleneck(2, 9, 10, 48, 32), {"n": 1, "y": 3, "x": 5, "k": 48}, 16, 4),
    "bottleneck, whole": (samples.bottleneck(1, 7, 7, 64, 32), {"n": 1, "y": 7, "x": 7, "k": 64}, 0, 8),
}  # fmt: skip


@pytest.mark.emulator
@pytest.mark.parametrize("name", list(CASES))
def test_results_in_the_emulator(name):
    kernel, block, part, warps = CASES[name]
    module = samples.chained_tiles(kernel, block, part, warps)
    limit = 1.2e-2 if name == "brain floats" else 2e-3
    assert samples.error(module, samples.called(kernel), "emulator") < limit


@pytest.mark.parametrize("name", list(CASES))
def test_cuda_text_compiles_without_spills(name):
    kernel, block, part, warps = CASES[name]
    lowered = lower(samples.chained_tiles(kernel, block, part, warps), resolve_target("cuda:sm_90a"))
    (source,) = lowered.sources.values()
    (resources,) = compile_cuda(source.source, arch="sm_90a").kernels.values()
    assert resources.spill_bytes == 0
