"""Sums computed in parts by two kernels are found, and compared with libraries as the one they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_library_candidates import random_arrays, run_main
from test_library_choice import FakeMeasurer, same_results

from tilewright.compilation.planning import library_kernels
from tilewright.ir import Module, parse
from tilewright.libraries.candidates import products_in
from tilewright.libraries.choice import LibraryChoice
from tilewright.libraries.fusion_groups import split_sums, with_fused_kernels

__all__ = ["same_results"]

PARTS = """module @m {
  tensor.func @parts(%x: f32[6, 8], %w: f32[2, 4, 12], decision = kernel<template: "contract", parameters: (block: (p: 1, m: 6, k: 12), thread: (p: 1, m: 1, k: 1), step: (c: 4), stages: 1, staging: "shared", pad: 0)>) -> f32[2, 6, 12] {
    %y = tensor.contract(%x, %w, par = (p: 2, m: 6, k: 12), red = (c: 4), reads = [[m, p * 4 + c], [p, c, k]]) : f32[2, 6, 12] {
      ^(%a: f32, %b: f32, %c: f32)
      %r = scalar.fma(%a, %b, %c) : f32
      scalar.yield(%r)
    }
    tensor.return(%y)
  }
  tensor.func @sum(%v: f32[12], %p: f32[2, 6, 12], decision = kernel<template: "map", parameters: (threads: 64, vec: 1, items: 1)>) -> f32[6, 12] {
    %s = tensor.map(%p, %p, par = (m: 6, k: 12), reads = [[0, m, k], [1, m, k]]) : f32[6, 12] {
      ^(%a: f32, %b: f32)
      %r = scalar.add(%a, %b) : f32
      scalar.yield(%r)
    }
    %t = tensor.map(%s, %v, par = (m: 6, k: 12), reads = [[m, k], [k]]) : f32[6, 12] {
      ^(%a: f32, %b: f32)
      %r = scalar.add(%a, %b) : f32
      scalar.yield(%r)
    }
    tensor.return(%t)
  }
  tensor.func @main(%x: f32[6, 8], %w: f32[2, 4, 12], %v: f32[12]) -> f32[6, 12] {
    %0 = tensor.call(%x, %w, callee = @parts) : f32[2, 6, 12]
    %1 = tensor.call(%v, %0, callee = @sum) : f32[6, 12]
    tensor.return(%1)
  }
}
"""  # noqa: E501


def test_the_pair_is_found_and_computes_the_same_as_one_kernel() -> None:
    module = parse(PARTS)
    (found,) = split_sums(module)
    assert ([f.name for f in found.kernels], found.wiring) == (["parts", "sum"], ((0, 1), (2, -1)))
    arrays = random_arrays(module.main)
    (wanted,) = run_main(module, arrays)
    np.testing.assert_allclose(run_main(with_fused_kernels(module, [found]), arrays)[0], wanted, rtol=1e-5)
    np.testing.assert_allclose(run_main(found.program(), arrays)[0], wanted, rtol=1e-5)
    problems = [c.problem for c in products_in(found.fused)]
    assert [(p.k, p.epilogue) for p in problems] == [(8, "none"), (8, "bias")]
    assert found.constants({"parts": (1,), "sum": (0,)}) == (1, 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[[0, m, k], [1, m, k]]", "[[0, m, k], [0, m, k]]"),  # one part twice
        ("%r = scalar.add(%a, %b) : f32", "%r = scalar.mul(%a, %b) : f32"),
        ("tensor.return(%1)", "tensor.return(%1, %0)"),  # the parts are a result
        ("tensor.call(%v, %0, callee = @sum)", "tensor.call(%v, %w2, callee = @sum)"),
    ],
)
def test_what_is_no_such_pair_is_left(old: str, new: str) -> None:
    text = PARTS.replace(old, new)
    if "%1, %0" in new:
        text = text.replace(
            "%v: f32[12]) -> f32[6, 12] {\n    %0", "%v: f32[12]) -> f32[6, 12], f32[2, 6, 12] {\n    %0"
        )
    if "%w2" in new:
        text = text.replace("%v: f32[12]) ->", "%v: f32[12], %w2: f32[2, 6, 12]) ->")
    assert split_sums(parse(text)) == []


def test_a_library_takes_the_place_of_both(same_results: dict[str, float]) -> None:
    module = parse(PARTS)
    choice = LibraryChoice(FakeMeasurer({1: 9e-5, 2: 5e-5, 3: 7e-5}), progress=False)  # type: ignore[arg-type]
    chosen: Module = choice.choose(module)
    (kernel,) = library_kernels(chosen).values()
    assert kernel.problem.k == 8
    rows: list[dict[str, Any]] = choice.facts["compared"]
    assert [(r["kernel"], r["chosen"]) for r in rows] == [("parts_sum", "cublaslt")]
    assert {f.name for f in chosen.funcs} >= {"parts_sum_library", "main"}
    assert not {f.name for f in chosen.funcs} & {"parts", "sum"}
    arrays = random_arrays(module.main)
    np.testing.assert_allclose(run_main(chosen, arrays)[0], run_main(module, arrays)[0], rtol=1e-5)


def test_a_pair_that_stays_is_compared_kernel_by_kernel(same_results: dict[str, float]) -> None:
    choice = LibraryChoice(FakeMeasurer(dict.fromkeys((1, 2, 3), 1.0)), progress=False)  # type: ignore[arg-type]
    chosen = choice.choose(parse(PARTS))
    assert not library_kernels(chosen)
    assert [r["kernel"] for r in choice.facts["compared"]] == ["parts_sum", "parts"]
