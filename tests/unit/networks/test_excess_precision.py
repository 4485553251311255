"""excess-precision: what is rounded where, how near results come to float64, how conversions are emitted."""

import numpy as np
import pytest
from thread_interpreter import run_kernel
from thread_kernels import after, count, kernel

import tilewright as tw
from tilewright.codegen import emit_cuda
from tilewright.ir import Func, parse, walk
from tilewright.ir.types import storage_dtype
from tilewright.passes import pipelines
from tilewright.running.checking import random_inputs, relative_error

GELU = """
    %x = thread.load(%a, at = [tid, 0], lanes = {lanes}) : {dtype}x{lanes}
    %slope = scalar.const(value = 0.70703125, dtype = "{dtype}") : {dtype}
    %half = scalar.const(value = 0.5, dtype = "{dtype}") : {dtype}
    %0 = scalar.mul(%x, %slope) : {dtype}x{lanes}
    %1 = scalar.erf(%0) : {dtype}x{lanes}
    %2 = scalar.fma(%1, %half, %half) : {dtype}x{lanes}
    %3 = scalar.mul(%x, %2) : {dtype}x{lanes}
    thread.store(%3, %y, at = [tid, 0])
"""
NETWORK = """module @net {
  graph.func @main(%x: f32[64, 48], %w: f32[32, 48], %b: f32[32]) -> f32[64, 32] {
    %0 = graph.dense(%x, %w) : f32[64, 32]
    %1 = graph.add(%0, %b) : f32[64, 32]
    %2 = graph.tanh(%1) : f32[64, 32]
    %3 = graph.multiply(%1, %2) : f32[64, 32]
    %4 = graph.subtract(%3, %b) : f32[64, 32]
    graph.return(%4)
  }
}
"""


def gelu(dtype: str, lanes: int = 8) -> Func:
    return kernel(GELU.format(dtype=dtype, lanes=lanes), f"%a: {dtype}[8, {lanes}], %y: {dtype}[8, {lanes}]")


def run_in(func: Func, x: np.ndarray) -> np.ndarray:
    return run_kernel(func, x, np.zeros_like(x))[1].astype(np.float64)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_results_come_nearer_to_float64(dtype: str):
    func = gelu(dtype)
    new = after("excess-precision", func)
    x = np.linspace(-3, 3, 64).reshape(8, 8).astype(storage_dtype(dtype))
    wide = x.astype(np.float64)
    exact = run_in(after("excess-precision", gelu("f64")), wide)
    before, behind = (np.abs(run_in(f, x) - exact).mean() for f in (func, new))
    assert behind < before / 1.2
    # one rounding of a value and of the arithmetic in float32 is all that is left
    unit = {"f16": 2.0**-11, "bf16": 2.0**-8}[dtype]
    assert (np.abs(run_in(new, x) - exact) <= np.abs(exact) * unit + 1e-6).all()


def test_values_are_rounded_before_they_become_integers_or_meet_each_other():
    body = """
        %0 = thread.load(%a, at = [tid]) : f16
        %1 = scalar.const(value = 2049.0, dtype = "f32") : f32
        %2 = scalar.cast(%1, dtype = "f16") : f16
        %3 = scalar.add(%2, %0) : f16
        %4 = scalar.cast(%3, dtype = "i32") : i32
        thread.store(%4, %y0, at = [tid])
        thread.store(%3, %y1, at = [tid])
        %5 = thread.load(%y1, at = [tid]) : f16
        %6 = scalar.eq(%5, %3) : bool
        thread.store(%6, %y2, at = [tid])
    """
    func = after("excess-precision", kernel(body, "%a: f16[8], %y0: i32[8], %y1: f16[8], %y2: bool[8]"))
    outs = run_kernel(
        func, np.zeros(8, np.float16), np.zeros(8, np.int32), np.zeros(8, np.float16), np.zeros(8, bool)
    )
    assert outs[1].tolist() == [2048] * 8
    assert outs[3].all()


def test_a_float32_kernel_and_moves_stay_as_they_are():
    func = kernel(
        "%0 = thread.load(%a, at = [tid]) : f32\n thread.store(%0, %y, at = [tid])", "%a: f32[8], %y: f32[8]"
    )
    assert after("excess-precision", func) is func
    move = kernel(
        "%0 = thread.load(%a, at = [tid]) : f16\n thread.store(%0, %y, at = [tid])", "%a: f16[8], %y: f16[8]"
    )
    assert after("excess-precision", move) is move


def test_loops_carry_float32_and_round_once():
    body = """
        %0 = scalar.const(value = 0.0, dtype = "f16") : f16
        %1 = thread.loop(%0, var = i, extent = 64) : f16 {
          ^(%2: f16)
          %3 = thread.load(%a, at = [i]) : f16
          %4 = scalar.add(%2, %3) : f16
          thread.yield(%4)
        }
        thread.store(%1, %y, at = [tid])
    """
    new = after("excess-precision", kernel(body, "%a: f16[64], %y: f16[8]"))
    (loop,) = (op for op in walk(new.body) if op.name == "thread.loop")
    assert [r.type.dtype for r in loop.results] == ["f32"]
    assert count(new, "scalar.cast") == 2
    x = (np.arange(64) % 7 + 0.1).astype(np.float16)
    out = run_kernel(new, x, np.zeros(8, np.float16))[1]
    assert (out == np.float16(x.astype(np.float64).sum())).all()


@pytest.mark.parametrize(("lanes", "word"), [(2, "unsigned int"), (4, "uint2"), (8, "uint4")])
def test_lanes_are_converted_in_pairs_and_stored_as_one_word(lanes: int, word: str):
    new = after("excess-precision", gelu("bf16", lanes))
    text = emit_cuda(new).source
    assert text.count("tw_bf16x2_from_f32(") == lanes // 2 + 1  # and its definition
    assert f"*({word}*)&y" in text
    assert "tw_bf16_from_f32(v" not in text


def test_a_network_comes_nearer_to_float64(monkeypatch: pytest.MonkeyPatch):
    module = parse(NETWORK)
    errors = []
    official = pipelines.THREAD["opencl"]
    for thread in (official, official.without("excess-precision")):
        monkeypatch.setattr(pipelines, "THREAD", {"opencl": thread})
        with tw.compile(module, target="opencl", precision="bf16") as exe:
            inputs = random_inputs(exe.input_names, exe.input_types, 3)
            (got,) = exe(*inputs)
        (exact,) = tw.interpret(module, *inputs, precision="fp64")
        errors.append(relative_error(got, exact))
    assert errors[0] < errors[1]
