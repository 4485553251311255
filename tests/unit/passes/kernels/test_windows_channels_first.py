"""Window kernels whose windows slide along the innermost dimension: several outputs of a row per thread."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from test_windows_channels_last import kernels

import tilewright as tw
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.compilation.lowering import lower
from tilewright.costmodel import WindowProblem, load_hardware
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, parse
from tilewright.passes.kernels.window.space import choose_tiles, pieces, row_pieces

_MAX = "{ ^(%a: T, %acc: T) %m = scalar.max(%a, %acc) : T scalar.yield(%m) }"
_SUM = (
    '{ ^(%a: T, %b: T, %acc: f32) %t = scalar.cast(%a, dtype = "f32") : f32 '
    '%u = scalar.cast(%b, dtype = "f32") : f32 %m = scalar.fma(%t, %u, %acc) : f32 scalar.yield(%m) }'
)
POOL = f"""module @net {{
  tensor.func @main(%x: T[3, 13, 16]) -> T[3, 7, 8] {{
    %0 = tensor.window(%x, par = (n: 3, y: 7, x: 8), red = (r: 3, s: 3),
      reads = [[n, y * 2 + r - 1, x * 2 + s - 1]], fill = [-inf], init = [-inf]) : T[3, 7, 8] {_MAX}
    tensor.return(%0)
  }}
}}"""
#: without padding: rows of the input are longer than those of the output, and no multiples of eight
BARE = f"""module @net {{
  tensor.func @main(%x: T[3, 12, 18]) -> T[3, 10, 16] {{
    %0 = tensor.window(%x, par = (n: 3, y: 10, x: 16), red = (r: 3, s: 3),
      reads = [[n, y + r, x + s]], init = [-inf]) : T[3, 10, 16] {_MAX}
    tensor.return(%0)
  }}
}}"""
#: a residual and a bias behind it, both read as they come
DEPTHWISE = f"""module @net {{
  tensor.func @main(%x: T[2, 3, 9, 16], %w: T[3, 5, 5], %z: T[2, 3, 9, 16], %c: T[3]) -> T[2, 3, 9, 16] {{
    %0 = tensor.window(%x, %w, par = (n: 2, k: 3, y: 9, x: 16), red = (r: 5, s: 5),
      reads = [[n, k, y + r - 2, x + s - 2], [k, r, s]], fill = [0.0, none]) : f32[2, 3, 9, 16] {_SUM}
    %1 = tensor.map(%0, %z, %c, par = (n: 2, k: 3, y: 9, x: 16),
      reads = [[n, k, y, x], [n, k, y, x], [k]]) : T[2, 3, 9, 16] {{
      ^(%a: f32, %b: T, %d: T) %e = scalar.cast(%b, dtype = "f32") : f32
      %f = scalar.cast(%d, dtype = "f32") : f32
      %g = scalar.add(%a, %e) : f32 %h = scalar.add(%g, %f) : f32 %i = scalar.cast(%h, dtype = "T") : T
      scalar.yield(%i) }}
    tensor.return(%1)
  }}
}}"""
#: a mean over what lies inside the image: each output divides by a count that depends on its column
COUNTED = """module @net {
  tensor.func @main(%x: T[2, 7, 16]) -> T[2, 7, 16] {
    %0 = tensor.window(%x, par = (n: 2, y: 7, x: 16), red = (r: 3, s: 3),
      reads = [[n, y + r - 1, x + s - 1]], fill = [0.0]) : f32[2, 7, 16] {
      ^(%a: T, %acc: f32) %b = scalar.cast(%a, dtype = "f32") : f32 %m = scalar.add(%b, %acc) : f32
      scalar.yield(%m) }
    %1 = tensor.map(%0, par = (n: 2, y: 7, x: 16), reads = [[n, y, x]]) : T[2, 7, 16] {
      ^(%a: f32) %n = scalar.index(at = min(x + 2, 16) - max(x - 1, 0), dtype = "i32") : i32
      %c = scalar.cast(%n, dtype = "f32") : f32 %q = scalar.div(%a, %c) : f32
      %i = scalar.cast(%q, dtype = "T") : T scalar.yield(%i) }
    tensor.return(%1)
  }
}"""
#: so large that its rows become a loop
LONG = f"""module @net {{
  tensor.func @main(%x: T[1, 20, 32], %w: T[1, 17, 9]) -> T[1, 20, 32] {{
    %0 = tensor.window(%x, %w, par = (n: 1, y: 20, x: 32), red = (r: 17, s: 9),
      reads = [[n, y + r - 8, x + s - 4], [n, r, s]], fill = [0.0, none]) : f32[1, 20, 32] {_SUM}
    %1 = tensor.map(%0, par = (n: 1, y: 20, x: 32), reads = [[n, y, x]]) : T[1, 20, 32] {{
      ^(%a: f32) %i = scalar.cast(%a, dtype = "T") : T scalar.yield(%i) }}
    tensor.return(%1)
  }}
}}"""
CASES = {
    "pool": (POOL, {"y": 2, "x": 4}),
    "bare": (BARE, {"y": 4, "x": 8}),
    "depthwise": (DEPTHWISE, {"y": 2, "x": 8}),
    "counted": (COUNTED, {"y": 2, "x": 8}),
    "long": (LONG, {"y": 2, "x": 8}),
    "strip": (DEPTHWISE, {"y": 7, "x": 8}),
}


def cast(text, dtype):
    return text.replace("T[", f"{dtype}[").replace(": T", f": {dtype}").replace('"T"', f'"{dtype}"')


def agrees(text, outputs, dtype, target):
    module = kernels(text, outputs, target)
    rng = np.random.default_rng(5)
    kind = {"f16": np.float16, "f32": np.float32}[dtype]
    inputs = [rng.standard_normal(p.tensor.shape).astype(kind) for p in module.main.params]
    (wanted,) = tw.interpret(parse(text), *inputs, precision="fp64")
    with tw.compile(module, target=target) as exe:
        (got,) = exe(*inputs)
    close = 1e-3 if dtype == "f16" else 2e-6
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=close, atol=close)


@pytest.mark.emulator
@pytest.mark.parametrize("name", CASES)
def test_against_the_interpreter(name):
    text, outputs = CASES[name]
    agrees(cast(text, "f16"), outputs, "f16", "emulator")


def test_on_opencl_in_float32():
    text, outputs = CASES["depthwise"]
    agrees(cast(text, "f32"), {**outputs, "x": 4}, "f32", "opencl")


def source_of(name, outputs=None):
    text, given = CASES[name]
    module = kernels(cast(text, "f16"), outputs or given, "cuda:sm_90a")
    (source,) = (s.source for s in lower(module, resolve_target("cuda:sm_90a")).sources.values())
    return source


@pytest.mark.parametrize("name", ["depthwise", "counted", "long", "strip"])
def test_no_spills(name):
    (resources,) = compile_cuda(source_of(name), arch="sm_90a").kernels.values()
    assert resources.spill_bytes == 0


def test_rows_are_read_as_vectors_and_edges_alone():
    source = source_of("pool")
    assert source.count("*(const uint4*)&x[") == 5  # rows of two rows of windows
    assert source.count("? x[") == 5  # the column before the first output's
    assert source.count("*(uint2*)&") >= 2
    source = source_of("depthwise")
    assert source.count("*(const uint4*)&x[") == 2 + 4
    assert source.count("*(const unsigned int*)&x[") == 2 * (2 + 4)  # two columns at each end


def test_windows_along_the_row_must_fit_the_code():
    long = CASES["long"][0].replace("s: 9", "s: 260").replace("17, 9]", "17, 260]")
    long = long.replace("20, 32]", "20, 288]").replace("x: 32", "x: 288")  # each tap is inside somewhere
    module = kernels(cast(long, "f16"), {"y": 1, "x": 8}, "cuda:sm_90a")
    with pytest.raises(InputError, match="fewer outputs of x"):
        lower(module, resolve_target("cuda:sm_90a"))


def test_pieces_bring_all_columns_once_and_aligned():
    for aligned, pitch, first, last in ((8, 112, -1, 8), (8, 28, -2, 5), (16, 56, -1, 15), (4, 7, -3, 6)):
        found = pieces(range(first, last + 1), aligned, pitch, 8)
        assert sorted(c for p in found for c in p.columns) == list(range(first, last + 1))
        for p in found:
            assert p.start % p.lanes == pitch % p.lanes == aligned % p.lanes == 0
            assert p.start <= min(p.columns)
            assert max(p.columns) < p.start + p.lanes
    assert [p.lanes for p in pieces(range(-1, 9), 8, 112, 8)] == [1, 8, 1]
    assert [p.lanes for p in pieces(range(-1, 7), 8, 56, 8)] == [1, 8]


def problem(width, filter_, stride, element_bytes, images=4096):
    pad = (filter_ - 1) // 2
    return WindowProblem(
        images, width // stride, width // stride, filter_, filter_, stride, stride, 1, 1, (pad,) * 4,
        width, width, 0, element_bytes,
    )  # fmt: skip


@pytest.mark.parametrize(("width", "filter_", "stride"), [(112, 3, 1), (56, 3, 2), (28, 5, 1), (14, 3, 1)])
def test_large_tensors_of_short_elements_move_the_vectors_their_rows_allow(width, filter_, stride):
    hardware = load_hardware("cuda:sm_90a")
    short = problem(width, filter_, stride, 2)
    vec = choose_tiles(short, hardware, 0, runs=True).parameters.outputs["inner"]
    assert max(piece.lanes for piece in row_pieces(short, vec)) == min(8, width & -width)
    assert (width // stride) % vec == 0
    assert choose_tiles(short, hardware, 0).parameters.outputs["inner"] == 1
    single = choose_tiles(problem(width, filter_, stride, 4), hardware, 0, runs=True)
    assert single.parameters.outputs["inner"] == 1


def test_few_outputs_are_spread_over_threads():
    few = choose_tiles(problem(56, 3, 1, 2, images=2), load_hardware("cuda:sm_90a"), 0, runs=True)
    assert prod(few.parameters.outputs.values()) <= 2


@pytest.mark.parametrize(("width", "rows"), [(112, 7), (28, 14)])
def test_large_windows_share_rows_and_leave_no_thread_without_any(width, rows):
    weighted = replace(problem(width, 5, 1, 2), weight_bytes=25 * 2 * 64)
    found = choose_tiles(weighted, load_hardware("cuda:sm_90a"), 0, runs=True)
    assert found.parameters.outputs["rows"] == rows
    assert width % rows == 0


def test_what_memory_bounds_takes_no_more_sums_than_it_needs():
    bounded = choose_tiles(problem(112, 3, 2, 2), load_hardware("cuda:sm_90a"), 0, runs=True)
    assert prod(bounded.parameters.outputs.values()) <= 16
