"""simplify-thread and thread-dce: exact for every thread, block and iteration."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_kernels import after, assert_same, count, kernel, outputs

from tilewright.ir import Sym, walk
from tilewright.ir.expr import Expr, binary, show_expr

SYMBOLS = [Sym(n) for n in ("tid", "bid.x", "bid.y", "i", "j")]


def combine(parts: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    def build(op: str, a: Expr, b: Expr, c: int) -> Expr:
        if op in ("//", "%"):
            return binary(op, a, c)
        return binary(op, a, c if op == "*" and c % 2 else b)

    ops = st.sampled_from(["+", "-", "*", "//", "%", "min", "max", "//", "%", "+"])
    return st.builds(build, ops, parts, parts, st.integers(1, 12))


EXPRESSIONS = st.recursive(st.one_of(st.sampled_from(SYMBOLS), st.integers(-6, 12)), combine, max_leaves=9)
INDEX_KERNEL = """
    thread.loop(var = i, extent = 3) {{
        thread.loop(var = j, extent = {extent}) {{
            %v = scalar.index(at = {value}, dtype = "i64") : i64
            thread.store(%v, %y, at = [bid.y, bid.x, i, j, tid], mask = [[{value}, {low}, {high}]])
        }}
    }}"""


@settings(max_examples=150)
@given(EXPRESSIONS, EXPRESSIONS, st.integers(-9, 9), st.integers(0, 12), st.sampled_from([0, 1, 2, 4]))
def test_simplification_is_exact(value, low, high, width, extent):
    body = INDEX_KERNEL.format(
        value=show_expr(value), low=show_expr(low), high=show_expr(high + width), extent=extent
    )
    func = kernel(body, "%y: i64[2, 3, 3, 4, 8]", grid="[3, 2, 1]")
    new = after("simplify-thread", func)
    assert_same(func, new)
    assert after("simplify-thread", new) is new


def masked(mask: str, inner: str = "") -> str:
    return f"""%a = thread.load(%x, at = [tid], mask = [{mask}], other = 2.0) : f32
        thread.store(%a, %y, at = [tid]) {inner}"""


def the_masks(func):
    return [op.get("mask") for op in walk(func.body) if op.name == "thread.load"]


def test_masks_that_always_hold_go_and_others_stay():
    params = "%x: f32[8], %y: f32[8]"
    func = kernel(masked("[tid, 0, 8], [tid + 1, 1, 9], [tid, 0, 7]"), params)
    new = after("simplify-thread", func)
    assert the_masks(new) == [((Sym("tid"), 0, 7),)]
    assert_same(func, new)


def test_what_an_enclosing_condition_says_is_known():
    func = kernel(
        "thread.if(mask = [[tid, 0, 5]]) {" + masked("[tid, 0, 5], [tid, 1, 8]") + "}",
        "%x: f32[8], %y: f32[8]",
    )
    new = after("simplify-thread", func)
    assert the_masks(new) == [((Sym("tid"), 1, 8),)]
    assert_same(func, new)


def test_what_never_happens_goes():
    func = kernel(
        """
        %a = thread.load(%x, at = [tid], mask = [[tid, 8, 9]], other = 3.0) : f32
        %b = thread.load(%x, at = [0], lanes = 4, mask = [[tid, -4, 0]]) : f32x4
        %e = scalar.extract(%b, lane = 1) : f32
        %c = scalar.add(%a, %e) : f32
        thread.store(%c, %y, at = [tid])
        thread.store(%c, %x, at = [tid], mask = [[tid, 9, 20]])
        thread.if(mask = [[tid, 100, 200]]) { thread.store(%c, %x, at = [tid]) }""",
        "%x: f32[8], %y: f32[8]",
    )
    new = after("simplify-thread", func)
    assert (count(new, "thread.load"), count(new, "thread.store"), count(new, "thread.if")) == (0, 1, 0)
    assert_same(func, new)


def test_short_loops_are_replaced_by_their_body_and_carried_values_follow():
    func = kernel(
        """
        %a = thread.load(%x, at = [tid]) : f32
        %one, %two = thread.loop(%a, %a, var = i, extent = 1) : f32, f32 {
            ^(%p: f32, %q: f32)
            %s = scalar.add(%p, %q) : f32
            thread.yield(%s, %p)
        }
        %none = thread.loop(%one, var = j, extent = 0) : f32 {
            ^(%r: f32)
            %t = scalar.mul(%r, %r) : f32
            thread.yield(%t)
        }
        thread.loop(var = k, extent = 2) {
            %d = scalar.sub(%none, %two) : f32
            thread.store(%d, %y, at = [k, tid])
        }""",
        "%x: f32[8], %y: f32[2, 8]",
    )
    new = after("simplify-thread", func)
    assert count(new, "thread.loop") == 1
    assert count(new, "scalar.mul") == 0
    assert_same(func, new)


def test_a_kernel_with_nothing_to_do_stays():
    body = (
        "thread.loop(var = i, extent = 2) { thread.if(mask = [[tid, 0, 4]]) {" + masked("[tid, i, 8]") + "} }"
    )
    func = kernel(body, "%x: f32[8], %y: f32[8]")
    assert after("simplify-thread, thread-dce", func) is func


def test_expressions_get_shorter():
    e = "4 * ((tid + 8 * bid.x) // 4) + (tid + 8 * bid.x) % 4 - 8 * bid.x"
    body = f"%a = thread.load(%x, at = [{e}]) : f32 thread.store(%a, %y, at = [tid])"
    func = kernel(body, "%x: f32[8], %y: f32[8]", grid="[3, 1, 1]")
    new = after("simplify-thread", func)
    (load,) = (op for op in walk(new.body) if op.name == "thread.load")
    assert load["at"] == (Sym("tid"),)
    assert_same(func, new)


def test_dead_code_goes_and_live_code_stays():
    func = kernel(
        """
        %s = thread.alloc() : f32[8] in shared
        %r = thread.alloc() : f32[4] in reg
        %live = thread.alloc() : f32[1] in reg
        %a = thread.load(%x, at = [tid]) : f32
        thread.store(%a, %s, at = [tid])
        thread.loop(var = i, extent = 4) {
            %b = scalar.mul(%a, %a) : f32
            thread.store(%b, %r, at = [i])
        }
        thread.if(mask = [[tid, 0, 3]]) { %c = thread.load(%x, at = [0]) : f32 }
        thread.store(%a, %live, at = [0])
        %d = thread.load(%live, at = [0]) : f32
        %n = thread.loop(%d, var = j, extent = 2) : f32 {
            ^(%p: f32)
            %q = scalar.add(%p, %d) : f32
            thread.yield(%q)
        }
        thread.store(%n, %y, at = [tid])""",
        "%x: f32[8], %y: f32[8]",
    )
    new = after("thread-dce", func)
    names = [op.name for op in new.body.ops]
    assert names == [f"thread.{n}" for n in ("alloc", "load", "store", "load", "loop", "store", "return")]
    assert_same(func, new)
    assert after("thread-dce", new) is new
    assert np.isfinite(outputs(new)[1]).all()
