"""Attention is found by what it computes, in one kernel or several, and left to cuDNN as one call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_samples import CHOSEN, SCALED, attention, bert_block, lowered, masked
from cudnn_samples import FakeCudnn
from decision_samples import with_template
from library_samples import FakeLibraryDevice
from test_library_candidates import random_arrays, run_main
from test_library_choice import FakeDatabase, same_results
from test_library_convolutions import by_cudnn

from tilewright.compilation.kernel_builds import emit_kernels, kernel_codes
from tilewright.compilation.planning import library_kernels, plan_module
from tilewright.devices.targets import resolve_target
from tilewright.frontends.zoo.gpt import gpt
from tilewright.ir import Func, Level, Module
from tilewright.libraries.candidates import library_candidates
from tilewright.libraries.choice import LibraryChoice
from tilewright.libraries.comparison import timed_program
from tilewright.libraries.fusion_groups import attention_groups, with_fused_kernels
from tilewright.libraries.matching.attention import attentions_in
from tilewright.libraries.matching.constants import (
    KernelConstants,
    fact_of,
    facts_in,
    with_facts,
    with_true_constants,
)
from tilewright.libraries.program import inlined, program_around
from tilewright.measuring.kernel_program import constants_of, kernel_program
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.pipelines import official_stages
from tilewright.runtime.errors import InputError
from tilewright.runtime.libraries.attention import AttentionProblem
from tilewright.runtime.libraries.convolution import Array4
from tilewright.runtime.libraries.cudnn import Cudnn
from tilewright.runtime.libraries.kernel import LibraryKernel

__all__ = ["same_results"]

PLAIN = "%q: f16[6, 2, 8], %k: f16[10, 2, 8], %v: f16[10, 2, 16]"
CAUSAL: dict[int, float | str] = {1: "causal"}
SQUARE = {"keys": 6, "at": ("m, h, c", "k, h, c + 16", "k, h, e + 32"), "out": "h: 2, m: 6, e: 8"}
#: name -> what the kernel is made of, what is known of its parameters, and what its problem must be (None:
#: it is no attention)
CASES: dict[str, tuple[dict[str, Any], dict[int, float | str], dict[str, Any] | None]] = {
    "heads in the middle": ({}, {}, {"scale": 1.0, "bias": None, "causal": False}),
    "mask of queries and keys": (
        {"params": f"{PLAIN}, %mask: f32[6, 10]", "scores": masked("f32", "m, k"), "last": "%s1"},
        {}, {"scale": 0.25, "bias_dtype": "float32", "bias": Array4((1, 1, 6, 10), (60, 60, 10, 1))},
    ),
    "mask of keys in 16 bits": (
        {"params": f"{PLAIN}, %mask: f16[10]", "scores": masked("f16", "k"), "last": "%s1"},
        {}, {"bias_dtype": "float16", "bias": Array4((1, 1, 1, 10), (10, 10, 10, 1))},
    ),
    "a mask that is a number": (
        {"params": f"{PLAIN}, %mask: f32[6, 10]", "scores": masked("f32", "m, k"), "last": "%s1"},
        {3: 0.0}, {"scale": 0.25, "bias": None},
    ),
    "batch and heads": (
        {"params": "%q: f16[3, 6, 2, 8], %k: f16[3, 10, 2, 8], %v: f16[3, 2, 16, 10], %mask: f32[3, 10]",
         "at": ("b, m, h, c", "b, k, h, c", "b, h, e, k"), "rows": "b: 3, h: 2, m: 6",
         "out": "b: 3, h: 2, m: 6, e: 16", "scores": masked("f32", "b, k"), "last": "%s1"},
        {}, {"q": Array4((3, 2, 6, 8), (96, 8, 16, 1)), "v": Array4((3, 2, 10, 16), (320, 160, 1, 10)),
             "bias": Array4((3, 1, 1, 10), (10, 10, 10, 1))},
    ),
    "batch and heads as one dimension": (
        {"params": "%q: f16[3, 6, 2, 8], %k: f16[3, 10, 2, 8], %v: f16[3, 10, 2, 16]",
         "at": ("b // 2, m, b % 2, c", "b // 2, k, b % 2, c", "b // 2, k, b % 2, e"), "rows": "b: 6, m: 6",
         "out": "b: 6, m: 6, e: 16"},
        {}, {"q": Array4((3, 2, 6, 8), (96, 8, 16, 1)), "d": Array4((3, 2, 6, 16), (192, 96, 16, 1))},
    ),
    "parts of one array, causal": (
        {"params": "%j: f16[6, 2, 40], %seen: bool[6, 6]", "operands": ("%j",) * 3, "scores": SCALED + CHOSEN,
         "last": "%s1", **SQUARE},
        CAUSAL, {"causal": True, "k": Array4((1, 2, 6, 8), (480, 40, 80, 1), 16)},
    ),
    "a mask that is not known": (
        {"params": "%j: f16[6, 2, 40], %seen: bool[6, 6]", "operands": ("%j",) * 3, "scores": SCALED + CHOSEN,
         "last": "%s1", **SQUARE},
        {}, None,
    ),
    "other numbers below the line": ({"weights": "%s0"}, {}, None),
    "results of 32 bits": ({"returned": "%d6"}, {}, None),
    "heads that do not start at 16 bytes": (
        {"params": "%q: f16[6, 2, 9], %k: f16[10, 2, 8], %v: f16[10, 2, 16]",
         "at": ("m, h, c + 1", "k, h, c", "k, h, e")}, {}, None,
    ),
}  # fmt: skip


def named_kernel(name: str) -> Func:
    made, facts, _ = CASES[name]
    return with_facts(attention(**made), facts)


@pytest.mark.parametrize("name", CASES)
def test_attention_is_found_by_what_it_computes(name: str) -> None:
    calls = attentions_in(named_kernel(name))
    wanted = CASES[name][2]
    assert bool(calls) is (wanted is not None)
    for call in calls[:1]:
        call.problem.check()
        assert wanted is not None
        assert {field: getattr(call.problem, field) for field in wanted} == wanted


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n][2] is not None])
def test_the_problem_says_what_the_kernel_computes(name: str) -> None:
    kernel = named_kernel(name)
    arrays = random_arrays(kernel)
    for i, fact in CASES[name][1].items():
        shape = arrays[i].shape
        arrays[i] = np.tri(*shape, dtype=bool) if fact == "causal" else np.full(shape, fact, np.float32)
    (wanted,) = run_main(kernel_program(attention(**CASES[name][0]), ()), arrays)
    for call in attentions_in(kernel):
        (whole,) = run_main(program_around(call.kernel or kernel, call), arrays)
        np.testing.assert_array_equal(whole, wanted)
        by_value = dict(zip(kernel.params, arrays, strict=True))
        if call.kernel is not None:  # its mask is written out before
            before, mask = program_around(call.kernel, call)["k_before"], call.operands[3]
            given = [by_value[v] for v in kernel.params if v.tensor == before.params[0].tensor]
            (by_value[mask],) = run_main(kernel_program(before, ()), given)
        got = by_cudnn(call, [by_value[v] for v in call.operands])
        np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), rtol=4e-3, atol=4e-3)


def test_masks_of_keys_may_be_written_out_for_all_queries() -> None:
    first, second = attentions_in(named_kernel("batch and heads"))
    assert [c.problem.bias.dims for c in (first, second)] == [(3, 1, 1, 10), (3, 1, 6, 10)]  # type: ignore[attr-defined]
    assert len(attentions_in(named_kernel("mask of queries and keys"))) == 1


def test_what_others_read_is_not_hidden_in_a_call() -> None:
    kernel = attention()
    *ops, last = kernel.body.ops
    weights = next(
        op.result for op in ops if op.result.tensor.shape == (2, 6, 10) and op.name == "tensor.map"
    )
    more = replace(last, operands=(*last.operands, weights))
    types = (*kernel.result_types, weights.type)
    assert attentions_in(kernel)
    assert not attentions_in(replace(kernel, body=kernel.body.with_ops((*ops, more)), result_types=types))


@pytest.fixture(scope="module")
def bert() -> Module:
    return lowered(bert_block())


def test_three_kernels_of_bert_are_one_call(bert: Module) -> None:
    (group,) = attention_groups(bert)
    assert [len(group.kernels), len(group.sites)] == [3, 1]
    (call,) = attentions_in(group.fused)
    # The mask is a constant of zeros and the scale a constant of 16 bits.
    assert isinstance(call.problem, AttentionProblem)
    assert (call.problem.scale, call.problem.bias) == (float(np.float16(8**-0.5)), None)
    # Queries, keys and values are slices of one product.
    arrays4 = (call.problem.q, call.problem.k, call.problem.v)
    assert arrays4 == tuple(Array4((1, 2, 16, 8), (768, 8, 48, 1), start) for start in (0, 16, 32))
    arrays = random_arrays(bert.main)
    (wanted,) = run_main(bert, arrays)
    (got,) = run_main(with_fused_kernels(bert, [group]), arrays)
    np.testing.assert_array_equal(got, wanted)
    # What is compared on the device: random inputs, but the constants that the one kernel knows.
    at = group.constants(constants_of(bert))
    programs = (timed_program(group.program(), at), kernel_program(group.fused, at))
    given = random_arrays(programs[0].main)
    (parts,), (whole,) = (run_main(with_true_constants(m, at, group.fused), given) for m in programs)
    np.testing.assert_array_equal(parts.reshape(whole.shape), whole)
    assert np.any(run_main(programs[0], given)[0].reshape(whole.shape) != whole)


def test_batches_of_bert_are_found_where_dimensions_were_merged() -> None:
    (group,) = attention_groups(lowered(bert_block(batch=3)))
    problem = attentions_in(group.fused)[0].problem
    assert isinstance(problem, AttentionProblem)
    assert problem.q == Array4((3, 2, 16, 8), (768, 8, 48, 1))


def test_float32_is_not_left_to_fused_attention() -> None:
    assert attention_groups(lowered(bert_block(tokens=8), "fp32")) == []


class CudnnMeasurer:
    """Every program with a library kernel takes `library_s`, every other one 1e-4 seconds."""

    def __init__(self, library_s: float) -> None:
        self.target = resolve_target("cuda:sm_90a")
        self.device = FakeLibraryDevice(Cudnn(FakeCudnn()))
        self.library_s, self.reused = library_s, 0
        self.database = FakeDatabase()

    def key(self, subject: str) -> str:
        return subject

    def seconds(self, modules: list[Module]) -> list[float]:
        return [self.library_s if library_kernels(m) else 1e-4 for m in modules]


def with_templates(module: Module) -> Module:
    return module.with_funcs(
        tuple(f if f.name == "main" else with_template(f, "map", None) for f in module.funcs)
    )


def test_a_call_takes_the_place_of_three_kernels(bert: Module, same_results: dict[str, float]) -> None:
    choice = LibraryChoice(CudnnMeasurer(5e-5), progress=False)  # type: ignore[arg-type]
    chosen = choice.choose(with_templates(bert))
    kinds = {k.operation for k in library_kernels(chosen).values()}
    assert {"attention", "norm"} <= kinds
    facts = choice.facts
    assert facts["compared"][0]["chosen"] == "cudnn"
    # One launch of attention stands for three generated ones, what is generated around calls for none.
    assert facts["operators"]["cudnn"] == facts["launches"]["cudnn"] + 2
    total = sum(op.name == "tensor.call" for op in bert.main.body.ops)
    assert sum(facts["operators"].values()) == total < sum(facts["launches"].values()) + 2
    assert all(f.get("operators") is None for f in chosen.funcs)
    assert facts["generated_share_of_operators"] == facts["operators"]["generated"] / total
    arrays = random_arrays(bert.main)
    np.testing.assert_allclose(
        run_main(chosen, arrays)[0], run_main(bert, arrays)[0], rtol=1e-5, atol=1e-5
    )  # fmt: skip
    again = LibraryChoice(choice.measurer, progress=False)
    assert library_kernels(again.choose(with_templates(bert))) == library_kernels(chosen)


def test_what_is_slower_stays_three_kernels(bert: Module, same_results: dict[str, float]) -> None:
    choice = LibraryChoice(CudnnMeasurer(2e-4), progress=False)  # type: ignore[arg-type]
    chosen = choice.choose(with_templates(bert))
    assert not library_kernels(chosen)
    assert choice.facts["generated_share_of_operators"] == 1.0
    assert {f.name for f in chosen.funcs} == {f.name for f in bert.funcs}


def test_three_kernels_come_back_where_the_network_is_slower(
    bert: Module, same_results: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def refuse_all(module: Module, programs: Any, groups: Any, network: Any, *rest: Any) -> dict[str, Any]:
        seen.extend(len(library_kernels(network(some))) for some in (programs, {}))
        return {"refused": sorted(programs)}

    monkeypatch.setattr("tilewright.libraries.choice.validated_libraries", refuse_all)
    choice = LibraryChoice(CudnnMeasurer(5e-5), progress=False, streams="model")  # type: ignore[arg-type]
    chosen = choice.choose(with_templates(bert))
    assert seen[0] > seen[1] == 0
    assert not library_kernels(chosen)
    arrays = random_arrays(bert.main)
    np.testing.assert_array_equal(run_main(chosen, arrays)[0], run_main(bert, arrays)[0])


def test_gpt_is_causal_by_its_constants_and_a_plan_may_name_a_buffer_thrice() -> None:
    module = lowered(gpt(layers=1, width=16, heads=2, vocabulary=32, context=16, sequence=16))
    (group,) = attention_groups(module)
    (call, *_) = attentions_in(group.fused)
    assert isinstance(call.problem, AttentionProblem)
    assert call.problem.causal
    assert len(set(call.operands)) == 1
    device = FakeLibraryDevice(Cudnn(FakeCudnn()))
    target = resolve_target("cuda:sm_90a")
    (program, *_) = library_candidates(group.fused, target.hardware, device, missing={})
    whole = with_fused_kernels(module, [group])
    stages = official_stages(Level.TENSOR, "cuda").since("choose-parameters").without("prefetch-weights")
    main = inlined(kernel_program(group.fused, ()), {group.fused.name: program})
    kept = run_pipeline(main, stages.whole, PassContext(target=str(target), verify_each=True))
    sources = emit_kernels(kept, target)
    plan = plan_module(kept, sources, kernel_codes(sources, target), str(target))
    (launch,) = (x for x in plan.launches if plan.kernel_by_name[x.kernel].language == "library")
    assert launch.args[0] == launch.args[1] == launch.args[2]
    assert len(whole.funcs) == len(module.funcs) - len(group.kernels) + 1


def test_a_mask_seen_in_another_shape_is_not_told() -> None:
    kernel = attention(params=f"{PLAIN}, %mask: f32[36]", scores=masked("f32", "k"), last="%s1", keys=10)
    entry = kernel_program(kernel, {3})
    square = np.where(np.tri(6, dtype=bool), 0, -np.inf).astype(np.float32)
    module = entry.with_constants(entry.constants.updated({"constant0": square}))
    assert facts_in(KernelConstants(module).computed_in(kernel)) == {}
    zeros = entry.with_constants(entry.constants.updated({"constant0": np.zeros(36, np.float32)}))
    assert facts_in(KernelConstants(zeros).computed_in(kernel)) == {3: 0.0}


def test_constants_are_told_for_what_they_are() -> None:
    seen = np.tri(5, dtype=bool)
    assert fact_of(np.float16(0.125)[None]) == 0.125
    assert fact_of(np.zeros((3, 4), np.float32)) == 0.0
    assert fact_of(seen) == fact_of(seen[None, None]) == "causal"
    assert fact_of(np.where(seen, 0, -np.inf).astype(np.float32)) == "causal"
    for other in (
        seen.T,
        ~seen,
        np.where(seen, 0, -1.0),
        np.where(seen, 1.0, -1e9),
        np.tri(4, 5),
        np.ones(2, bool),
    ):
        assert fact_of(np.asarray(other)) is None


def kernel() -> LibraryKernel:
    (call,) = attentions_in(named_kernel("mask of queries and keys"))
    return LibraryKernel("cudnn", "9.19.0", call.problem, "eng0_k2=1", 0)


def test_json_of_attention_round_trips_and_refuses_the_rest() -> None:
    text = kernel().to_json()
    assert LibraryKernel.from_json(text) == kernel()
    plain = replace(kernel(), problem=replace(kernel().problem, bias=None, bias_dtype=""))
    assert LibraryKernel.from_json(plain.to_json()) == plain
    for old, new, fault in (
        ('"scale": 0.25', '"scale": 1', "expected scale to be of type float, got int"),
        ('"causal": false', '"causal": 0', "expected causal to be of type bool"),
        (', "causal": false', "", "misses 'causal'"),
        ('"dtype": "float16"', '"dtype": "float32"', "expected dtype among float16, bfloat16"),
        ('"bias_dtype": "float32"', '"bias_dtype": "bfloat16"', "expected bias_dtype among"),
        ('"dims": [1, 2, 10, 8]', '"dims": [1, 2, 11, 8]', "expected v of"),
        ('"dims": [1, 1, 6, 10]', '"dims": [1, 1, 5, 10]', "expected a bias that extends to"),
    ):
        changed = text.replace(old, new)
        assert changed != text, old
        with pytest.raises(InputError, match=fault):
            LibraryKernel.from_json(changed)
