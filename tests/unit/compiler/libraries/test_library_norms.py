"""Normalisations are found by what they compute, as their graphs compute it; so is GELU with tanh."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_samples import bert_block, lowered, norm
from cudnn_samples import FakeCudnn
from decision_samples import with_template
from library_samples import FakeLibraryDevice
from test_library_candidates import by_library, random_arrays, run_main
from test_library_convolutions import by_cudnn

from tilewright.compilation.planning import library_kernels
from tilewright.costmodel import load_hardware
from tilewright.frontends.zoo.gpt import gpt
from tilewright.ir import Func, Module, parse, show
from tilewright.libraries.candidates import graphs_in, library_candidates, products_in
from tilewright.libraries.matching.constants import KernelConstants
from tilewright.libraries.matching.matmul import BUFFER_DTYPE
from tilewright.libraries.matching.norm import norms_in
from tilewright.libraries.program import program_around
from tilewright.measuring.kernel_program import kernel_program
from tilewright.runtime.errors import InputError
from tilewright.runtime.libraries.convolution import Array4
from tilewright.runtime.libraries.cudnn import Cudnn
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.matmul import MatmulProblem
from tilewright.runtime.libraries.norm import NormProblem


def edited(kernel: Func, old: str, new: str) -> Func:
    text = show(Module("m", (kernel,)))
    assert old in text
    return parse(text.replace(old, new))["k"]


@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("affine", ["f32", "f16"])
@pytest.mark.parametrize("out", ["f32", "f16"])
def test_the_problem_says_what_the_kernel_computes(kind: str, affine: str, out: str) -> None:
    kernel = norm(kind, 0.5, affine=affine, out=out)
    arrays = random_arrays(kernel)
    (wanted,) = run_main(kernel_program(kernel, ()), arrays)
    calls = norms_in(kernel)
    assert len(calls) == (2 if out == "f16" else 1)
    for call in calls:
        problem = call.problem
        assert isinstance(problem, NormProblem)
        problem.check()
        assert (problem.kind, problem.epsilon, problem.x.dims) == (kind, 0.5, (6, 32, 1, 1))
        np.testing.assert_array_equal(run_main(program_around(kernel, call), arrays)[0], wanted)
        by_value = dict(zip(kernel.params, arrays, strict=True))
        got = by_cudnn(call, [by_value[v] for v in call.operands])
        np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), rtol=2e-3, atol=2e-3)
    assert calls[0].problem.result == {"f32": "float32", "f16": "float16"}[out]


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("layer", "value = 32.0", "value = 31.0"),  # no mean
        ("layer", "scalar.sub(%", "scalar.add(%"),
        ("rms", "scalar.rsqrt", "scalar.sqrt"),
        ("rms", "init = [0.0]", "init = [1.0]"),
        ("layer", "value = 1e-05", "value = -1e-05"),
    ],
)
def test_what_is_no_norm_is_left(kind: str, old: str, new: str) -> None:
    kernel = norm(kind)
    assert norms_in(kernel)
    if old not in show(Module("m", (kernel,))):  # a default is not printed
        old, new = "reads = [[i, j]]) : f32[6]", "reads = [[i, j]], init = [1.0]) : f32[6]"
    assert not norms_in(edited(kernel, old, new))


def test_what_a_kernel_computes_before_is_a_kernel_of_its_own() -> None:
    kernel = norm("layer")
    text = show(Module("m", (kernel,)))
    text = text.replace("%x: f32[6, 32]", "%x0: f32[6, 32], %xx: f32[6, 32]").replace(
        ") -> f32[6, 32] {\n",
        """) -> f32[6, 32] {
    %x = tensor.map(%x0, %xx, par = (i: 6, j: 32), reads = [[i, j], [i, j]]) : f32[6, 32] {
      ^(%u: f32, %o: f32) %l = scalar.add(%u, %o) : f32 scalar.yield(%l) }
""",
    )
    longer = parse(text)["k"]
    (call,) = norms_in(longer)
    program = program_around(longer, call)
    assert [f.name for f in program.funcs] == ["k_before", "k_library", "main"]
    arrays = random_arrays(longer)
    np.testing.assert_array_equal(
        run_main(program, arrays)[0], run_main(kernel_program(longer, ()), arrays)[0]
    )


def test_norms_of_bert_are_candidates() -> None:
    module = lowered(bert_block())
    found = [f for f in module.funcs if f.name != "main" and norms_in(f)]
    assert len(found) == 2
    device, hardware = FakeLibraryDevice(Cudnn(FakeCudnn())), load_hardware("cuda:sm_90a")
    sizes = []
    for f in found:
        kernel = with_template(f, "reduce")
        (first, *_) = library_candidates(kernel, hardware, device, missing={})
        assert [k.operation for k in library_kernels(first).values()] == ["norm"]
        sizes.append(len(first.funcs))
    assert sizes == [2, 2]  # sums behind norms are stored in 16 bits, so that nothing is made beside them


def test_gelu_is_taken_only_in_the_form_with_tanh() -> None:
    epilogues = []
    for module in (lowered(bert_block()), lowered(bert_block(tanh=True))):
        known = KernelConstants(module)
        told = (known.computed_in(f) for f in module.funcs if f.name != "main")
        calls = [(f, c) for f in told for c in products_in(f)]
        epilogues.append([c.problem.epilogue for _, c in calls if isinstance(c.problem, MatmulProblem)])
    assert not any("gelu" in e for e in epilogues[0])
    assert epilogues[1].count("gelu_bias") == 1
    ((kernel, call),) = ((f, c) for f, c in calls if c.problem.epilogue == "gelu_bias")  # type: ignore[attr-defined]
    arrays = random_arrays(kernel)
    by_value = dict(zip(kernel.params, arrays, strict=True))
    (wanted,) = run_main(program_around(kernel, call), arrays)
    got = by_library(call, [by_value[v] for v in call.operands])
    np.testing.assert_allclose(
        got.astype(np.float32).reshape(wanted.shape), wanted.astype(np.float32), rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_mlp_of_gpt_is_one_product_with_gelu(precision: str) -> None:
    module = lowered(gpt(layers=2, width=16, heads=2, vocabulary=32, context=8, sequence=8), precision)
    known = KernelConstants(module)
    calls = [c for f in module.funcs if f.name != "main" for c in products_in(known.computed_in(f))]
    assert "gelu_bias" in {getattr(c.problem, "epilogue", "") for c in calls}


PROBLEM = NormProblem(
    "layer", Array4((6, 32, 1, 1), (32, 1, 32, 32)), Array4((6, 32, 1, 1), (32, 1, 32, 32)),
    "float32", "float16", "float32", 1e-12,
)  # fmt: skip


def test_json_of_norms_round_trips() -> None:
    kernel = LibraryKernel("cudnn", "9.19.0", PROBLEM, "eng0_k2=1", 16)
    text = kernel.to_json()
    assert LibraryKernel.from_json(text) == kernel
    for old, new, fault in (
        ('"epsilon": 1e-12', '"epsilon": 0', "expected epsilon to be of type float, got int"),
        ('"has_bias": true', '"has_bias": 1', "expected has_bias to be of type bool"),
        ('"kind": "layer"', '"kind": "group"', "expected kind among layer, rms"),
    ):
        with pytest.raises(InputError, match=fault):
            LibraryKernel.from_json(text.replace(old, new))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"epsilon": -1.0}, "expected epsilon to be 0.0 or more"),
        ({"epsilon": float("nan")}, "expected epsilon to be 0.0 or more"),
        ({"has_bias": False}, "expected a bias"),
        ({"vectors": "float64"}, "expected vectors among"),
        ({"x": Array4((6, 31, 1, 1), (32, 1, 32, 32))}, "expected rows and columns"),
        ({"x": Array4((6, 32, 1, 1), (32, 1, 32, 32), 3)}, "multiple of 16 bytes"),
    ],
)
def test_problems_that_make_no_sense_are_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        replace(PROBLEM, **change).check()


def test_operands_are_of_the_types_that_calls_say() -> None:
    # A bias of 16 bits may be followed by a residual of 32 bits, for which it is widened.
    module = lowered(bert_block(tanh=True))
    known = KernelConstants(module)
    calls = [
        c
        for f in module.funcs
        if f.name != "main"
        for c in (*products_in(known.computed_in(f)), *graphs_in(f))
    ]
    assert len(calls) > 20
    for call in calls:
        call.problem.check()
        values = (*call.operands, call.result)
        dtypes = [BUFFER_DTYPE[v.tensor.dtype] for v in values]
        assert dtypes == [a.dtype for a in call.problem.arguments()]
