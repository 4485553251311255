"""On an NVIDIA GPU: library kernels against float64, in graphs and step by step, and chosen by measuring."""

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.kernel_builds import compiled, emit_kernels, kernel_codes
from tilewright.compilation.lowering import lower_program
from tilewright.compilation.planning import library_kernels, plan_module
from tilewright.costmodel import load_hardware
from tilewright.devices.targets import resolve_target
from tilewright.ir import parse
from tilewright.ir.interpreter.run import interpret
from tilewright.libraries.candidates import convolutions_in, library_candidates, products_in
from tilewright.libraries.comparison import timed_program
from tilewright.measuring.kernel_program import kernel_program
from tilewright.passes.kernels.decision import KernelDecision
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.errors import DeviceMissingError, InputError

PRODUCT = """module @m {{
  tensor.func @k(%x: {t}[64, 96], %w: {t}[96, 128], %v: {o}[128], %z: {o}[64, 128]) -> {o}[64, 128] {{
    %y0 = tensor.contract(%x, %w, par = (m: 64, k: 128), red = (c: 96), reads = [[m, c], [c, k]]{tf32}) : f32[64, 128] {{
      ^(%a: {t}, %b: {t}, %c: f32)
      %p = scalar.cast(%a, dtype = "f32") : f32
      %q = scalar.cast(%b, dtype = "f32") : f32
      %r = scalar.fma(%p, %q, %c) : f32
      scalar.yield(%r)
    }}
    %y = tensor.map(%y0, %v, %z, par = (m: 64, k: 128), reads = [[m, k], [k], [m, k]]) : {o}[64, 128] {{
      ^(%d: f32, %e: {o}, %f: {o})
      %g = scalar.cast(%e, dtype = "f32") : f32
      %h = scalar.cast(%f, dtype = "f32") : f32
      %i = scalar.add(%d, %g) : f32
      %j = scalar.add(%i, %h) : f32
      %n = scalar.const(value = 0.0, dtype = "f32") : f32
      %l = scalar.max(%j, %n) : f32
      %s = scalar.cast(%l, dtype = "{o}") : {o}
      scalar.yield(%s)
    }}
    tensor.return(%y)
  }}
}}
"""  # noqa: E501
CONVOLUTION = """module @m {{
  tensor.func @k(%x: {t}{image}, %w: {t}{filters}) -> f32{out} {{
    %y = tensor.contract(%x, %w, par = ({par}), red = (c: 16, r: 3, s: 3), reads = [{reads}], fill = [0.0, none]{tf32}) : f32{out} {{
      ^(%a: {t}, %b: {t}, %c: f32)
      %p = scalar.cast(%a, dtype = "f32") : f32
      %q = scalar.cast(%b, dtype = "f32") : f32
      %r = scalar.fma(%p, %q, %c) : f32
      scalar.yield(%r)
    }}
    tensor.return(%y)
  }}
}}
"""  # noqa: E501
FIRST = {
    "image": "[2, 16, 15, 14]", "filters": "[32, 16, 3, 3]", "out": "[2, 32, 8, 7]",
    "par": "n: 2, k: 32, y: 8, x: 7", "reads": "[n, c, y * 2 + r - 1, x * 2 + s - 1], [k, c, r, s]",
}  # fmt: skip
LAST = {
    "image": "[2, 15, 14, 16]", "filters": "[32, 16, 3, 3]", "out": "[2, 8, 7, 32]",
    "par": "n: 2, y: 8, x: 7, k: 32", "reads": "[n, y * 2 + r - 1, x * 2 + s - 1, c], [k, c, r, s]",
}  # fmt: skip
#: precision -> element type of factors, of results, what the contraction says of TF32, tolerance
PRECISIONS = {
    "fp32": ("f32", "f32", "", 2e-5),
    "tf32": ("f32", "f32", ', factors = "tf32"', 2e-3),
    "fp16": ("f16", "f16", "", 2e-3),
    "bf16": ("bf16", "bf16", "", 1e-2),
}


@pytest.fixture(scope="module")
def gpu():
    with CudaDevice() as device:
        yield device


def product(precision):
    t, o, tf32, _ = PRECISIONS[precision]
    kernel = parse(PRODUCT.format(t=t, o=o, tf32=tf32))["k"]
    return kernel.with_attrs(decision=KernelDecision("contract", None))


def convolution(precision, layout):
    t, _, tf32, _ = PRECISIONS[precision]
    kernel = parse(CONVOLUTION.format(t=t, tf32=tf32, **layout))["k"]
    return kernel.with_attrs(decision=KernelDecision("contract", None))


def built(module, arch):
    """A program lowered, compiled and planned."""
    target = resolve_target(f"cuda:{arch}")
    lowered = lower_program(module, target, cold=False)
    sources = emit_kernels(lowered, target)
    codes = compiled(kernel_codes(sources, target), target, progress=False)
    plan = plan_module(lowered, sources, codes, str(target))
    names = {b.name for b in plan.buffers if b.kind == "constant"}
    return plan, {n: np.asarray(a) for n, a in lowered.constants.items() if n in names}


def random_inputs(plan):
    rng = np.random.default_rng(0)
    buffers = [plan.buffer_by_name[name] for name in plan.inputs]
    from tilewright.runtime.dtypes import DTYPES

    return [rng.standard_normal(b.shape, np.float32).astype(DTYPES[b.dtype]) for b in buffers]


def check_candidates(gpu, kernel, found, tolerance):
    """Every candidate gives what the kernel does in float64, in a graph, captured and step by step."""
    for candidate in found:
        module = timed_program(candidate, {1})
        plan, constants = built(module, gpu.arch)
        inputs = random_inputs(plan)
        reference = kernel_program(kernel, {1})
        (wanted,) = interpret(reference, *inputs, precision="fp64")
        norm = np.linalg.norm(wanted.astype(np.float64))
        results = {}
        for kind in ("graph", "capture", "eager", "checked"):
            with CudaDevice(replay=kind) as device, device.load(plan, constants) as loaded:
                loaded.run(inputs)
                (results[kind],) = loaded.run(inputs)
        (name,) = library_kernels(candidate)
        problem = library_kernels(candidate)[name].problem
        for kind, got in results.items():
            error = np.linalg.norm(got.astype(np.float64) - wanted.astype(np.float64)) / norm
            assert error <= tolerance, (kind, error, problem)
            np.testing.assert_array_equal(got, results["checked"], err_msg=kind)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_algorithm_of_cublaslt_is_right(gpu, precision):
    kernel = product(precision)
    found = list(library_candidates(kernel, load_hardware(f"cuda:{gpu.arch}"), gpu, missing={}))
    kernels = [k for m in found for k in library_kernels(m).values()]
    epilogues = {k.problem.epilogue for k in kernels if k.provider == "cublaslt"}
    assert {"none", "relu_bias"} & epilogues
    assert products_in(kernel)
    lt = [m for m, k in zip(found, kernels, strict=True) if k.provider == "cublaslt"]
    check_candidates(gpu, kernel, lt, PRECISIONS[precision][3])


@pytest.mark.parametrize("layout", [FIRST, LAST], ids=["channels first", "channels last"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_plan_of_cudnn_is_right(gpu, precision, layout):
    pytest.importorskip("cudnn")
    kernel = convolution(precision, layout)
    assert convolutions_in(kernel)
    missing = {}
    found = list(library_candidates(kernel, load_hardware(f"cuda:{gpu.arch}"), gpu, missing=missing))
    if "cudnn" in missing:
        pytest.skip(missing["cudnn"])
    if precision == "fp32":
        assert found
    check_candidates(gpu, kernel, found[:12], PRECISIONS[precision][3])


def test_a_plan_of_another_version_is_refused(gpu):
    kernel = product("fp32")
    candidate = next(library_candidates(kernel, load_hardware(f"cuda:{gpu.arch}"), gpu, missing={}))
    plan, constants = built(timed_program(candidate, {1}), gpu.arch)
    kernels = [
        replace(k, source=k.source.replace('"version": "', '"version": "9')) if k.language == "library" else k
        for k in plan.kernels
    ]
    with pytest.raises(InputError, match="this machine has"):
        gpu.load(plan.replace(kernels=tuple(kernels)), constants)


def test_unknown_libraries_are_refused(gpu):
    (call, *_) = products_in(product("fp32"))
    with pytest.raises((InputError, DeviceMissingError)):
        next(iter(gpu.library_kernels("nolib", call.problem, 0)))


def test_measuring_takes_libraries_only_where_allowed(request, tmp_path):
    path = str(request.getfixturevalue("data_dir") / "relay" / "mlp.relay")
    module = tw.frontends.relay.load(path, params="random", seed=0)
    database = tmp_path / "tuning.db"
    with_them = tw.compile(module, target="cuda", tune="measure", tuning_db=database)
    without = tw.compile(module, target="cuda", tune="measure", tuning_db=database, libraries=False)
    facts = with_them.artifact.facts["libraries"]
    assert facts["compared"]
    assert all(row["candidates"] for row in facts["compared"])
    assert "libraries" not in without.artifact.facts
    assert all(k.language == "cuda" for k in without.plan.kernels)
    won = sum(x["chosen"] != "generated" for x in facts["compared"])
    assert bool(won) == any(k.language == "library" for k in with_them.plan.kernels)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.shape).astype(t.dtype) for t in with_them.input_types]
    for got, wanted in zip(with_them(*inputs), without(*inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
