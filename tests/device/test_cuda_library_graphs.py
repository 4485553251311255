"""On an NVIDIA GPU: attention and normalisations of cuDNN, GELU of cuBLASLt, each against float64."""

import pytest
from test_cuda_libraries import check_candidates

from tilewright.compilation.planning import library_kernels
from tilewright.costmodel import load_hardware
from tilewright.ir import parse
from tilewright.libraries.candidates import library_candidates
from tilewright.libraries.matching.attention import attentions_in
from tilewright.libraries.matching.norm import norms_in
from tilewright.passes.kernels.decision import KernelDecision
from tilewright.runtime.cuda.device import CudaDevice

FMA = """{{
      ^(%a: {t}, %b: {t}, %c: f32)
      %p = scalar.cast(%a, dtype = "f32") : f32
      %q = scalar.cast(%b, dtype = "f32") : f32
      %r = scalar.fma(%p, %q, %c) : f32
      scalar.yield(%r)
    }}"""
ROWS = "par = (n: 2, h: 3, m: 64), red = (k: 96)"
SCORES = "par = (n: 2, h: 3, m: 64, k: 96)"
ATTENTION = f"""module @m {{{{
  tensor.func @k(%x: {{t}}[2, 64, 3, 64], %y: {{t}}[2, 96, 3, 64], %z: {{t}}[2, 96, 3, 64]{{more}}) -> {{t}}[2, 64, 3, 64] {{{{
    %s0 = tensor.contract(%x, %y, {SCORES}, red = (c: 64), reads = [[n, m, h, c], [n, k, h, c]]) : f32[2, 3, 64, 96] {FMA}
    {{between}}
    %s3 = tensor.map(%s2, {SCORES}, reads = [[n, h, m, k]]) : f32[2, 3, 64, 96] {{{{
      ^(%e: f32)
      scalar.yield(%e)
    }}}}
    %d1 = tensor.reduce(%s3, {ROWS}, reads = [[n, h, m, k]], init = [-inf]) : f32[2, 3, 64] {{{{
      ^(%f: f32, %g: f32)
      %i = scalar.max(%f, %g) : f32
      scalar.yield(%i)
    }}}}
    %d2 = tensor.map(%s3, %d1, {SCORES}, reads = [[n, h, m, k], [n, h, m]]) : f32[2, 3, 64, 96] {{{{
      ^(%j: f32, %l: f32)
      %o = scalar.sub(%j, %l) : f32
      %u = scalar.exp(%o) : f32
      scalar.yield(%u)
    }}}}
    %d3 = tensor.reduce(%d2, {ROWS}, reads = [[n, h, m, k]]) : f32[2, 3, 64] {{{{
      ^(%f: f32, %g: f32)
      %i = scalar.add(%f, %g) : f32
      scalar.yield(%i)
    }}}}
    %d4 = tensor.map(%d2, %d3, {SCORES}, reads = [[n, h, m, k], [n, h, m]]) : {{t}}[2, 3, 64, 96] {{{{
      ^(%j: f32, %l: f32)
      %o = scalar.div(%j, %l) : f32
      %u = scalar.cast(%o, dtype = "{{t}}") : {{t}}
      scalar.yield(%u)
    }}}}
    %d5 = tensor.contract(%d4, %z, par = (n: 2, m: 64, h: 3, e: 64), red = (k: 96), reads = [[n, h, m, k], [n, k, h, e]]) : f32[2, 64, 3, 64] {FMA}
    %d6 = tensor.map(%d5, par = (n: 2, m: 64, h: 3, e: 64), reads = [[n, m, h, e]]) : {{t}}[2, 64, 3, 64] {{{{
      ^(%j: f32)
      %u = scalar.cast(%j, dtype = "{{t}}") : {{t}}
      scalar.yield(%u)
    }}}}
    tensor.return(%d6)
  }}}}
}}}}
"""  # noqa: E501
SCALE = f"""%s1 = tensor.map(%s0, {SCORES}, reads = [[n, h, m, k]]) : f32[2, 3, 64, 96] {{{{
      ^(%a: f32)
      %b = scalar.const(value = 0.125, dtype = "f32") : f32
      %c = scalar.mul(%a, %b) : f32
      scalar.yield(%c)
    }}}}
    """
PLAIN = SCALE.replace("%s1 =", "%s2 =")
BIAS = (
    SCALE
    + f"""%s2 = tensor.map(%s1, %w, {SCORES}, reads = [[n, h, m, k], [n, m, k]]) : f32[2, 3, 64, 96] {{{{
      ^(%a: f32, %b: {{t}})
      %c = scalar.cast(%b, dtype = "f32") : f32
      %d = scalar.add(%a, %c) : f32
      scalar.yield(%d)
    }}}}"""
)
CAUSAL = (
    SCALE.replace("96", "64")
    + f"""%w = tensor.map(par = (m: 64, k: 64), reads = []) : bool[64, 64] {{{{
      %a = scalar.index(at = m - k, dtype = "i32") : i32
      %b = scalar.const(value = 0, dtype = "i32") : i32
      %c = scalar.ge(%a, %b) : bool
      scalar.yield(%c)
    }}}}
    %s2 = tensor.map(%w, %s1, {SCORES}, reads = [[m, k], [n, h, m, k]]) : f32[2, 3, 64, 96] {{{{
      ^(%a: bool, %b: f32)
      %c = scalar.const(value = -1e30, dtype = "f32") : f32
      %d = scalar.select(%a, %b, %c) : f32
      scalar.yield(%d)
    }}}}"""
)
KINDS = {
    "plain": (PLAIN, "", "96"),
    "bias": (BIAS, ", %w: {t}[2, 64, 96]", "96"),
    "bias of keys": (BIAS.replace("[n, m, k]]", "[n, k]]"), ", %w: {t}[2, 96]", "96"),
    "causal": (CAUSAL, "", "64"),
}
NORM = """module @m {{
  tensor.func @k(%x: f32[40, 768], %w: f32[768], %b: f32[768]) -> {o}[40, 768] {{
    %m0 = tensor.reduce(%x, par = (i: 40), red = (j: 768), reads = [[i, j]]) : f32[40] {{
      ^(%a: f32, %c: f32)
      %d = scalar.add(%a, %c) : f32
      scalar.yield(%d)
    }}
    %m1 = tensor.map(%m0, par = (i: 40), reads = [[i]]) : f32[40] {{
      ^(%a: f32)
      %c = scalar.const(value = {divisor}, dtype = "f32") : f32
      %d = scalar.div(%a, %c) : f32
      %e = scalar.const(value = {keep}, dtype = "f32") : f32
      %f = scalar.mul(%d, %e) : f32
      scalar.yield({mean})
    }}
    %v0 = tensor.reduce(%x, %m1, par = (i: 40), red = (j: 768), reads = [[i, j], [i]]) : f32[40] {{
      ^(%a: f32, %c: f32, %d: f32)
      %e = scalar.sub(%a, %c) : f32
      %f = scalar.fma({square}, {square}, %d) : f32
      scalar.yield(%f)
    }}
    %y = tensor.map(%x, %w, {bias}%m1, %v0, par = (i: 40, j: 768), reads = [[i, j], [j], {at}[i], [i]]) : {o}[40, 768] {{
      ^(%a: f32, %c: f32, {element}%e: f32, %f: f32)
      %g = scalar.const(value = 768.0, dtype = "f32") : f32
      %h = scalar.div(%f, %g) : f32
      %i = scalar.const(value = 1e-05, dtype = "f32") : f32
      %j1 = scalar.add(%h, %i) : f32
      %k = scalar.rsqrt(%j1) : f32
      %l = scalar.sub(%a, %e) : f32
      %m = scalar.mul({value}, %k) : f32
      %n = scalar.mul(%m, %c) : f32
{add}      %p = scalar.cast({last}, dtype = "{o}") : {o}
      scalar.yield(%p)
    }}
    tensor.return(%y)
  }}
}}
"""  # noqa: E501
COMMON = {"divisor": "768.0", "keep": "0.0", "mean": "%d"}
LAYER = COMMON | {"square": "%e", "value": "%l", "last": "%o", "bias": "%b, ", "at": "[j], ",
                  "element": "%d: f32, ", "add": "      %o = scalar.add(%n, %d) : f32\n"}  # fmt: skip
RMS = COMMON | {"square": "%a", "value": "%a", "last": "%n", "bias": "", "at": "", "element": "", "add": ""}
GELU = """module @m {{
  tensor.func @k(%x: {t}[64, 96], %w: {t}[96, 128], %v: {t}[128]) -> {t}[64, 128] {{
    %y0 = tensor.contract(%x, %w, par = (m: 64, k: 128), red = (c: 96), reads = [[m, c], [c, k]]) : f32[64, 128] FMA
    %y1 = tensor.map(%y0, %v, par = (m: 64, k: 128), reads = [[m, k], [k]]) : {t}[64, 128] {{
      ^(%d: f32, %e: {t})
      %g = scalar.cast(%e, dtype = "f32") : f32
      %h = scalar.add(%d, %g) : f32
      %i = scalar.cast(%h, dtype = "{t}") : {t}
      scalar.yield(%i)
    }}
    %y2 = tensor.map(%y1, par = (m: 64, k: 128), reads = [[m, k]]) : {t}[64, 128] {{
      ^(%d: {t})
      %s = scalar.cast(%d, dtype = "f32") : f32
      %a = scalar.const(value = 0.044715, dtype = "f32") : f32
      %b = scalar.mul(%s, %s) : f32
      %c = scalar.mul(%b, %s) : f32
      %e = scalar.fma(%a, %c, %s) : f32
      %f = scalar.const(value = 0.7978845608, dtype = "f32") : f32
      %g = scalar.mul(%e, %f) : f32
      %h = scalar.tanh(%g) : f32
      %i = scalar.const(value = 0.5, dtype = "f32") : f32
      %j = scalar.fma(%h, %i, %i) : f32
      %k = scalar.mul(%s, %j) : f32
      %l = scalar.cast(%k, dtype = "{t}") : {t}
      scalar.yield(%l)
    }}
    tensor.return(%y2)
  }}
}}
""".replace("FMA", FMA)  # noqa: E501


@pytest.fixture(scope="module")
def gpu():
    with CudaDevice() as device:
        yield device


def candidates(gpu, kernel):
    missing = {}
    found = list(library_candidates(kernel, load_hardware(f"cuda:{gpu.arch}"), gpu, missing=missing))
    if "cudnn" in missing:
        pytest.skip(missing["cudnn"])
    return found


def attention(kind, dtype):
    between, more, keys = KINDS[kind]
    text = ATTENTION.replace("{between}", between).format(t=dtype, more=more.format(t=dtype))
    return parse(text.replace("96", keys))["k"].with_attrs(decision=KernelDecision("contract", None))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_plan_of_attention_is_right(gpu, kind, dtype):
    pytest.importorskip("cudnn")
    kernel = attention(kind, dtype)
    assert attentions_in(kernel)
    found = candidates(gpu, kernel)
    assert found
    assert {k.operation for m in found for k in library_kernels(m).values()} == {"attention"}
    check_candidates(gpu, kernel, found, {"f16": 2e-3, "bf16": 1e-2}[dtype])


@pytest.mark.parametrize("out", ["f32", "f16"])
@pytest.mark.parametrize("kind", [LAYER, RMS], ids=["layer", "rms"])
def test_every_plan_of_a_norm_is_right(gpu, kind, out):
    pytest.importorskip("cudnn")
    kernel = parse(NORM.format(o=out, **kind))["k"].with_attrs(decision=KernelDecision("rows", None))
    assert norms_in(kernel)
    found = candidates(gpu, kernel)
    if out == "f32":
        assert found
    check_candidates(gpu, kernel, found, {"f32": 1e-5, "f16": 1e-3}[out])


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_gelu_behind_a_product_is_the_form_with_tanh(gpu, dtype):
    kernel = parse(GELU.format(t=dtype))["k"].with_attrs(decision=KernelDecision("contract", None))
    found = [m for m in candidates(gpu, kernel) if "gelu" in epilogue(m)]
    assert found
    check_candidates(gpu, kernel, found, {"f32": 2e-5, "f16": 2e-3}[dtype])


def epilogue(module):
    (kernel,) = library_kernels(module).values()
    return getattr(kernel.problem, "epilogue", "")
