"""Row kernels on GPUs: kept in registers, or across rows that lie side by side."""

from dataclasses import replace

import numpy as np
import pytest
from decision_samples import parameters, template, with_template
from relay_builder import Net
from template_kernels import ROWS

import tilewright as tw
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.compilation.lowering import lower
from tilewright.costmodel import RowReduceProblem, load_hardware
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, Pairs, parse
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.row_phases import row_phases
from tilewright.passes.kernels.rows.space import RowAccess, choose_rows

_ADD = "{ ^(%a: f32, %acc: f32) %m = scalar.add(%a, %acc) : f32 scalar.yield(%m) }"
POOL = f"""module @net {{
  tensor.func @main(%x: f32[3, 5, 4, 12]) -> f32[3, 12, 1, 1] {{
    %0 = tensor.reduce(%x, par = (n: 3, c: 12, h: 1, w: 1), red = (y: 5, x: 4),
      reads = [[n, y, x, c]], init = [0.5]) : f32[3, 12, 1, 1] {_ADD}
    %1 = tensor.map(%0, par = (n: 3, c: 12, h: 1, w: 1), reads = [[n, c, h, w]]) : f32[3, 12, 1, 1] {{
      ^(%a: f32) %k = scalar.const(value = 0.05, dtype = "f32") : f32 %m = scalar.mul(%a, %k) : f32
      scalar.yield(%m) }}
    tensor.return(%1)
  }}
}}"""
#: sums over all samples and tokens of features that lie as heads of four each
HEADS = f"""module @net {{
  tensor.func @main(%x: f32[3, 20, 8, 4]) -> f32[32] {{
    %0 = tensor.reduce(%x, par = (f: 32), red = (n: 3, t: 20),
      reads = [[n, t, f // 4, f % 4]]) : f32[32] {_ADD}
    tensor.return(%0)
  }}
}}"""


def moments(layout):
    """Sum, sum of products and sum of squares about the mean of each channel, as one kernel."""
    shape, at = ("6, 10, 12", "n, y, c") if layout == "last" else ("12, 60", "c, n")
    red = "n: 6, y: 10" if layout == "last" else "n: 60"
    return f"""module @net {{
      tensor.func @k(%x: f32[{shape}], %g: f32[{shape}]) -> f32[12], f32[12], f32[12] {{
        %0 = tensor.reduce(%x, par = (c: 12), red = ({red}), reads = [[{at}]]) : f32[12] {_ADD}
        %1 = tensor.reduce(%x, %g, par = (c: 12), red = ({red}), reads = [[{at}], [{at}]]) : f32[12] {{
          ^(%a: f32, %b: f32, %acc: f32) %m = scalar.fma(%a, %b, %acc) : f32 scalar.yield(%m) }}
        %2 = tensor.reduce(%x, %0, par = (c: 12), red = ({red}), reads = [[{at}], [c]]) : f32[12] {{
          ^(%a: f32, %s: f32, %acc: f32)
          %n = scalar.const(value = 60.0, dtype = "f32") : f32 %q = scalar.div(%s, %n) : f32
          %d = scalar.sub(%a, %q) : f32 %m = scalar.fma(%d, %d, %acc) : f32 scalar.yield(%m) }}
        tensor.return(%0, %1, %2)
      }}
      tensor.func @main(%x: f32[{shape}], %g: f32[{shape}]) -> f32[12], f32[12], f32[12] {{
        %0, %1, %2 = tensor.call(%x, %g, callee = @k) : f32[12], f32[12], f32[12]
        tensor.return(%0, %1, %2)
      }}
    }}"""


def kernels(text, kind, params, target):
    """The program with a template and its parameters forced on its kernel."""
    resolved = resolve_target(target)
    context = PassContext(target=str(resolved), hardware=resolved.hardware)
    module = run_pipeline(parse(text), Pipeline.parse("fuse-kernels, choose-parameters"), context)
    named = dict(zip(("threads_per_row", "rows_per_block", "vec"), params, strict=True))
    forced = (f if f.name == "main" else with_template(f, kind, Pairs.of(named)) for f in module.funcs)
    return module.with_funcs(tuple(forced))


def agrees(text, kind, params, target):
    module = kernels(text, kind, params, target)
    rng = np.random.default_rng(2)
    inputs = [rng.standard_normal(p.tensor.shape).astype(np.float32) for p in module.main.params]
    wanted = tw.interpret(parse(text), *inputs, precision="fp64")
    with tw.compile(module, target=target) as exe:
        for g, w in zip(exe(*inputs), wanted, strict=True):
            np.testing.assert_allclose(g, w, rtol=3e-6, atol=3e-6)


@pytest.mark.emulator
@pytest.mark.parametrize("params", [(32, 4, 4), (8, 16, 1), (64, 1, 2), (128, 1, 4), (1, 32, 4)], ids=str)
def test_rows_are_kept(params):
    agrees(ROWS, "rows_kept", params, "emulator")


@pytest.mark.parametrize("params", [(1, 8, 4), (4, 2, 2), (32, 1, 1)], ids=str)
def test_rows_side_by_side_on_opencl(params):
    agrees(POOL, "rows_across", params, "opencl")


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("text", "params"),
    [(POOL, (8, 4, 4)), (POOL, (2, 16, 2)), (ROWS, (4, 8, 1)), (HEADS, (8, 4, 4)), (HEADS, (4, 4, 2))],
    ids=str,
)
def test_rows_side_by_side_on_cuda_text(text, params):
    agrees(text, "rows_across", params, "emulator")


@pytest.mark.parametrize("target", [pytest.param("emulator", marks=pytest.mark.emulator), "opencl"])
@pytest.mark.parametrize(
    ("layout", "kind", "params"),
    [("last", "rows_across", (8, 4, 4)), ("first", "rows_kept", (8, 4, 4)), ("first", "rows", (4, 8, 2))],
    ids=str,
)
def test_sums_walk_together(layout, kind, params, target):
    if target == "opencl" and kind == "rows_kept":
        params = (1, 32, 4)  # work-items exchange nothing but what is in memory
    agrees(moments(layout), kind, params, target)


def test_independent_sums_are_one_walk():
    func = parse(moments("last")).funcs[0]
    assert row_phases(func).walks == ((0, 1), (2,))
    source = source_of(moments("last"), "rows_across", (4, 1, 4))
    assert source.count("for (int s") == 2


def test_what_a_few_steps_read_is_asked_for_before_it_is_used():
    source = source_of(
        POOL.replace("f32[3, 5, 4, 12]", "f32[3, 15, 4, 12]").replace("y: 5", "y: 15"),
        "rows_across",
        (4, 16, 4),
    )
    read, used = source.index("&x["), source.index("asked_v")
    loops = [
        source.index(f"for (int {name} = 0; {name} < {n};") for name, n in (("s", 3), ("u", 4), ("u1", 4))
    ]
    assert loops[0] < loops[1] < read < loops[2] < used
    assert "if (" not in source[loops[0] : used].replace("if (bid_x", "")


def source_of(text, kind, params):
    lowered = lower(kernels(text, kind, params, "cuda:sm_90a"), resolve_target("cuda:sm_90a"))
    (source,) = (s.source for s in lowered.sources.values())
    return source


@pytest.mark.parametrize(
    "case", [(ROWS, "rows_kept", (8, 16, 4)), (POOL, "rows_across", (4, 16, 4))], ids=str
)
def test_no_spills(case):
    (resources,) = compile_cuda(source_of(*case), arch="sm_90a").kernels.values()
    assert resources.spill_bytes == 0


def test_a_kept_row_is_read_once():
    source = source_of(ROWS, "rows_kept", (32, 4, 4))
    assert source.count("&x[") == 1
    assert source.count("expf") == 1  # for sum and quotient alike
    assert source.count("__syncthreads") == 0


def norm(rows):
    """Rows divided by their sums, with a factor and a shift for each column."""
    shape = f"f32[{rows}, 64]"
    return f"""module @net {{
  tensor.func @main(%x: {shape}, %factor: f32[64], %shift: f32[64]) -> {shape} {{
    %0 = tensor.reduce(%x, par = (r: {rows}), red = (c: 64), reads = [[r, c]]) : f32[{rows}] {_ADD}
    %1 = tensor.map(%x, %0, %factor, %shift, par = (r: {rows}, c: 64), reads = [[r, c], [r], [c], [c]])
      : {shape} {{
      ^(%a: f32, %s: f32, %g: f32, %b: f32) %q = scalar.div(%a, %s) : f32
      %m = scalar.fma(%q, %g, %b) : f32 scalar.yield(%m) }}
    tensor.return(%1)
  }}
}}"""


def test_what_all_rows_read_is_asked_for_before_the_rows_where_blocks_are_few():
    few, many = (source_of(norm(rows), "rows_kept", (16, 8, 4)) for rows in (8 * 128, 8 * 128 + 8))
    row, sums = "&x[", "__shfl_xor_sync"
    assert few.index("&factor[") < few.index("&shift[") < few.index(row) < few.index(sums)
    assert many.index(row) < many.index(sums) < many.index("&factor[") < many.index("&shift[")


@pytest.mark.emulator
def test_what_all_rows_read_may_be_kept():
    agrees(norm(24), "rows_kept", (16, 8, 4), "emulator")


def test_rows_side_by_side_are_read_as_vectors():
    source = source_of(POOL, "rows_across", (4, 16, 4))
    assert source.count("*(const float4*)&x[") == source.count("&x[") == 2  # the last step is checked


def test_rows_cut_into_heads_lie_side_by_side_too():
    kernel = parse(HEADS).funcs[0]
    assert row_phases(kernel).inner(kernel) == "row.0"
    source = source_of(HEADS, "rows_across", (4, 8, 4))
    assert source.count("*(const float4*)&x[") == source.count("&x[") > 0
    swapped = parse(
        HEADS.replace("f32[3, 20, 8, 4]", "f32[3, 20, 4, 8]").replace("f // 4, f % 4", "f % 4, f // 4")
    )
    assert row_phases(swapped.funcs[0]).inner(swapped.funcs[0]) == ""


def test_impossible_parameters_are_named():
    with pytest.raises(InputError, match="divide 12"):
        source_of(POOL, "rows_across", (4, 16, 8))
    with pytest.raises(InputError, match="power of two"):
        source_of(ROWS, "rows_kept", (24, 4, 4))
    with pytest.raises(InputError, match="divide 100"):
        source_of(ROWS, "rows_kept", (32, 4, 8))


def chosen(net, result, precision="fp32"):
    """Templates and parameters of a network's kernels on an H100."""
    target = resolve_target("cuda:sm_90a")
    lowered = lower(net.module(result), target, precision=precision)
    return [(template(f), vars(parameters(f))) for f in lowered.tensor.funcs if f.name != "main"]


def test_what_networks_get():
    net = Net()
    softmax = chosen(net, net("nn.softmax({}, axis=-1)", net.input(4096, 1024)))
    assert [s for s, _ in softmax] == ["rows_kept"]
    net = Net()
    pool = chosen(net, net('nn.global_avg_pool2d({}, layout="NHWC")', net.input(64, 7, 7, 1280)))
    assert [(s, p["vec"]) for s, p in pool] == [("rows_across", 4)]
    net = Net()
    pool = chosen(net, net("nn.global_avg_pool2d({})", net.input(64, 1280, 7, 7)))
    assert [s for s, _ in pool] == ["rows_kept"]


@pytest.mark.parametrize("across", [False, True])
def test_choices_fit(across):
    hardware = load_hardware("cuda:sm_90a")
    for rows, length in ((1, 1000), (2048, 49), (12 * 128, 128), (8192, 4096), (3, 1 << 20), (1, 1)):
        problem = RowReduceProblem(rows, length, 4 * rows * length, 4 * rows, rows * length)
        inner = rows if across else length
        p = choose_rows(problem, hardware, RowAccess(inner, 4, across)).parameters
        assert inner % p.vec == 0
        assert 128 <= p.threads_per_row * p.rows_per_block <= 512
    kept = RowAccess(1 << 20, 4, kept_words=1.0)
    short = RowReduceProblem(4096, 512, 1 << 23, 1 << 14, 1)
    twice = replace(kept, walks=2)
    seconds = [choose_rows(short, hardware, access).estimate_s for access in (kept, twice)]
    assert seconds[0] <= seconds[1] < 1.1 * seconds[0]
    long = RowReduceProblem(4096, 30522, 4096 * 30522 * 4, 1 << 14, 1)  # no block keeps such rows
    again = choose_rows(long, hardware, replace(twice, inner=30522))
    assert again.estimate_s > 1.3 * choose_rows(long, hardware, RowAccess(30522, 4)).estimate_s


def test_rows_that_are_too_long_to_keep_are_read_again():
    source = source_of(ROWS, "rows_kept", (1, 32, 4))
    assert source.count("&x[") == 3  # once for each walk
    agrees(ROWS, "rows_kept", (1, 32, 4), "opencl")
