"""Row kernels that stage whole rows in shared memory, and half-precision rows read as whole vectors."""

import numpy as np
import pytest
from decision_samples import template
from test_rows_channels_last import kernels

import tilewright as tw
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.compilation.lowering import lower
from tilewright.costmodel import RowReduceProblem, load_hardware
from tilewright.costmodel.kernels.parameters import RowReduceParameters
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, UnsupportedError, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.rows.staged_space import choose_staged, copied_lanes, read_wavefronts

_ADD = (
    '{ ^(%a: T, %acc: f32) %b = scalar.cast(%a, dtype = "f32") : f32 '
    "%m = scalar.add(%b, %acc) : f32 scalar.yield(%m) }"
)
#: a map before the reduction reads a factor per row, one behind it makes a mean
POOL = f"""module @net {{
  tensor.func @main(%x: T[21, 7, 8], %s: f32[21]) -> T[21] {{
    %0 = tensor.map(%x, %s, par = (n: 21, y: 7, x: 8), reads = [[n, y, x], [n]]) : T[21, 7, 8] {{
      ^(%a: T, %b: f32) %c = scalar.cast(%a, dtype = "f32") : f32 %m = scalar.mul(%c, %b) : f32
      %t = scalar.cast(%m, dtype = "T") : T scalar.yield(%t) }}
    %1 = tensor.reduce(%0, par = (n: 21), red = (y: 7, x: 8),
      reads = [[n, y, x]], init = [0.5]) : f32[21] {_ADD}
    %2 = tensor.map(%1, par = (n: 21), reads = [[n]]) : T[21] {{
      ^(%a: f32) %k = scalar.const(value = 0.02, dtype = "f32") : f32 %m = scalar.mul(%a, %k) : f32
      %t = scalar.cast(%m, dtype = "T") : T scalar.yield(%t) }}
    tensor.return(%2)
  }}
}}"""
#: rows of an odd length
ODD = POOL.replace("21", "24").replace("x: 8", "x: 7").replace("7, 8]", "7, 7]")
#: rows of whole vectors of eight
LONG = POOL.replace("21", "6").replace("x: 8", "x: 40").replace("7, 8]", "7, 40]")


def cast(text, dtype):
    return text.replace("T[", f"{dtype}[").replace(": T", f": {dtype}").replace('"T"', f'"{dtype}"')


def agrees(text, kind, params, target, dtype="f16"):
    text = cast(text, dtype)
    module = kernels(text, kind, params, target)
    rng = np.random.default_rng(7)
    kinds = {"f16": np.float16, "f32": np.float32}
    inputs = [rng.standard_normal(p.tensor.shape).astype(kinds[p.tensor.dtype]) for p in module.main.params]
    (wanted,) = tw.interpret(parse(text), *inputs, precision="fp64")
    with tw.compile(module, target=target) as exe:
        (got,) = exe(*inputs)
    close = 2e-3 if dtype == "f16" else 3e-6
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=close, atol=close)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("text", "params"),
    [(POOL, (4, 8, 8)), (POOL, (1, 32, 2)), (ODD, (2, 16, 1)), (ODD, (64, 2, 1)), (LONG, (8, 4, 8))],
    ids=["vectors", "pairs", "odd", "several-warps", "long"],
)
def test_rows_are_staged(text, params):
    agrees(text, "rows_staged", params, "emulator")


@pytest.mark.emulator
def test_vectors_of_half_precision_are_read_alone():
    agrees(LONG, "rows_kept", (8, 4, 8), "emulator")


def source_of(text, kind, params):
    lowered = lower(kernels(cast(text, "f16"), kind, params, "cuda:sm_90a"), resolve_target("cuda:sm_90a"))
    (source,) = (s.source for s in lowered.sources.values())
    return source


@pytest.mark.parametrize("params", [(1, 128, 1), (4, 32, 1)], ids=str)
def test_no_spills(params):
    (resources,) = compile_cuda(source_of(ODD, "rows_staged", params), arch="sm_90a").kernels.values()
    assert resources.spill_bytes == 0
    assert resources.static_shared_bytes == 2 * 49 * params[1]


def test_copies_reach_across_rows():
    source = source_of(ODD, "rows_staged", (2, 16, 1))
    assert source.count("tw_copy_async_16(") == 2  # its definition and the copies of 16 bytes
    assert source.count("__syncthreads") == 1


def test_half_precision_rows_move_sixteen_bytes():
    source = source_of(LONG, "rows_kept", (8, 4, 8))
    assert source.count("*(const uint4*)&x[") == 1
    assert source.count("*(const uint2*)&x[") == 0


def test_impossible_parameters_are_named():
    with pytest.raises(InputError, match="divide 49"):
        source_of(ODD, "rows_staged", (2, 16, 2))
    with pytest.raises(InputError, match="whole words"):
        source_of(ODD.replace("24", "23"), "rows_staged", (32, 1, 1))
    across = ODD.replace("%x: T[24, 7, 7]", "%x: T[7, 24, 7]").replace("[n, y, x], [n]", "[y, n, x], [n]")
    with pytest.raises(UnsupportedError, match="row by row"):
        source_of(across, "rows_staged", (2, 16, 1))


def chosen_template(text):
    target = resolve_target("cuda:sm_90a")
    context = PassContext(target=str(target), hardware=target.hardware)
    module = run_pipeline(parse(text), Pipeline.parse("fuse-kernels, choose-parameters"), context)
    (kernel,) = (f for f in module.funcs if f.name != "main")
    return template(kernel)


@pytest.mark.parametrize(
    ("dtype", "size", "kind"),
    [
        ("f16", 7, "staged"),
        ("f16", 28, "staged"),
        ("f16", 56, "kept"),
        ("f32", 7, "kept"),
        ("f32", 28, "kept"),
    ],
)
def test_short_elements_in_rows_without_whole_vectors_are_staged(dtype, size, kind):
    text = POOL.replace("21", str(1 << 17)).replace("x: 8", f"x: {size}").replace("7, 8]", f"7, {size}]")
    assert chosen_template(cast(text, dtype)) == f"rows_{kind}"


@pytest.mark.parametrize("record", ["cuda:sm_90a", "cuda:sm_75"])
def test_choices_fit(record):
    hardware = load_hardware(record)
    for rows, length in ((1 << 20, 49), (1 << 18, 196), (1 << 17, 784), (8, 49), (131, 100)):
        problem = RowReduceProblem(rows, length, 2 * rows * length, 2 * rows, rows * length)
        p = choose_staged(problem, hardware, 2).parameters
        assert length % p.vec == 0
        assert 128 <= p.threads_per_row * p.rows_per_block <= 256
        assert copied_lanes(problem, p.rows_per_block, 2) >= 2
        assert p.rows_per_block * length * 2 <= 32768
    assert choose_staged(RowReduceProblem(3, 49, 294, 6, 147), hardware, 2) is None


def test_reads_of_odd_rows_meet_a_bank_twice():
    assert read_wavefronts(49, 2, RowReduceParameters(1, 128, 1)) == 2
    assert read_wavefronts(49, 4, RowReduceParameters(1, 128, 1)) == 1
    assert read_wavefronts(196, 2, RowReduceParameters(1, 128, 4)) == 2  # two phases, each without conflicts


@pytest.mark.emulator
def test_tiles_beyond_static_shared_memory_are_launched_with_theirs():
    """Rows that end inside the second block; a guard page ends what the launch asked for."""
    text = cast(POOL.replace("21", "130").replace("x: 8", "x: 28").replace("7, 8]", "7, 28]"), "f16")
    module = kernels(text, "rows_staged", (1, 128, 4), "emulator")
    x = np.random.default_rng(3).standard_normal((130, 7, 28)).astype(np.float16)
    factors = np.linspace(-1, 1, 130, dtype=np.float32)
    with tw.compile(module, target="emulator") as exe:
        (launch,) = exe.plan.launches
        assert launch.shared_bytes == 128 * 196 * 2
        (got,) = exe(x, factors)
    (wanted,) = tw.interpret(parse(text), x, factors, precision="fp64")
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=2e-3, atol=2e-3)


SOFTMAX = """module @net {
  tensor.func @main(%x: f16[21, 2, 49]) -> f16[21, 2, 49] {
    %0 = tensor.reduce(%x, par = (n: 21, h: 2), red = (x: 49),
      reads = [[n, h, x]], init = [-inf]) : f32[21, 2] {
      ^(%a: f16, %acc: f32) %b = scalar.cast(%a, dtype = "f32") : f32 %m = scalar.max(%b, %acc) : f32
      scalar.yield(%m) }
    %1 = tensor.map(%x, %0, par = (n: 21, h: 2, x: 49), reads = [[n, h, x], [n, h]]) : f32[21, 2, 49] {
      ^(%a: f16, %t: f32) %b = scalar.cast(%a, dtype = "f32") : f32 %m = scalar.sub(%b, %t) : f32
      %e = scalar.exp(%m) : f32 scalar.yield(%e) }
    %2 = tensor.reduce(%1, par = (n: 21, h: 2), red = (x: 49), reads = [[n, h, x]]) : f32[21, 2] {
      ^(%a: f32, %acc: f32) %m = scalar.add(%a, %acc) : f32 scalar.yield(%m) }
    %3 = tensor.map(%1, %2, par = (n: 21, h: 2, x: 49), reads = [[n, h, x], [n, h]]) : f16[21, 2, 49] {
      ^(%a: f32, %t: f32) %d = scalar.div(%a, %t) : f32 %e = scalar.cast(%d, dtype = "f16") : f16
      scalar.yield(%e) }
    tensor.return(%3)
  }
}"""


@pytest.mark.emulator
@pytest.mark.parametrize("params", [(1, 32, 1), (4, 16, 7), (64, 2, 1)], ids=str)
def test_results_along_rows_leave_as_they_came(params):
    agrees(SOFTMAX, "rows_staged", params, "emulator")


def test_results_along_rows_are_computed_once_and_leave_as_vectors():
    source = source_of(SOFTMAX.replace("21", "64"), "rows_staged", (4, 32, 1))
    assert source.count("expf(") == 1
    assert source.count("*(uint4*)&out[") == 1
    assert source.count("__syncthreads") == 3


@pytest.mark.parametrize(
    ("length", "dtype", "kind"), [(49, "f16", "staged"), (197, "f16", "kept"), (49, "f32", "kept")]
)
def test_short_rows_of_softmax_are_staged(length, dtype, kind):
    text = SOFTMAX.replace("21", str(1 << 16)).replace("49", str(length))
    text = text.replace("f16", dtype) if dtype != "f16" else text
    assert chosen_template(text) == f"rows_{kind}"
