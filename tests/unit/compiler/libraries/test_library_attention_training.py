"""Attention of training steps is left to cuDNN: results with logarithms of sums, gradients as one call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attention_training import exact, inputs_of, kernels_of, templates, training_attention
from cudnn_samples import FakeCudnn
from test_library_attention import CudnnMeasurer
from test_library_candidates import random_arrays, run_main
from test_library_choice import same_results

from tilewright.compilation.planning import library_kernels
from tilewright.ir import Module, Op
from tilewright.ir.types import storage_dtype
from tilewright.libraries.choice import LibraryChoice
from tilewright.libraries.fusion_groups import gradient_groups, with_fused_kernels
from tilewright.libraries.matching.attention import attentions_in
from tilewright.libraries.matching.attention_backward import gradients_in
from tilewright.libraries.matching.library_call import LibraryCall
from tilewright.libraries.program import program_around
from tilewright.running.checking import relative_error
from tilewright.runtime.errors import InputError
from tilewright.runtime.libraries.attention import AttentionBackwardProblem, AttentionProblem
from tilewright.runtime.libraries.convolution import Array4
from tilewright.runtime.libraries.cudnn import Cudnn
from tilewright.runtime.libraries.kernel import LibraryKernel

__all__ = ["same_results"]

FUSED = {
    "chain_kernels": "chain-kernels{attention=always}",
    "fuse_attention_backward": "fuse-attention-backward{when=always}",
}
#: name -> the attention, heads, groups that share keys, whether later keys are hidden
CASES: dict[str, tuple[dict[str, Any], int, int, bool]] = {
    "causal": ({"heads": (2, 2), "queries": 32, "keys": 32, "causal": True}, 4, 4, True),
    "other keys": ({"heads": (3,), "queries": 32, "keys": 16}, 3, 3, False),
    "shared keys, causal": (
        {"heads": (2, 2, 3), "queries": 32, "keys": 32, "causal": True, "shared": 1}, 12, 4, True,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def steps() -> dict[str, Module]:
    return {name: kernels_of(training_attention(**CASES[name][0]), **FUSED) for name in CASES}


def computed(call: LibraryCall, operands: list[np.ndarray]) -> list[np.ndarray]:
    """What the stand-in for cuDNN computes of a call, on arrays in host memory."""
    library = Cudnn(FakeCudnn())
    (kernel, *_) = library.kernels(call.problem, 1 << 20)
    kernel = LibraryKernel.from_json(kernel.to_json())
    results = [np.full(v.tensor.shape, np.nan).astype(storage_dtype(v.tensor.dtype)) for v in call.results]
    arrays = [np.ascontiguousarray(a) for a in operands] + results + [np.zeros(1, np.uint8)]
    assert [a.written for a in kernel.arguments()] == [i >= len(operands) for i in range(len(arrays))]
    pointers = {a.role: x.ctypes.data for a, x in zip(kernel.arguments(), arrays, strict=True)}
    prepared = library.prepare(kernel, pointers, "test")
    prepared.start(5)
    prepared.close()
    library.close()
    return results


@pytest.mark.parametrize("name", CASES)
def test_results_with_logarithms_and_gradients_are_one_call_each(name: str, steps: dict[str, Module]) -> None:
    module, (_, heads, groups, causal) = steps[name], CASES[name]
    assert templates(module)[0] == "attention"
    (forward,) = [c for f in module.funcs if f.name != "main" for c in attentions_in(f)]
    p = forward.problem
    assert isinstance(p, AttentionProblem)
    assert (p.q.dims[:2], p.k.dims[:2], p.causal) == ((1, heads), (1, groups), causal)
    assert p.stats is not None
    assert p.stats.dims == (1, heads, p.q.dims[2], 1)
    (group,) = gradient_groups(module)
    (backward,) = gradients_in(group.fused)
    b = backward.problem
    assert isinstance(b, AttentionBackwardProblem)
    assert (b.q, b.k, b.v, b.scale, b.causal, b.stats) == (p.q, p.k, p.v, p.scale, p.causal, p.stats)
    by_call = inputs_of(training_attention(**CASES[name][0]))
    wanted = exact(training_attention(**CASES[name][0]), by_call)
    q, k, v, g = by_call
    (out, lse) = computed(forward, [{"q": q, "k": k, "v": v}[x.hint] for x in forward.operands])
    np.testing.assert_allclose(out.reshape(wanted[0].shape).astype(float), wanted[0], rtol=2e-2, atol=2e-2)
    np.testing.assert_allclose(lse.reshape(wanted[1].shape), wanted[1], rtol=1e-3, atol=1e-3)
    got = computed(backward, [q, k, v, out, g, lse])
    for array, exact_one in zip(got, wanted[2:], strict=True):
        error = np.linalg.norm(array.reshape(exact_one.shape).astype(float) - exact_one)
        assert error < 5e-3 * np.linalg.norm(exact_one)


#: of the same products in other groups: a last bit of 16 differs where NumPy adds in another order
SAME = 1e-4


@pytest.mark.parametrize("name", CASES)
def test_programs_around_the_calls_compute_the_same(name: str, steps: dict[str, Module]) -> None:
    module = steps[name]
    (group,) = gradient_groups(module)
    arrays = random_arrays(module.main)
    for a, b in zip(
        run_main(with_fused_kernels(module, [group]), arrays), run_main(module, arrays), strict=True
    ):
        assert relative_error(a, b) < SAME
    given = random_arrays(group.fused)
    wanted = run_main(group.program(), given)
    for call in gradients_in(group.fused):
        for a, b in zip(run_main(program_around(group.fused, call), given), wanted, strict=True):
            assert relative_error(a.reshape(b.shape), b) < SAME


def test_a_training_step_takes_both_calls_where_they_are_faster(
    steps: dict[str, Module], same_results: dict[str, float]
) -> None:
    module = steps["causal"]
    choice = LibraryChoice(CudnnMeasurer(5e-5), progress=False)  # type: ignore[arg-type]
    chosen = choice.choose(module)
    kinds = [k.operation for k in library_kernels(chosen).values()]
    assert sorted(kinds) == ["attention", "attention_backward"]
    assert choice.facts["launches"] == {"generated": 0, "cudnn": 2}
    assert choice.facts["operators"]["cudnn"] == len(templates(module))
    arrays = random_arrays(module.main)
    for a, b in zip(run_main(chosen, arrays), run_main(module, arrays), strict=True):
        assert relative_error(a, b) < SAME
    again = LibraryChoice(choice.measurer, progress=False)
    assert library_kernels(again.choose(module)) == library_kernels(chosen)
    slower = LibraryChoice(CudnnMeasurer(2e-4), progress=False)  # type: ignore[arg-type]
    assert not library_kernels(slower.choose(module))


@pytest.mark.parametrize("more", [{"dropout": True}, {"window": 8, "causal": True}, {"bias": True}])
def test_what_cudnn_would_not_compute_stays_generated(more: dict[str, Any]) -> None:
    """Bits of dropout are ours, gradients through a band or a bias are not asked for."""
    module = kernels_of(training_attention(queries=32, keys=32, **more), **FUSED)
    assert "pair_sums" in templates(module)
    assert gradient_groups(module) == []
    calls = [c for f in module.funcs if f.name != "main" for c in attentions_in(f)]
    assert bool(calls) is ("bias" in more)


def _doubled(o: Op) -> Op:
    """The scale of 0.25 as 0.5; other ops as they are."""
    return o.with_attrs(value=0.5) if o.name == "scalar.const" and o["value"] == 0.25 else o


def test_another_weight_is_no_gradient_of_attention(steps: dict[str, Module]) -> None:
    """The slopes of dq scaled by another number than the scores: each sum alone is a sum over pairs still."""
    (group,) = gradient_groups(steps["other keys"])
    f = group.fused
    changed = 0
    ops = []
    for op in f.body.ops:
        names = {o.name for o in op.body.ops} if op.body is not None else set()
        if op.body is not None and "scalar.sub" in names and "scalar.exp" not in names:
            inner = tuple(_doubled(o) for o in op.body.ops)
            changed += inner != op.body.ops
            op = replace(op, body=replace(op.body, ops=inner))
        ops.append(op)
    assert changed
    assert gradients_in(f)
    assert not gradients_in(replace(f, body=f.body.with_ops(tuple(ops))))


def test_problems_of_gradients_are_checked() -> None:
    q, rows = Array4((1, 4, 8, 16), (512, 128, 16, 1)), Array4((1, 4, 8, 1), (32, 8, 1, 1))
    k = Array4((1, 2, 6, 16), (192, 96, 16, 1))
    whole = AttentionBackwardProblem(q, k, k, q, q, rows, q, k, k, "float16", 0.25)
    whole.check()
    three = Array4((1, 3, 6, 16), (288, 96, 16, 1))
    for change, fault in (
        ({"dk": q}, r"expected dk of \(1, 2, 6, 16\)"),
        ({"stats": q}, r"expected stats of \(1, 4, 8, 1\)"),
        (
            {"k": three, "v": three, "dk": three, "dv": three},
            "expected heads in 3 groups .* got 4",
        ),
        ({"scale": float("nan")}, "expected a finite number as scale"),
        ({"dtype": "float32"}, "expected dtype among float16, bfloat16"),
    ):
        with pytest.raises(InputError, match=fault):
            replace(whole, **change).check()  # type: ignore[arg-type]
