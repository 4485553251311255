"""Attention of training steps on tensor cores: what is saved, what is dropped, what comes back; emulated."""

import numpy as np
import pytest
from attention_training import (
    emulated,
    exact,
    inputs_of,
    kernels_of,
    templates,
    thread_form,
    training_attention,
)

from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.passes.kernels.decision import decision_of, with_parameters

pytestmark = pytest.mark.emulator
ALWAYS = {"chain_kernels": "chain-kernels{attention=always}"}
#: largest error over the largest value
RESULT, LSE = 1e-3, 1e-6


def errors(module, kernels):
    inputs = inputs_of(module)
    pairs = zip(emulated(kernels, inputs), exact(module, inputs), strict=True)
    return [np.abs(a.astype(np.float64) - b).max() / np.abs(b).max() for a, b in pairs]


@pytest.mark.parametrize(
    "how",
    [
        {"causal": True, "dropout": True},  # random bits are computed where they are needed
        {"keys": 40, "bias": True, "heads": (2, 3), "shared": 1},
    ],
)
def test_logarithms_of_sums_come_with_the_result(how):
    module = training_attention(backward=False, **how)
    kernels = kernels_of(module, **ALWAYS)
    assert templates(kernels) == ["attention"]
    result, lse = errors(module, kernels)
    assert result < RESULT
    assert lse < LSE


BACKWARD = {**ALWAYS, "fuse_attention_backward": "fuse-attention-backward{when=always}"}


@pytest.mark.parametrize(
    "how",
    [
        {"queries": 40, "keys": 24, "bias": True, "dropout": True},
        {"queries": 40, "keys": 40, "heads": (2, 3), "shared": 1, "causal": True},
    ],
)
def test_gradients_are_two_kernels(how):
    """dq is one kernel, dk and dv are another; none stores a matrix of queries times keys."""
    module = training_attention(**how)
    kernels = kernels_of(module, **BACKWARD)
    assert templates(kernels)[-4:] == ["attention", "rows_kept", "pair_sums", "pair_sums"]
    result, lse, *gradients = errors(module, kernels)
    assert result < RESULT
    assert lse < LSE
    assert max(gradients) < 2e-3


def with_plan(kernels, *plan):
    """The module with these parameters of its kernels of gradients."""
    funcs = [
        with_parameters(f, **dict(zip(("rows", "tile", "warps", "stages", "held"), plan, strict=True)))
        if (d := decision_of(f)) is not None and d.template == "pair_sums"
        else f
        for f in kernels.funcs
    ]
    return kernels.with_funcs(tuple(funcs))


@pytest.mark.parametrize(
    ("plan", "window"),
    [
        ((32, 32, 1, 2, False), None),  # two tiles of rows per warp; the last rows and others are cut
        ((64, 16, 4, 3, True), 20),  # tiles of others that no row of a block or of a warp makes a pair with
    ],
)
def test_tiles_and_bands_of_gradients(plan, window):
    module = training_attention(heads=(1,), queries=75, keys=90, causal=True, window=window)
    kernels = with_plan(kernels_of(module, **BACKWARD), *plan)
    assert max(errors(module, kernels)[2:]) < 2e-3


def test_tf32_gradients():
    module = training_attention(heads=(2,), queries=40, keys=24, dtype="f32")
    kernels = kernels_of(module, "tf32", **BACKWARD)
    assert templates(kernels)[-2:] == ["pair_sums", "pair_sums"]
    assert max(errors(module, kernels)) < 2e-3


def test_kernels_of_gradients_spill_nothing():
    module = training_attention(heads=(384,), queries=128, keys=128, size=64)
    kernels = kernels_of(module)
    for f in kernels.funcs:
        decision = decision_of(f)
        if decision is not None and decision.template == "pair_sums":
            (used,) = compile_cuda(emit_cuda(thread_form(kernels, f)).source, arch="sm_90a").kernels.values()
            assert used.spill_bytes == 0
            assert decision.cost.bound_s < decision.cost.estimate_s
