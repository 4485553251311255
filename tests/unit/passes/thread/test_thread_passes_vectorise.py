"""vectorise: which loops become vectors, which must not, and the same bits in either case."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from thread_kernels import CTX, after, assert_same, count, kernel, lanes

from tilewright.ir import InputError, Module, walk
from tilewright.passes import Pipeline, run_pipeline

COPY = """thread.loop(var = v, extent = {n}) {{
    %a = thread.load(%x, at = [{at}]{more}) : f32
    thread.store(%a, %y, at = [{to}])
}}"""


def copy(n: int = 4, at: str = "4 * tid + v", to: str = "4 * tid + v", more: str = "", shape: str = "32"):
    body = COPY.format(n=n, at=at, to=to, more=more)
    return kernel(body, f"%x: f32[{shape}], %y: f32[{shape}]")


def widths(func, passes: str = "vectorise") -> list[int]:
    """Lanes of the loads after vectorisation; the kernel does the same and is left alone by a second run."""
    new = after(passes, func)
    assert_same(func, new)
    assert after(passes, new) is new
    if new is func:
        assert set(lanes(new)) <= {1}
    return lanes(new)


def test_consecutive_aligned_elements_become_one_vector():
    func = copy()
    assert widths(func) == [4]
    new = after("vectorise, simplify-thread", func)
    assert count(new, "thread.loop") == 0
    assert_same(func, new)


@pytest.mark.parametrize(
    ("func", "expected"),
    [
        (copy(n=8, at="8 * tid + v", to="8 * tid + v", shape="64"), [4]),
        (copy(n=6, at="8 * tid + v", to="8 * tid + v", shape="64"), [2]),
        (copy(n=4, at="6 * tid + v", to="6 * tid + v", shape="48"), [2]),
        (copy(n=3, at="3 * tid + v", to="3 * tid + v", shape="24"), [1]),
        (copy(at="4 * tid + v + 1", to="4 * tid + v + 1", shape="40"), [1]),  # not aligned
        (copy(at="4 * tid + v + 2", to="4 * tid + v + 2", shape="40"), [2]),
        (copy(at="4 * tid + 2 * v", to="4 * tid + v", shape="40"), [1]),  # not consecutive
        (copy(at="31 - 4 * tid - v"), [1]),
        (copy(at="32 - 4 * tid - v", shape="40"), [1]),  # aligned, but backwards
        (copy(at="v, tid", to="tid, v", shape="8, 8"), [1]),
        (copy(at="tid, v", to="tid, v", shape="8, 6"), [2]),  # rows of six keep pairs aligned only
        (copy(more=", mask = [[tid, 1, 5]], other = 7.0"), [4]),
        (copy(more=", mask = [[4 * tid + v, 4, 24]], other = 7.0"), [4]),
        (copy(more=", mask = [[4 * tid + v, 0, 30]], other = 7.0"), [2]),  # thread 7 has two of four
        (copy(more=", mask = [[4 * tid + v, 0, 31]], other = 7.0"), [1]),
        (copy(more=", mask = [[v, 1, 3]], other = 7.0"), [1]),
    ],
)
def test_only_what_is_proven_right_becomes_vectors(func, expected):
    assert widths(func) == expected


def test_the_width_is_bounded_in_bytes():
    func = copy(n=16, at="16 * tid + v", to="16 * tid + v", shape="128")
    assert [widths(func, f"vectorise{{max_bytes={b}}}") for b in (4, 8, 16, 32, 64, 128)] == [
        [1], [2], [4], [8], [16], [16],
    ]  # fmt: skip
    with pytest.raises(InputError, match="max_bytes"):
        run_pipeline(Module("m", (func,)), Pipeline.parse("vectorise{max_bytes=0}"), CTX)


def test_arithmetic_works_on_lanes_and_invariant_operands_stay_single():
    func = kernel(
        """thread.loop(var = v, extent = 4, unroll = 1) {
            %a = thread.load(%x, at = [4 * tid + v]) : f32
            %s = thread.load(%w, at = [tid]) : f32
            %c = scalar.const(value = 0.5, dtype = "f32") : f32
            %m = scalar.fma(%a, %s, %c) : f32
            %p = scalar.gt(%m, %c) : bool
            %r = scalar.select(%p, %m, %c) : f32
            thread.store(%r, %y, at = [4 * tid + v])
            thread.store(%c, %y2, at = [4 * tid + v])
        }""",
        "%x: f32[32], %w: f32[8], %y: f32[32], %y2: f32[32]",
    )
    assert widths(func) == [4, 1]
    types = {op.name: str(op.results[0].type) for op in walk(after("vectorise", func).body) if op.results}
    assert types["scalar.fma"] == types["scalar.select"] == types["scalar.broadcast"] == "f32x4"
    assert types["scalar.gt"] == "boolx4"
    assert types["scalar.const"] == "f32"


def test_what_no_vector_computes_is_read_and_written_as_vectors():
    """As parts of a random word, which depend on iterations: on GPUs, where nothing read is written."""
    text = """thread.loop(var = v, extent = 8, unroll = 1) {{
        %a = thread.load(%x, at = [8 * tid + v]) : f32
        %c = thread.load({other}, at = [tid]) : f32
        %i = scalar.index(at = v // 2, dtype = "f32") : f32
        %b = scalar.fma(%a, %i, %c) : f32
        thread.store(%b, %y, at = [8 * tid + v])
    }}"""
    func = kernel(text.format(other="%w"), "%x: f32[64], %w: f32[8], %y: f32[64]")
    assert widths(func) == [4, 1, 1, 4]
    assert after("vectorise{registers=true}", func) is func
    stays = kernel(text.format(other="%y"), "%x: f32[64], %y: f32[64]")
    assert after("vectorise", stays) is stays


@pytest.mark.parametrize(
    "body",
    [
        # every iteration writes the same element
        "%a = thread.load(%x, at = [4 * tid + v]) : f32 thread.store(%a, %y, at = [4 * tid])",
        # an iteration reads what another one wrote
        "%a = thread.load(%y, at = [4 * tid]) : f32 thread.store(%a, %y, at = [4 * tid + v])",
        # the value depends on the iteration itself
        '%a = scalar.index(at = v, dtype = "f32") : f32 thread.store(%a, %y, at = [4 * tid + v])',
        # accumulation in memory
        """%a = thread.load(%x, at = [4 * tid + v]) : f32
           %b = thread.load(%y, at = [4 * tid]) : f32
           %c = scalar.add(%a, %b) : f32
           thread.store(%c, %y, at = [4 * tid])""",
    ],
)
def test_iterations_that_depend_on_each_other_stay(body):
    head = '%one = scalar.const(value = 1.0, dtype = "f32") : f32 thread.store(%one, %y, at = [4 * tid])\n'
    func = kernel(head + "thread.loop(var = v, extent = 4) {" + body + "}", "%x: f32[32], %y: f32[32]")
    new = after("vectorise", func)
    assert new is func


def test_carried_values_stay():
    func = kernel(
        """%z = scalar.const(value = 0.0, dtype = "f32") : f32
        %s = thread.loop(%z, var = v, extent = 4) : f32 {
            ^(%acc: f32)
            %a = thread.load(%x, at = [4 * tid + v]) : f32
            %n = scalar.add(%acc, %a) : f32
            thread.yield(%n)
        }
        thread.store(%s, %y, at = [tid])""",
        "%x: f32[32], %y: f32[8]",
    )
    assert after("vectorise", func) is func


UPDATE = """
    %acc = thread.alloc() : f32[2, 4] in reg
    thread.loop(var = i, extent = 2) { thread.loop(var = j, extent = 4) {
        %a = thread.load(%x, at = [8 * tid + 4 * i + j]) : f32
        thread.store(%a, %acc, at = [i, j])
    } }
    thread.loop(var = i, extent = 2) { thread.loop(var = j, extent = 4) {
        %b = thread.load(%acc, at = [i, j]) : f32
        %c = scalar.fma(%b, %b, %b) : f32
        thread.store(%c, %acc, at = [i, j])
    } }
    thread.loop(var = i, extent = 2) { thread.loop(var = j, extent = 4) {
        %d = thread.load(%acc, at = [i, j]) : f32
        thread.store(%d, %y, at = [8 * tid + 4 * i + j])
    } }"""


def test_register_loops_only_when_asked():
    func = kernel(UPDATE, "%x: f32[64], %y: f32[64]")
    assert widths(func) == [4, 1, 4]
    assert widths(func, "vectorise{registers=true}") == [4, 4, 4]


@given(
    n=st.sampled_from([2, 4, 6, 8]),
    scale=st.integers(0, 8),
    offset=st.integers(0, 5),
    low=st.integers(-2, 20),
    length=st.integers(0, 60),
    row=st.sampled_from([8, 12, 14, 16]),
    gap=st.integers(1, 8),
)
def test_random_copies_keep_their_bits(n, scale, offset, low, length, row, gap):
    func = kernel(
        f"""thread.loop(var = v, extent = {n}) {{
            %a = thread.load(%x, at = [tid, {gap} * v // {gap} + {offset}],
                mask = [[{scale} * tid + v, {low}, {low + length}], [v + {offset}, 0, {row}]],
                other = -1.0) : f32
            thread.store(%a, %y, at = [tid, v])
        }}""",
        f"%x: f32[8, {row}], %y: f32[8, 8]",
    )
    new = after("vectorise", func)
    assert_same(func, new)
    assert np.prod([1, *lanes(new)]) <= 4
