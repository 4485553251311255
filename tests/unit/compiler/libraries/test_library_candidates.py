"""Kernels that libraries can compute are found by structure, and their programs compute the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from decision_samples import parameters, with_template
from library_samples import FakeCublasLt, FakeLibraryDevice

from tilewright.compilation.planning import library_kernels
from tilewright.costmodel import load_hardware
from tilewright.ir import Func, Module, parse
from tilewright.ir.interpreter.run import interpret
from tilewright.libraries.candidates import library_candidates, products_in
from tilewright.libraries.comparison import timed_program
from tilewright.libraries.matching.library_call import LibraryCall
from tilewright.libraries.program import inlined, program_around
from tilewright.libraries.weights import with_constant_weights
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.pipelines import THREAD
from tilewright.runtime.libraries.cublaslt import CublasLt
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.libraries.matmul import MatmulProblem

FMA = """{
      ^(%a: f32, %b: f32, %c: f32)
      %r = scalar.fma(%a, %b, %c) : f32
      scalar.yield(%r)
    }"""
HALF_FMA = """{
      ^(%a: DTYPE, %b: DTYPE, %c: f32)
      %p = scalar.cast(%a, dtype = "f32") : f32
      %q = scalar.cast(%b, dtype = "f32") : f32
      %r = scalar.fma(%p, %q, %c) : f32
      scalar.yield(%r)
    }"""


def contract(par: str, red: str, reads: str, x: str, w: str, out: str, extra: str = "") -> str:
    body = FMA if x.startswith("f32") else HALF_FMA.replace("DTYPE", x.partition("[")[0])
    return (
        f"%y = tensor.contract(%x, %w, par = ({par}), red = ({red}), reads = [{reads}]{extra}) : {out} {body}"
    )


#: name -> (x, w, result, the contraction, whether it is a product)
CASES: dict[str, tuple[str, str, str, str, bool]] = {}


def case(
    name: str, x: str, w: str, out: str, par: str, red: str, reads: str, fits: bool = True, extra: str = ""
) -> None:
    CASES[name] = (x, w, out, contract(par, red, reads, x, w, out, extra), fits)


case("rows by columns", "f32[6, 8]", "f32[8, 12]", "f32[6, 12]", "m: 6, k: 12", "c: 8", "[m, c], [c, k]")
case("weights by rows", "f32[6, 8]", "f32[12, 8]", "f32[6, 12]", "m: 6, k: 12", "c: 8", "[m, c], [k, c]")
case("first transposed", "f32[8, 6]", "f32[8, 12]", "f32[6, 12]", "m: 6, k: 12", "c: 8", "[c, m], [c, k]")
case("both transposed", "f32[8, 6]", "f32[12, 8]", "f32[6, 12]", "m: 6, k: 12", "c: 8", "[c, m], [k, c]")
case("result by columns", "f32[6, 8]", "f32[8, 12]", "f32[12, 6]", "k: 12, m: 6", "c: 8", "[m, c], [c, k]")
case("batches", "f32[3, 6, 8]", "f32[3, 8, 4]", "f32[3, 6, 4]", "b: 3, m: 6, k: 4", "c: 8",
     "[b, m, c], [b, c, k]")  # fmt: skip
case("batches inside", "f32[6, 3, 8]", "f32[4, 3, 8]", "f32[3, 6, 4]", "b: 3, m: 6, k: 4", "c: 8",
     "[m, b, c], [k, b, c]")  # fmt: skip
case("one weight for all", "f32[3, 8, 6]", "f32[8, 4]", "f32[3, 4, 6]", "b: 3, k: 4, m: 6", "c: 8",
     "[b, c, m], [c, k]")  # fmt: skip
case("pointwise convolution", "f32[2, 8, 5, 5]", "f32[12, 8]", "f32[2, 12, 5, 5]", "n: 2, k: 12, y: 5, x: 5",
     "c: 8", "[n, c, y, x], [k, c]")  # fmt: skip
case("channels last", "f32[2, 5, 5, 8]", "f32[8, 12]", "f32[2, 5, 5, 12]", "n: 2, y: 5, x: 5, k: 12", "c: 8",
     "[n, y, x, c], [c, k]")  # fmt: skip
case("split sums", "f32[6, 8]", "f32[2, 4, 12]", "f32[6, 12]", "m: 6, k: 12", "p: 2, c: 4",
     "[m, p * 4 + c], [p, c, k]")  # fmt: skip
case("parts", "f32[6, 8]", "f32[2, 4, 12]", "f32[2, 6, 12]", "p: 2, m: 6, k: 12", "c: 4",
     "[m, p * 4 + c], [p, c, k]")  # fmt: skip
case("one row", "f32[8]", "f32[12, 8]", "f32[12]", "k: 12", "c: 8", "[c], [k, c]")
case("never outside", "f32[6, 8]", "f32[8, 12]", "f32[6, 12]", "m: 6, k: 12", "c: 8", "[m, c], [c, k]",
     extra=", fill = [0.0, none]")  # fmt: skip
case("a slice of rows", "f32[6, 16]", "f32[8, 12]", "f32[6, 12]", "m: 6, k: 12", "c: 8", "[m, c + 4], [c, k]")
case("f16", "f16[6, 8]", "f16[8, 12]", "f32[6, 12]", "m: 6, k: 12", "c: 8", "[m, c], [c, k]")
case("bf16", "bf16[6, 8]", "bf16[12, 8]", "f32[6, 12]", "m: 6, k: 12", "c: 8", "[m, c], [k, c]")
case("every other column", "f32[6, 16]", "f32[8, 12]", "f32[6, 12]", "m: 6, k: 12", "c: 8",
     "[m, c * 2], [c, k]", fits=False)  # fmt: skip
case("unaligned slice", "f32[6, 16]", "f32[8, 12]", "f32[6, 12]", "m: 6, k: 12", "c: 8", "[m, c + 3], [c, k]",
     fits=False)  # fmt: skip
case("strided pointwise", "f32[8, 6, 6]", "f32[12, 8]", "f32[12, 3, 3]", "k: 12, y: 3, x: 3", "c: 8",
     "[c, y * 2, x * 2], [k, c]", fits=False)  # fmt: skip
case("window", "f32[8, 7]", "f32[12, 8, 3]", "f32[12, 5]", "k: 12, x: 5", "c: 8, r: 3",
     "[c, x + r], [k, c, r]", fits=False)  # fmt: skip
case("padded", "f32[6, 8]", "f32[9, 12]", "f32[6, 12]", "m: 6, k: 12", "c: 9", "[m, c - 1], [c, k]",
     fits=False, extra=", fill = [0.0, none]")  # fmt: skip
case("not affine", "f32[6, 8]", "f32[4, 12]", "f32[6, 12]", "m: 6, k: 12", "c: 8", "[m, c], [c // 2, k]",
     fits=False)  # fmt: skip
case("two batches apart", "f32[2, 6, 3, 8]", "f32[2, 3, 8, 4]", "f32[2, 3, 6, 4]", "a: 2, b: 3, m: 6, k: 4",
     "c: 8", "[a, m, b, c], [a, b, c, k]", fits=False)  # fmt: skip


def kernel_of(
    x: str, w: str, out: str, ops: str, extra: str = "", result: str = "%y", last: str = ""
) -> Func:
    text = f"""module @m {{
  tensor.func @k(%x: {x}, %w: {w}{extra}) -> {last or out} {{
    {ops}
    tensor.return({result})
  }}
}}
"""
    return parse(text)["k"]


def named_kernel(name: str) -> Func:
    x, w, out, ops, _ = CASES[name]
    return kernel_of(x, w, out, ops)


@pytest.mark.parametrize("name", CASES)
def test_products_are_found_by_index_maps(name: str) -> None:
    calls = products_in(named_kernel(name))
    assert bool(calls) is CASES[name][4]
    for call in calls:
        call.problem.check()


def test_sums_that_are_no_products_of_two_operands_are_left() -> None:
    kernel = kernel_of(
        "f32[6, 8]", "f32[12]", "f32[6, 12]",
        contract("m: 6, k: 12", "c: 8", "[m, c], [k]", "f32[6, 8]", "f32[12]", "f32[6, 12]"),
    )  # fmt: skip
    assert not products_in(kernel)


def random_arrays(f: Func) -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    from tilewright.ir.types import storage_dtype

    return [
        rng.standard_normal(p.tensor.shape, np.float32).astype(storage_dtype(p.tensor.dtype))
        for p in f.params
    ]


def run_main(module: Module, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [np.asarray(a) for a in interpret(module, *arrays)]


def by_library(call: LibraryCall, operands: list[np.ndarray]) -> np.ndarray:
    """What the stand-in for cuBLASLt computes of a call, on arrays in host memory."""
    fake = FakeCublasLt()
    library = CublasLt(fake)
    (kernel, *_) = library.kernels(call.problem, 1 << 20)
    out = np.full(call.result.tensor.shape, np.nan, np.float32).astype(operands_dtype(call))
    workspace = np.zeros(1, np.uint8)
    roles = [a.role for a in kernel.arguments()]
    arrays = [np.ascontiguousarray(a) for a in operands] + [out, workspace]
    pointers = {role: a.ctypes.data for role, a in zip(roles, arrays, strict=True)}
    prepared = library.prepare(kernel, pointers, "test")
    prepared.start(0)
    prepared.close()
    library.close()
    assert not fake.objects  # everything made was destroyed
    return out


def operands_dtype(call: LibraryCall) -> np.dtype:
    from tilewright.ir.types import storage_dtype

    return np.dtype(storage_dtype(call.result.tensor.dtype))


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n][4]])
def test_the_problem_says_what_the_kernel_computes(name: str) -> None:
    kernel = named_kernel(name)
    arrays = random_arrays(kernel)
    for call in products_in(kernel):
        program = program_around(kernel, call)
        (wanted,) = run_main(program, arrays)
        by_value = dict(zip(kernel.params, arrays, strict=True))
        got = by_library(call, [by_value[v] for v in call.operands])
        np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), rtol=2e-3, atol=2e-3)


def test_both_factors_may_be_parts_of_one_value() -> None:
    scores = contract("m: 6, k: 6", "c: 8", "[m, c], [k, c + 8]", "f32[6, 16]", "f32[6, 16]", "f32[6, 6]")
    kernel = kernel_of("f32[6, 16]", "f32[1]", "f32[6, 6]", scores.replace("%w", "%x"))
    calls = products_in(kernel)
    assert calls
    for call in calls:
        arrays = random_arrays(kernel)
        assert call.operands == (kernel.params[0],) * 2
        (wanted,) = run_main(program_around(kernel, call), arrays)
        np.testing.assert_allclose(wanted, arrays[0][:, :8] @ arrays[0][:, 8:].T, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(by_library(call, [arrays[0]] * 2), wanted, rtol=1e-4, atol=1e-5)


DENSE = "par = (m: 6, k: 12), red = (c: 8), reads = [[m, c], [c, k]]"
EPILOGUE = """%y0 = tensor.contract(%x, %w, DENSE) : f32[6, 12] {
      ^(%a: f32, %b: f32, %c: f32)
      %r = scalar.fma(%a, %b, %c) : f32
      scalar.yield(%r)
    }
    %y1 = tensor.map(%y0, %v, par = (p: 6, q: 12), reads = [[p, q], [VECTOR]]) : f32[6, 12] {
      ^(%d: f32, %e: f32)
      %f = scalar.add(%d, %e) : f32
      scalar.yield(%f)
    }
    %y2 = tensor.map(%y1, %z, par = (p: 6, q: 12), reads = [[p, q], [p, q]]) : f32[6, 12] {
      ^(%g: f32, %h: f32)
      %i = scalar.add(%h, %g) : f32
      scalar.yield(%i)
    }
    %y3 = tensor.map(%y2, par = (p: 6, q: 12), reads = [[p, q]]) : f32[6, 12] {
      ^(%j: f32)
      %n = scalar.const(value = 0.0, dtype = "f32") : f32
      %k = scalar.max(%j, %n) : f32
      scalar.yield(%k)
    }
    %y = tensor.map(%y3, par = (p: 6, q: 12), reads = [[p, q]]) : f32[6, 12] {
      ^(%l: f32)
      %m = scalar.exp(%l) : f32
      scalar.yield(%m)
    }"""


def epilogue_kernel(vector: str, length: int, result: str = "%y", last: str = "") -> Func:
    ops = EPILOGUE.replace("VECTOR", vector).replace("DENSE", DENSE)
    extra = f", %v: f32[{length}], %z: f32[6, 12]"
    return kernel_of("f32[6, 8]", "f32[8, 12]", "f32[6, 12]", ops, extra, result, last)


def whole(kernel: Func) -> Module:
    """A module whose @main calls the kernel."""
    from tilewright.measuring.kernel_program import kernel_program

    return kernel_program(kernel, ())


def test_bias_residual_and_relu_are_taken_along_and_the_rest_stays() -> None:
    kernel = epilogue_kernel("q", 12)
    calls = products_in(kernel)
    problems = [c.problem for c in calls]
    assert all(isinstance(p, MatmulProblem) for p in problems)
    assert [(p.epilogue, p.c is not None) for p in problems] == [
        ("none", False), ("bias", False), ("bias", True), ("relu_bias", True),
    ]  # fmt: skip
    arrays = random_arrays(kernel)
    (wanted,) = run_main(whole(kernel), arrays)
    for call in calls:
        program = program_around(kernel, call)
        assert [f.name for f in program.funcs] == ["k_library", "k_after", "main"]
        np.testing.assert_allclose(run_main(program, arrays)[0], wanted, rtol=1e-5)
    by_value = dict(zip(kernel.params, arrays, strict=True))
    last = calls[-1]
    got = by_library(last, [by_value[v] for v in last.operands])
    np.testing.assert_allclose(np.exp(got), wanted, rtol=1e-4)


HALVES = """
    %0 = tensor.contract(%x, %w, par = (m: 8, k: 16), red = (c: 8), reads = [[m, c], [k, c]]) : f32[8, 16] {
      ^(%a: f16, %b: f16, %s: f32) %a32 = scalar.cast(%a, dtype = "f32") : f32
      %b32 = scalar.cast(%b, dtype = "f32") : f32 %r = scalar.fma(%a32, %b32, %s) : f32 scalar.yield(%r) }
    %1 = tensor.map(%0, par = (m: 8, k: 16), reads = [[m, k]]) : f16[8, 16] {
      ^(%a: f32) %r = scalar.cast(%a, dtype = "f16") : f16 scalar.yield(%r) }
    %2 = tensor.map(%1, %v, par = (m: 8, k: 16), reads = [[m, k], [k]]) : f16[8, 16] {
      ^(%a: f16, %b: f16) %r = scalar.add(%a, %b) : f16 scalar.yield(%r) }
    %3 = tensor.map(%2, par = (m: 8, k: 16), reads = [[m, k]]) : f32[8, 16] {
      ^(%a: f16) %r = scalar.cast(%a, dtype = "f32") : f32 scalar.yield(%r) }
    %y = tensor.map(%3, %z, par = (m: 8, k: 16), reads = [[m, k], [m, k]]) : f32[8, 16] {
      ^(%a: f32, %b: f32) %r = scalar.add(%a, %b) : f32 scalar.yield(%r) }"""


def test_a_bias_of_16_bits_is_widened_for_a_residual_of_32() -> None:
    kernel = kernel_of("f16[8, 8]", "f16[16, 8]", "f32[8, 16]", HALVES, ", %v: f16[16], %z: f32[8, 16]", "%y")
    calls = products_in(kernel)
    assert [(c.problem.epilogue, c.problem.result, len(c.ops)) for c in calls] == [
        ("none", "float32", 1), ("none", "float16", 2), ("bias", "float16", 3), ("bias", "float32", 4),
        ("bias", "float32", 5),
    ]  # fmt: skip
    last = calls[-1]
    assert isinstance(last.problem, MatmulProblem)
    assert last.problem.c is not None
    arrays = random_arrays(kernel)
    (wanted,) = run_main(whole(kernel), arrays)
    program = program_around(last.kernel or kernel, last)
    assert [f.name for f in program.funcs] == ["k_weights", "k_library", "main"]
    np.testing.assert_allclose(run_main(program, arrays)[0], wanted, rtol=1e-2, atol=1e-2)
    by_value = dict(zip(kernel.params, arrays, strict=True))
    wide = arrays[2].astype(np.float32)
    got = by_library(last, [by_value.get(v, wide) for v in last.operands])
    np.testing.assert_allclose(got, wanted, rtol=1e-2, atol=1e-2)
    known = with_constant_weights(timed_program(program, [2]))
    assert [f.name for f in known.funcs] == [
        "k_library",
        "main",
    ]  # a constant bias is widened at compile time


def test_a_vector_along_the_columns_of_the_problem_is_no_bias() -> None:
    problems = [c.problem for c in products_in(epilogue_kernel("p", 6))]
    assert [(p.epilogue, p.c is not None) for p in problems] == [("none", False)]


def test_values_that_others_need_are_written() -> None:
    kernel = epilogue_kernel("q", 12, "%y, %y1", "f32[6, 12], f32[6, 12]")
    calls = products_in(kernel)
    # The sum with the bias is a result itself, so nothing behind it is taken along.
    assert [c.problem.epilogue for c in calls] == ["none", "bias"]
    arrays = random_arrays(kernel)
    for call in calls:
        for got, wanted in zip(
            run_main(program_around(kernel, call), arrays), run_main(whole(kernel), arrays), strict=True
        ):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_what_operands_are_computed_by_becomes_a_kernel_before() -> None:
    ops = """%u = tensor.map(%x, par = (i: 6, j: 8), reads = [[i, j]]) : f32[6, 8] {
      ^(%s: f32)
      %t = scalar.exp(%s) : f32
      scalar.yield(%t)
    }
    """ + contract("m: 6, k: 12", "c: 8", "[m, c], [c, k]", "f32[6, 8]", "f32[8, 12]", "f32[6, 12]").replace(
        "%x,", "%u,"
    )
    kernel = kernel_of("f32[6, 8]", "f32[8, 12]", "f32[6, 12]", ops)
    (call,) = products_in(kernel)
    program = program_around(kernel, call)
    assert [f.name for f in program.funcs] == ["k_before", "k_library", "main"]
    arrays = random_arrays(kernel)
    np.testing.assert_allclose(run_main(program, arrays)[0], run_main(whole(kernel), arrays)[0], rtol=1e-5)


def test_a_norm_before_a_library_is_a_kernel_of_sums_and_one_of_maps() -> None:
    ops = """%m = tensor.reduce(%g, par = (i: 6, b: 2), red = (p: 3), reads = [[i, b, p]]) : f32[6, 2] {
      ^(%s: f32, %t: f32)
      %u = scalar.add(%s, %t) : f32
      scalar.yield(%u)
    }
    %n = tensor.map(%x, %m, par = (i: 6, j: 8), reads = [[i, j], [i, j // 4]]) : f32[6, 8] {
      ^(%s: f32, %t: f32)
      %u = scalar.sub(%s, %t) : f32
      scalar.yield(%u)
    }
    """ + contract("m: 6, k: 12", "c: 8", "[m, c], [c, k]", "f32[6, 8]", "f32[8, 12]", "f32[6, 12]").replace(
        "%x,", "%n,"
    )
    kernel = kernel_of("f32[6, 8]", "f32[8, 12]", "f32[6, 12]", ops, ", %g: f32[6, 2, 3]")
    (program, *_) = candidates(kernel)
    before = [f for f in program.funcs if f.name not in ("k_library", "main")]
    assert [{op.name for op in f.body.ops[:-1]} for f in before] == [{"tensor.reduce"}, {"tensor.map"}]
    context = PassContext(hardware=load_hardware("cuda:sm_90a"), verify_each=True)
    run_pipeline(program.with_funcs(tuple(before)), THREAD["cuda"].only("tensor-to-thread"), context)
    arrays = random_arrays(kernel)
    np.testing.assert_allclose(run_main(program, arrays)[0], run_main(whole(kernel), arrays)[0], rtol=1e-5)


def candidates(kernel: Func) -> list[Module]:
    chosen = with_template(kernel, "contract")
    device = FakeLibraryDevice(CublasLt(FakeCublasLt()))
    return list(library_candidates(chosen, load_hardware("cuda:sm_90a"), device, missing={}))


def test_every_algorithm_of_every_way_is_a_candidate() -> None:
    found = candidates(epilogue_kernel("q", 12))
    kernels = [k for m in found for k in library_kernels(m).values()]
    assert len(kernels) == 4 * 3  # four ways, three algorithms each
    assert len({k.to_json() for k in kernels}) == 12
    assert all(parameters(f) is not None for m in found for f in m.funcs if f.name != "main")


def test_kernels_survive_the_text_of_the_module() -> None:
    from tilewright.ir import equal, show

    (first, *_) = candidates(epilogue_kernel("q", 12))
    again = parse(show(first))
    assert equal(again, first)
    assert library_kernels(again) == library_kernels(first)


def test_calls_are_replaced_under_fresh_names() -> None:
    kernel = epilogue_kernel("q", 12)
    (first, *_) = candidates(kernel)
    module = whole(kernel)
    chosen = inlined(module, {"k": first})
    assert [f.name for f in chosen.funcs] == ["k_library", "k_after", "main"]
    arrays = random_arrays(kernel)
    np.testing.assert_allclose(run_main(chosen, arrays)[0], run_main(module, arrays)[0], rtol=1e-5)
    other = replace(kernel_of(*CASES["one row"][:4]), name="k_library")
    again = inlined(module.with_funcs((*module.funcs, other)), {"k": first})
    assert [f.name for f in again.funcs] == ["k_library", "k_library_1", "k_after", "main"]


def test_tf32_is_used_only_where_it_is_allowed() -> None:
    plain = products_in(named_kernel("rows by columns"))
    allowed = products_in(
        kernel_of(*CASES["rows by columns"][:3],
                  CASES["rows by columns"][3].replace("[c, k]]", '[c, k]], factors = "tf32"'))
    )  # fmt: skip
    assert [c.problem.tf32 for c in plain] == [False]
    assert [c.problem.tf32 for c in allowed] == [True]


def test_json_of_a_kernel_round_trips_and_refuses_the_rest() -> None:
    (first, *_) = candidates(named_kernel("batches"))
    (kernel,) = library_kernels(first).values()
    assert LibraryKernel.from_json(kernel.to_json()) == kernel
