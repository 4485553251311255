"""Index expressions and masks in C follow Python's integers, negative and wide values included."""

import numpy as np
import pytest
from codegen_samples import DEVICES, kernel, run
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.codegen import emit_cuda
from tilewright.ir import Builder, Func, Level, TensorType, Value
from tilewright.ir.expr import Expr, Sym, binary, evaluate
from tilewright.ir.simplify import interval

BLOCK, GRID, TRIPS = 7, 3, 4
RANGES = {"tid": (0, BLOCK - 1), "bid.x": (0, GRID - 1), "i": (0, TRIPS - 1)}
SIZE = BLOCK * GRID * TRIPS
PER_KERNEL = 12

leaves = st.one_of(st.sampled_from([Sym(s) for s in RANGES]), st.integers(-20, 20), st.just(123456))


def combine(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    plain = st.builds(binary, st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner)
    divided = st.builds(binary, st.sampled_from(["//", "%"]), inner, st.integers(1, 9))
    by_symbol = st.builds(lambda op, a: binary(op, a, Sym("i") + 2), st.sampled_from(["//", "%"]), inner)
    return st.one_of(plain, divided, by_symbol)


def bounded(e: Expr) -> bool:
    """Whether every part of the expression fits 64 bits."""
    if isinstance(e, int | Sym):
        return True
    low, high = interval(e, RANGES)
    known = low > -(2.0**62) and high < 2.0**62
    return (known or e.op in ("//", "%")) and bounded(e.lhs) and bounded(e.rhs)


expressions = st.recursive(leaves, combine, max_leaves=8).filter(bounded)
masks = st.lists(st.tuples(expressions, st.integers(-9, 9), st.integers(-9, 30)), max_size=2)


def index_kernel(cases: list[tuple[Expr, list[tuple[Expr, int, int]]]]) -> Func:
    """y[c, place] is the value of expression c where its mask holds, else -5."""
    y = Value(TensorType("i64", (len(cases), SIZE)), "y")
    b = Builder()
    flag = Value(TensorType("i32", (1,)), "flag")
    place = (Sym("bid.x") * BLOCK + Sym("tid")) * TRIPS + Sym("i")
    with b.loop("i", TRIPS) as inner:
        for c, (e, mask) in enumerate(cases):
            holds = inner.value("thread.load", flag, at=(0,), mask=tuple(mask), other=0)
            truth = inner.cast(holds, "bool")
            chosen = inner.value("scalar.select", truth, inner.index(e, "i64"), inner.const(-5, "i64"))
            inner.do("thread.store", chosen, y, at=(c, place))
        inner.do("thread.yield")
    b.do("thread.return")
    return Func(Level.THREAD, "k", b.block((flag, y)), (), (("grid", (GRID, 1, 1)), ("block", BLOCK)))


@pytest.mark.emulator
@pytest.mark.parametrize("target", DEVICES)
@settings(max_examples=10)
@given(cases=st.lists(st.tuples(expressions, masks), min_size=PER_KERNEL, max_size=PER_KERNEL))
def test_c_arithmetic_is_python_arithmetic(cases, target):
    got = run(index_kernel(cases), target, [np.ones(1, np.int32)])["y"]
    bid, tid, i = np.meshgrid(np.arange(GRID), np.arange(BLOCK), np.arange(TRIPS), indexing="ij")
    env = {"bid.x": bid.ravel(), "tid": tid.ravel(), "i": i.ravel()}
    for c, (e, mask) in enumerate(cases):
        holds = np.ones(SIZE, bool)
        for x, low, high in mask:
            value = evaluate(x, env)
            holds &= (low <= value) & (value < high)
        np.testing.assert_array_equal(
            got[c], np.where(holds, evaluate(e, env), -5), err_msg=f"{e} where {mask}"
        )


def text_of(at: str, shape: str = "[8, 56]", mask: str = "", block: int = 64) -> str:
    masked = f", mask = [{mask}]" if mask else ""
    body = f"%v = thread.load(%x, at = [{at}]{masked}) : f32\nthread.store(%v, %y, at = [0])"
    return emit_cuda(kernel(body, {"x": f"f32{shape}", "y": "f32[1]"}, grid="[7, 8, 1]", block=block)).source


def test_offsets_are_simplified_under_ranges():
    assert "x[bid_x * 64 + tid]" in text_of("(bid.x * 64 + tid) // 56, (bid.x * 64 + tid) % 56")
    assert "x[bid_y * 56 + tid]" in text_of("bid.y, tid % 64", block=56)


def test_offsets_beyond_int_are_64_bits_wide():
    assert "(long long)bid_x * ((long long)4294967296)" in text_of("bid.x, tid", shape="[8, 4294967296]")
    assert "long long" not in text_of("bid.x, tid", shape="[8, 268435455]")


def test_masks_are_minimal():
    assert "?" not in text_of("bid.y, tid % 56", mask="[tid, 0, 64]")
    assert "(unsigned int)(bid_x - 1) < 3u ?" in text_of("bid.y, tid % 56", mask="[bid.x - 1, 0, 3]")
    assert "tid < 60 ?" in text_of("bid.y, tid % 56", mask="[tid, -3, 60]")
    assert "const float v = 0.0f;" in text_of("bid.y, tid % 56", mask="[tid, 64, 99]")


def test_negative_dividends_are_shifted_into_the_positive():
    assert "(bid_x * 5 - tid + 63) / 3 - 21" in text_of("(bid.x * 5 - tid) // 3 + 21, 0", shape="[64, 2]")
