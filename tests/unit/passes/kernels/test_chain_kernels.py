"""The pass chain-kernels and its cost model: which kernels join, results that stay, sensible estimates."""

from dataclasses import replace

import chain_samples as samples
import numpy as np
import pytest
from decision_samples import template

import tilewright as tw
from tilewright.costmodel import load_hardware
from tilewright.ir import InputError, interpret
from tilewright.passes import PassContext, Pipeline, pipelines, run_pipeline
from tilewright.passes.kernels.chain.work import (
    ChainStageWork,
    ChainWork,
    bound_chain,
    estimate_chain,
    resident_chains,
)
from tilewright.passes.tensor.chains.chain_kernels import anchors

H100 = load_hardware("cuda:sm_90a")
STAGE = ChainStageWork(2000.0, 8, 1e6, 30000.0, 2.0, 2)
WORK = ChainWork(96, 256, 60000, 64, 1 << 20, 2e8, (STAGE, STAGE))


def chains(kernel: str, when: str = "always", only: str = ""):
    """The module after fusion and chaining for a GPU, equal to the one before."""
    m = samples.flat(kernel)
    option = f", only={only}" if only else ""
    text = f"forward-copies, dce, fuse-kernels, chain-kernels{{when={when}{option}}}, split-dims, merge-dims"
    ctx = PassContext(target="cuda:sm_90a", hardware=H100, verify_each=True)
    out = run_pipeline(m, Pipeline.parse(text), ctx)
    given = samples.inputs_of(m)
    for a, b in zip(interpret(m, *given), interpret(out, *given), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    return [anchors(f) for f in out.funcs if template(f) == "chain"], len(out.funcs) - 1


@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [
        (samples.attention(2, 32, 48, 32, 32), "contract-reduce-map-reduce-map-contract"),
        (samples.depthwise_pointwise(16, 12, 12, 12, 2), "window-contract"),
        (samples.expanded(8, 16, 12, 12), "contract-window"),
        (samples.two_convolutions(3, 8, 8, 12, 12), "contract-contract"),
        (samples.convolution_pool(3, 8, 12, 12), "contract-window"),
        (samples.two_products(16, 32, 48, 24), "contract-contract"),
    ],
)
def test_patterns_become_one_kernel(kernel, wanted):
    assert chains(kernel) == ([wanted], 1)


def test_squeeze_excite_joins_its_pooling_and_the_first_product():
    found, kernels = chains(samples.squeeze_excite(32, 8, 7, 7))
    assert found[0].startswith("reduce-contract")
    assert kernels <= 2


def test_nothing_is_chained_where_it_is_not_wanted():
    kernel = samples.two_products(16, 32, 48, 24)
    assert chains(kernel, "never")[0] == []
    assert chains(kernel, only="window-contract")[0] == []


def test_a_result_read_elsewhere_stays_a_kernel_of_its_own():
    assert chains(samples.two_convolutions(3, 8, 8, 12, 12, "%2, %1"))[0] == []


def test_what_exceeds_shared_memory_is_not_chained():
    assert chains(samples.attention(1, 8, 70000, 4, 4))[0] == []


def test_the_model_chains_small_attention():
    found, _ = chains(samples.attention(12, 128, 128, 64, 64), "auto")
    assert found[0].startswith("contract-reduce-map-reduce-map")


def test_values_of_when_are_named():
    with pytest.raises(InputError, match="expected when among"):
        chains(samples.two_products(4, 8, 8, 8), "sometimes")


def test_estimates_grow_with_the_work_and_stay_above_the_bound():
    least = estimate_chain(WORK, H100)
    assert least >= bound_chain(WORK, H100).seconds
    more = [
        replace(WORK, blocks=960),
        replace(WORK, stages=(STAGE, STAGE, STAGE)),
        replace(WORK, stages=(STAGE, replace(STAGE, instructions=9000.0))),
        replace(WORK, stages=(STAGE, replace(STAGE, round_trips=9.0))),
        replace(WORK, stages=(STAGE, replace(STAGE, fetched_bytes=4e5))),
    ]
    assert all(estimate_chain(w, H100) > least for w in more)
    assert bound_chain(replace(WORK, blocks=9600), H100).seconds > bound_chain(WORK, H100).seconds


def test_blocks_that_cannot_be_resident_have_no_estimate():
    for w in (replace(WORK, shared_bytes=233000), replace(WORK, threads=2048), replace(WORK, registers=300)):
        assert resident_chains(w, H100) == 0
        assert estimate_chain(w, H100) == float("inf")


@pytest.mark.parametrize("seed", range(2))
def test_random_shapes_end_to_end(seed, monkeypatch):
    rng = np.random.default_rng(seed)
    a, b, c, d = (int(x) for x in rng.integers(3, 14, 4))
    kernel = [
        samples.depthwise_pointwise(a, b, c + 3, d + 3, 1 + seed % 2),
        samples.attention(a, b, c, d, 2 * d),
    ][seed % 2]
    chained = pipelines.TENSOR.replace("split-dims", "chain-kernels{when=always}, split-dims")
    monkeypatch.setattr(pipelines, "TENSOR", chained)
    module = samples.flat(kernel)
    with tw.compile(module, "opencl", progress=False) as exe:
        assert len(exe.plan.launches) == 1
    assert samples.error(module, module, "opencl", seed) < 2e-6
