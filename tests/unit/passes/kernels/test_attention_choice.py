"""Where the compiler computes attention in registers, with which parameters, and the model of it."""

import numpy as np
import pytest
from attention_samples import attention, bert_block, masked
from decision_samples import parameters, template

import tilewright as tw
from tilewright.costmodel import load_hardware
from tilewright.frontends.zoo import gpt
from tilewright.ir import Func, InputError, Level, Module, parse
from tilewright.libraries.matching.attention import attentions_in
from tilewright.libraries.matching.constants import KernelConstants
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.analysis.attention import KEY
from tilewright.passes.kernels.attention.blocks import resident_attention
from tilewright.passes.kernels.attention.choice import AttentionPoint, attention_points, may_become_attention
from tilewright.passes.kernels.attention.parameters import AttentionParameters
from tilewright.passes.kernels.attention.view import attention_view, reach
from tilewright.passes.kernels.attention.work import estimate_attention
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.pipelines import official_stages
from tilewright.passes.tensor.chains.chain_kernels import choose_joined
from tilewright.tuning.kernels.search_space import search_space

H100 = load_hardware("cuda:sm_90a")


def sized(heads: int, tokens: int, size: int, keys: int = 0) -> Func:
    """Attention with a mask of queries and keys."""
    keys = keys or tokens
    kernel = attention(
        f"%q: f16[{tokens}, {heads}, {size}], %k: f16[{keys}, {heads}, {size}], "
        f"%v: f16[{keys}, {heads}, {size}], %mask: f16[{tokens}, {keys}]",
        rows=f"h: {heads}, m: {tokens}", out=f"h: {heads}, m: {tokens}, e: {size}", keys=keys,
        scores=masked("f16", "m, k"), last="%s1",
    )  # fmt: skip
    return parse(tw.show(Module("m", (kernel,))).replace("red = (c: 8)", f"red = (c: {size})"))["k"]


def kernels(module: Module, attention: str = "auto", precision: str = "fp16") -> Module:
    stages = (
        official_stages(Level.GRAPH, "cuda", precision)
        .down_to(Level.TENSOR)
        .replace(
            "chain-kernels", f"chain-kernels{{only=contract-reduce+reduce-reduce, attention={attention}}}"
        )
    )
    return run_pipeline(module, stages.whole, PassContext(target="cuda:sm_90a"))


@pytest.fixture(scope="module")
def bert() -> Module:
    return kernels(bert_block(), "always")


def in_registers(module: Module) -> list[Func]:
    return [f for f in module.funcs if template(f) == "attention"]


def test_bert_is_faster_in_registers_than_stage_by_stage():
    """96 heads of 128 tokens take less than half of a chain of stages, which does not fit for 768 heads."""
    for heads, fits in ((96, True), (768, False)):
        kernel = sized(heads, 128, 64)
        chosen, staged = choose_joined(kernel, H100), choose_joined(kernel, H100, "never")
        assert chosen is not None
        assert template(chosen) == "attention"
        assert (staged is not None) == fits
        if staged is not None:
            assert estimate_of(staged) > 2 * estimate_of(chosen)
    assert 10e-6 < estimate_of(chosen) < 30e-6


def by_fragments(kernel: Func) -> list[AttentionPoint]:
    """The points whose warps multiply fragments of their own, those of the smallest estimate first."""
    return [p for p in attention_points(kernel, H100) if not p.plan.by_roles]


def test_few_heads_get_small_blocks():
    few, many = (by_fragments(sized(heads, 128, 64))[0] for heads in (12, 768))
    assert few.work.blocks >= 24
    assert few.plan.row_tiles <= many.plan.row_tiles


def test_bounds_and_resources():
    """No estimate is below its bound; every point fits, and registers of those with more rows are more."""
    for kernel in (sized(12, 128, 64), sized(4, 197, 64), sized(2, 1000, 128), sized(768, 1024, 64)):
        for p in attention_points(kernel, H100):
            assert p.bound(H100).seconds <= p.estimate_s
        for p in by_fragments(kernel):
            assert p.estimate_s == estimate_attention(p.work, H100)
            assert resident_attention(p.work, H100) > 0
            assert p.work.shared_bytes <= H100.smem_per_block_max_bytes
            if p.plan.resident > 1:
                assert resident_attention(p.work, H100) >= p.plan.resident
    assert attention_points(sized(12, 128, 64), load_hardware("opencl")) == []
    assert attention_points(parse_f32(), H100) == []


def parse_f32() -> Func:
    return parse(tw.show(Module("m", (attention(),))).replace("f16", "f32"))["k"]


def test_what_is_no_attention():
    """Weights that are returned, divided by something else, or summed over other keys."""
    kernel = attention()
    assert attention_view(kernel) is not None
    ops = kernel.body.ops
    weights = ops[-4].results[0]
    both = kernel.with_body(
        kernel.body.with_ops((*ops[:-1], ops[-1].with_operands((*ops[-1].operands, weights))))
    )
    assert attention_view(both) is None
    text = tw.show(Module("m", (kernel,)))
    assert attention_view(parse(text.replace("scalar.exp(", "scalar.exp2("))["k"]) is None
    assert attention_view(parse(text.replace("scalar.sub(", "scalar.add("))["k"]) is None
    assert attention_view(attention(weights="%s0")) is None


def test_sequences_whose_rows_fit_no_shared_memory():
    """Softmax and mix alone are no legal chain; the three of them together are attention all the same."""
    long = gpt(layers=1, width=256, heads=4, sequence=2048, context=2048, vocabulary=32)
    (kernel,) = in_registers(kernels(long))
    view = attention_view(kernel)
    assert view is not None
    assert (view.sizes[KEY], view.inner, view.size(view.width)) == (2048, 64, 64)
    # The mask is a constant that is a choice by position: no tile beyond the queries is computed.
    assert len(kernel.params) == 1
    assert reach(view) == 0
    causal = [p.work.seen for p in by_fragments(kernel)]
    assert 0.5 < min(causal) < max(causal) < 0.6
    assert all(call.problem.causal for call in attentions_in(kernel))


def test_softmax_and_mix_may_become_attention():
    kernel = attention()
    rest = Func(Level.TENSOR, "rest", kernel.body.with_ops(kernel.body.ops[1:]), kernel.result_types)
    assert may_become_attention(rest)
    assert not may_become_attention(kernel)
    assert not may_become_attention(parse_f32())


def test_options_are_checked(bert):
    with pytest.raises(InputError, match="expected attention among auto, always, never"):
        kernels(bert_block(), "sometimes")
    assert in_registers(bert)
    staged = choose_joined(attention(), H100, "never")
    assert staged is not None
    assert template(staged) == "chain"


def test_libraries_still_find_their_place(bert):
    """cuDNN gets the problem that it got of three kernels: scale, no mask of zeros, slices of one product."""
    (kernel,) = in_registers(bert)
    (call, *_) = attentions_in(KernelConstants(bert).computed_in(kernel))
    assert (call.problem.scale, call.problem.bias) == (float(np.float16(8**-0.5)), None)
    assert call.problem.q.dims == (1, 2, 16, 8)
    assert [a.start for a in (call.problem.q, call.problem.k, call.problem.v)] == [0, 16, 32]


def test_search_measures_other_tiles():
    """Point 0 is the model's choice; points are found by their names again."""
    chosen = choose_joined(sized(768, 128, 64), H100)
    assert chosen is not None
    space = search_space(chosen, H100)
    assert space is not None
    assert 8 <= len(space) <= 25
    variants = [space.variant(i) for i in range(len(space))]
    assert variants[0] is chosen
    assert len({str(parameters(f)) for f in variants}) == len(variants)
    assert all(isinstance(parameters(f), AttentionParameters) for f in variants)
    assert (space.least_s <= space.estimates_s).all()
    assert space.point_named(space.named(3)) == 3
    assert space.point_named({"params": "others"}) is None
