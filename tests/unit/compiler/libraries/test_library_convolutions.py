"""Convolutions that cuDNN can compute are found by structure, and its graphs compute the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cudnn_samples import FakeCudnn
from decision_samples import with_template
from library_samples import FakeLibraryDevice
from test_library_candidates import contract, kernel_of, random_arrays, run_main, whole

from tilewright.compilation.planning import library_kernels
from tilewright.costmodel import load_hardware
from tilewright.ir import Func, Module
from tilewright.ir.types import storage_dtype
from tilewright.libraries.candidates import convolutions_in, library_candidates
from tilewright.libraries.comparison import timed_program
from tilewright.libraries.matching.library_call import LibraryCall
from tilewright.libraries.program import program_around
from tilewright.libraries.weights import with_constant_weights
from tilewright.runtime.errors import DeviceError, InputError
from tilewright.runtime.libraries.convolution import Array4, ConvolutionProblem
from tilewright.runtime.libraries.cudnn import KEPT_GRAPHS, Cudnn
from tilewright.runtime.libraries.kernel import LibraryKernel

ZEROS = ", fill = [0.0, none]"
#: name -> x, w, result, contraction, and paddings before, strides, dilations (None: it is no convolution)
CASES: dict[str, tuple[str, str, str, str, Any]] = {}


def case(
    name: str, x: str, w: str, out: str, par: str, red: str, reads: str, expected: Any, extra: str = ZEROS
) -> None:
    CASES[name] = (x, w, out, contract(par, red, reads, x, w, out, extra), expected)


case("same padding", "f32[2, 4, 6, 6]", "f32[8, 4, 3, 3]", "f32[2, 8, 6, 6]", "n: 2, k: 8, y: 6, x: 6",
     "c: 4, r: 3, s: 3", "[n, c, y + r - 1, x + s - 1], [k, c, r, s]", ((1, 1), (1, 1), (1, 1)))  # fmt: skip
case("stride, odd rest", "f32[2, 4, 7, 8]", "f32[8, 4, 3, 3]", "f32[2, 8, 4, 4]", "n: 2, k: 8, y: 4, x: 4",
     "c: 4, r: 3, s: 3", "[n, c, y * 2 + r - 1, x * 2 + s - 1], [k, c, r, s]",
     ((1, 1), (2, 2), (1, 1)))  # fmt: skip
case("padding after only", "f32[1, 4, 6, 6]", "f32[8, 4, 3, 3]", "f32[1, 8, 3, 3]", "n: 1, k: 8, y: 3, x: 3",
     "c: 4, r: 3, s: 3", "[n, c, y * 2 + r, x * 2 + s], [k, c, r, s]", ((0, 0), (2, 2), (1, 1)))  # fmt: skip
case("dilation", "f32[1, 4, 8, 8]", "f32[8, 4, 3, 3]", "f32[1, 8, 8, 8]", "n: 1, k: 8, y: 8, x: 8",
     "c: 4, r: 3, s: 3", "[n, c, y + r * 2 - 2, x + s * 2 - 2], [k, c, r, s]",
     ((2, 2), (1, 1), (2, 2)))  # fmt: skip
case("one by seven", "f32[1, 4, 5, 9]", "f32[8, 4, 1, 7]", "f32[1, 8, 5, 9]", "n: 1, k: 8, y: 5, x: 9",
     "c: 4, s: 7", "[n, c, y, x + s - 3], [k, c, 0, s]", ((0, 3), (1, 1), (1, 1)))  # fmt: skip
case("pointwise with steps", "f32[4, 6, 6]", "f32[4, 8]", "f32[8, 3, 3]", "k: 8, y: 3, x: 3", "c: 4",
     "[c, y * 2, x * 2], [c, k]", ((0, 0), (2, 2), (1, 1)))  # fmt: skip
case("channels last", "f32[2, 6, 6, 4]", "f32[8, 4, 3, 3]", "f32[2, 6, 6, 8]", "n: 2, y: 6, x: 6, k: 8",
     "c: 4, r: 3, s: 3", "[n, y + r - 1, x + s - 1, c], [k, c, r, s]", ((1, 1), (1, 1), (1, 1)))  # fmt: skip
case("channels last, filters as wanted", "f16[2, 6, 6, 4]", "f16[8, 3, 3, 4]", "f32[2, 6, 6, 8]",
     "n: 2, y: 6, x: 6, k: 8", "c: 4, r: 3, s: 3", "[n, y + r - 1, x + s - 1, c], [k, r, s, c]",
     ((1, 1), (1, 1), (1, 1)))  # fmt: skip
case("packed filters", "f32[4, 6, 6]", "f32[4, 3, 3, 8]", "f32[8, 6, 6]", "k: 8, y: 6, x: 6",
     "c: 4, r: 3, s: 3", "[c, y + r - 1, x + s - 1], [c, r, s, k]", ((1, 1), (1, 1), (1, 1)))  # fmt: skip
case("groups", "f32[1, 8, 6, 6]", "f32[2, 3, 4, 3, 3]", "f32[1, 2, 3, 6, 6]",
     "n: 1, g: 2, k: 3, y: 6, x: 6", "c: 4, r: 3, s: 3",
     "[n, g * 4 + c, y + r - 1, x + s - 1], [g, k, c, r, s]", ((1, 1), (1, 1), (1, 1)))  # fmt: skip
case("a slice of channels", "f32[1, 12, 6, 6]", "f32[8, 4, 3, 3]", "f32[1, 8, 6, 6]",
     "n: 1, k: 8, y: 6, x: 6", "c: 4, r: 3, s: 3", "[n, c + 4, y + r - 1, x + s - 1], [k, c, r, s]",
     ((1, 1), (1, 1), (1, 1)))  # fmt: skip
case("a crop", "f32[1, 4, 12, 12]", "f32[8, 4, 3, 3]", "f32[1, 8, 6, 6]", "n: 1, k: 8, y: 6, x: 6",
     "c: 4, r: 3, s: 3", "[n, c, y + r + 1, x + s + 4], [k, c, r, s]", ((0, 0), (1, 1), (1, 1)),
     extra="")  # fmt: skip
case("rows by columns", "f32[6, 8]", "f32[12, 8]", "f32[6, 12]", "m: 6, k: 12", "c: 8", "[m, c], [k, c]",
     ((0, 0), (1, 1), (1, 1)))  # fmt: skip
case("padding that is no zero", "f32[1, 4, 6, 6]", "f32[8, 4, 3, 3]", "f32[1, 8, 6, 6]",
     "n: 1, k: 8, y: 6, x: 6", "c: 4, r: 3, s: 3", "[n, c, y + r - 1, x + s - 1], [k, c, r, s]", None,
     extra=", fill = [1.0, none]")  # fmt: skip
case("mirrored", "f32[1, 4, 6, 6]", "f32[8, 4, 3, 3]", "f32[1, 8, 4, 4]", "n: 1, k: 8, y: 4, x: 4",
     "c: 4, r: 3, s: 3", "[n, c, y - r + 2, x - s + 2], [k, c, r, s]", None)  # fmt: skip
case("three places", "f32[4, 5, 5, 5]", "f32[8, 4, 3, 3, 3]", "f32[8, 3, 3, 3]", "k: 8, z: 3, y: 3, x: 3",
     "c: 4, t: 3, r: 3, s: 3", "[c, z + t, y + r, x + s], [k, c, t, r, s]", None)  # fmt: skip
case("products side by side", "f32[3, 6, 8]", "f32[3, 8, 4]", "f32[3, 6, 4]", "b: 3, m: 6, k: 4", "c: 8",
     "[b, m, c], [b, c, k]", None)  # fmt: skip


def named_kernel(name: str) -> Func:
    return kernel_of(*CASES[name][:4])


@pytest.mark.parametrize("name", CASES)
def test_convolutions_are_found_by_index_maps(name: str) -> None:
    calls = convolutions_in(named_kernel(name))
    expected = CASES[name][4]
    if expected is None:
        assert not calls
        return
    (call,) = calls
    problem = call.problem
    assert isinstance(problem, ConvolutionProblem)
    problem.check()
    assert (problem.before, problem.strides, problem.dilations) == expected


def by_cudnn(call: LibraryCall, operands: list[np.ndarray]) -> np.ndarray:
    """What the stand-in for cuDNN computes of a call, on arrays in host memory."""
    library = Cudnn(FakeCudnn())
    (kernel, *_) = library.kernels(call.problem, 1 << 20)
    dtype = storage_dtype(call.result.tensor.dtype)
    out = np.full(call.result.tensor.shape, np.nan, np.float32).astype(dtype)
    arrays = [np.ascontiguousarray(a) for a in operands] + [out, np.zeros(1, np.uint8)]
    roles = [a.role for a in kernel.arguments()]
    pointers = {role: a.ctypes.data for role, a in zip(roles, arrays, strict=True)}
    prepared = library.prepare(kernel, pointers, "test")
    prepared.start(5)
    prepared.close()
    library.close()
    return out


def operands_of(kernel: Func, call: LibraryCall, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """The arguments of a call, filters rearranged as its program does."""
    known = dict(zip((call.kernel or kernel).params, arrays, strict=True))
    for op in call.weights:
        from tilewright.libraries.program import outlined

        f = replace(outlined("main", [op], op.operands, op.results), name="main")
        (known[op.result],) = run_main(Module("weights", (f,)), [known[v] for v in op.operands])
    return [known[v] for v in call.operands]


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n][4]])
def test_the_problem_says_what_the_kernel_computes(name: str) -> None:
    kernel = named_kernel(name)
    arrays = random_arrays(kernel)
    (call,) = convolutions_in(kernel)
    (wanted,) = run_main(whole(kernel), arrays)
    program = program_around(call.kernel or kernel, call)
    np.testing.assert_allclose(run_main(program, arrays)[0], wanted, rtol=1e-4, atol=1e-4)
    got = by_cudnn(call, operands_of(kernel, call, arrays))
    np.testing.assert_allclose(got.astype(np.float32), wanted, rtol=2e-3, atol=2e-3)


PAR = "par = (n: 2, k: 8, y: 6, x: 6)"
BEHIND = f"""
    %y1 = tensor.map(%y, %v, {PAR}, reads = [[n, k, y, x], [k, 0, 0]]) : f32[2, 8, 6, 6] {{
      ^(%d: f32, %e: f32)
      %f = scalar.add(%d, %e) : f32
      scalar.yield(%f)
    }}
    %y2 = tensor.map(%y1, %z, {PAR}, reads = [[n, k, y, x], [n, k, y, x]]) : f32[2, 8, 6, 6] {{
      ^(%g: f32, %h: f32)
      %i = scalar.add(%g, %h) : f32
      %o = scalar.const(value = 0.0, dtype = "f32") : f32
      %j = scalar.max(%i, %o) : f32
      scalar.yield(%j)
    }}"""


def fused_kernel() -> Func:
    x, w, out, ops, _ = CASES["same padding"]
    return kernel_of(x, w, out, ops + BEHIND, f", %v: f32[8, 1, 1], %z: {out}", "%y2")


def test_bias_residual_and_relu_are_taken_along() -> None:
    kernel = fused_kernel()
    arrays = random_arrays(kernel)
    (wanted,) = run_main(whole(kernel), arrays)
    first, *others = convolutions_in(kernel)
    assert isinstance(first.problem, ConvolutionProblem)
    assert (first.problem.epilogue, first.problem.c is not None) == ("relu_bias", True)
    assert [c.problem.epilogue for c in others] == ["bias", "none"]
    got = by_cudnn(first, operands_of(kernel, first, arrays))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def candidates(kernel: Func, package: FakeCudnn) -> list[Module]:
    device = FakeLibraryDevice(Cudnn(package))
    chosen = with_template(kernel, "contract")
    return list(library_candidates(chosen, load_hardware("cuda:sm_90a"), device, missing={}))


def test_less_is_taken_along_where_no_plan_takes_all() -> None:
    (fused,) = candidates(fused_kernel(), FakeCudnn())
    (plain,) = candidates(fused_kernel(), FakeCudnn(fusions=False))
    found = [next(iter(library_kernels(m).values())).problem.epilogue for m in (fused, plain)]
    assert found == ["relu_bias", "bias"]


def test_float32_never_runs_on_tensor_cores_unless_tf32_is_allowed() -> None:
    (call,) = convolutions_in(named_kernel("same padding"))
    library = Cudnn(FakeCudnn())
    exact = [k.algorithm for k in library.kernels(call.problem, 1 << 20)]
    assert isinstance(call.problem, ConvolutionProblem)
    allowed = [k.algorithm for k in library.kernels(replace(call.problem, tf32=True), 1 << 20)]
    assert (exact, allowed) == (["engine_simt"], ["engine_tc", "engine_simt"])


def test_plans_with_more_workspace_than_allowed_are_left_out() -> None:
    (call,) = convolutions_in(named_kernel("same padding"))
    assert list(Cudnn(FakeCudnn()).kernels(call.problem, 1023)) == []


def test_plans_are_built_when_asked_for_and_shared_by_all_launches() -> None:
    (call,) = convolutions_in(named_kernel("same padding"))
    package = FakeCudnn()
    library = Cudnn(package)
    problem = replace(call.problem, tf32=True)  # type: ignore[type-var]
    found = iter(library.kernels(problem, 1 << 20))
    first = next(found)
    assert package.log == ["build_operation_graph", "build engine_tc"]
    pointers = dict.fromkeys([a.role for a in first.arguments()], 4096)
    launches = [library.prepare(first, pointers, f"launch {i}") for i in range(10)]
    assert len(package.log) == 2
    assert [k.algorithm for k in found] == ["engine_simt"]
    assert package.log[2:] == ["build engine_simt", "build engine_broken"]
    assert len({id(launch._planned) for launch in launches}) == 1


def test_graphs_that_no_launch_uses_are_let_go_in_the_end() -> None:
    (call,) = convolutions_in(named_kernel("same padding"))
    package = FakeCudnn()
    library = Cudnn(package)
    assert isinstance(call.problem, ConvolutionProblem)
    at = [replace(call.problem.a, start=4 * i) for i in range(KEPT_GRAPHS + 3)]
    first, second, *others = (replace(call.problem, a=a) for a in at)
    (kernel,) = library.kernels(first, 1 << 20)
    launch = library.prepare(kernel, dict.fromkeys([a.role for a in kernel.arguments()], 4096), "launch 0")
    for other in (second, *others):
        list(library.kernels(other, 1 << 20))
    package.log.clear()
    list(library.kernels(first, 1 << 20))
    assert package.log == ["build engine_tc", "build engine_broken"]  # a launch has it, these failed
    list(library.kernels(second, 1 << 20))
    assert "build_operation_graph" in package.log
    launch.close()


def test_a_plan_that_is_gone_is_an_error() -> None:
    (call,) = convolutions_in(named_kernel("same padding"))
    library = Cudnn(FakeCudnn())
    (kernel,) = library.kernels(call.problem, 1 << 20)
    pointers = dict.fromkeys([a.role for a in kernel.arguments()], 4096)
    with pytest.raises(DeviceError, match="launch 3: cuDNN has no plan 'engine_x' on this GPU"):
        library.prepare(replace(kernel, algorithm="engine_x"), pointers, "launch 3")
    with pytest.raises(DeviceError, match="launch 3: cuDNN does not build the stored plan: not this plan"):
        library.prepare(replace(kernel, algorithm="engine_tc"), pointers, "launch 3")
    with pytest.raises(DeviceError, match="needs 1024 bytes of workspace"):
        library.prepare(replace(kernel, workspace_bytes=8), pointers, "launch 3")


def test_rearranged_filters_that_are_constant_become_constants() -> None:
    kernel = named_kernel("packed filters")
    (program,) = candidates(kernel, FakeCudnn())
    assert [f.name for f in program.funcs] == ["k_weights", "k_library", "main"]
    alone = timed_program(program, {1})
    assert [f.name for f in alone.funcs] == ["k_library", "main"]
    assert any(a.shape == (8, 4, 3, 3) for a in (np.asarray(alone.constants[n]) for n in alone.constants))
    free = timed_program(program, ())
    assert with_constant_weights(free) is free


def test_json_of_convolutions_round_trips() -> None:
    (call,) = convolutions_in(named_kernel("groups"))
    kernel = LibraryKernel("cudnn", "9.19.0", call.problem, "eng4_k2=1", 128)
    assert LibraryKernel.from_json(kernel.to_json()) == kernel
    with pytest.raises(InputError, match="cublaslt computes no convolution"):
        LibraryKernel.from_json(kernel.to_json().replace('"cudnn"', '"cublaslt"').replace("eng4_k2=1", "00"))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"d": Array4((2, 8, 5, 6), (288, 36, 6, 1))}, "expected results of"),
        ({"strides": (0, 1)}, "expected strides in"),
        ({"before": (1,)}, "expected two before"),
        ({"a": Array4((2, 4, 6), (144, 36, 6))}, "expected four dimensions of a"),
        ({"b": Array4((8, 3, 3, 3), (27, 9, 3, 1))}, "expected channels in groups"),
        ({"a": Array4((2, 4, 6, 6), (144, 36, 6, 1), 1)}, "multiple of 16 bytes"),
        ({"dtype": "float64"}, "expected dtype among"),
    ],
)
def test_problems_that_make_no_sense_are_refused(change: dict[str, Any], text: str) -> None:
    (call,) = convolutions_in(named_kernel("same padding"))
    assert isinstance(call.problem, ConvolutionProblem)
    with pytest.raises(InputError, match=text):
        replace(call.problem, **change).check()
